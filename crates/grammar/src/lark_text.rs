//! Lark as text: writing strings and schemas, and reading as much as it takes to bound a grammar.
//!
//! The parser of Lark recurses over brackets, and its compiler over rules that refer to rules, so both
//! are counted first. Schemas inside a client's grammar get the bounds of schemas elsewhere.

use crate::GrammarError;
use crate::json_schema;
use serde_json::Value;

/// Most brackets inside each other.
const MAX_DEPTH: usize = 64;
/// What a schema stands behind; JSON may follow it without a space.
const JSON: &str = "%json";
/// Most rules and terminals.
pub(crate) const MAX_RULES: usize = 2_000;

/// Returns a string literal.
pub(crate) fn string(text: &str) -> String {
    let mut literal = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => literal.extend(['\\', c]),
            '\n' => literal.push_str("\\n"),
            '\x00'..='\x1F' | '\x7F' => literal.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => literal.push(c),
        }
    }
    literal.push('"');
    literal
}

/// Returns a schema in place of a rule; it must be prepared.
pub(crate) fn json(schema: &Value) -> String {
    format!("%json {schema}")
}

/// Checks a client's grammar, and prepares the schemas in it.
///
/// # Errors
/// Refuses what is too large or too deep, and schemas that cannot be followed.
pub(crate) fn prepare(text: &str) -> Result<String, GrammarError> {
    let mut prepared = String::with_capacity(text.len());
    let (mut depth, mut num_rules) = (0_usize, 0_usize);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = token_length(rest, c);
        let (token, after) = rest.split_at(length);
        rest = after;
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ':' => num_rules += 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            let message = format!("brackets are nested deeper than {MAX_DEPTH} levels");
            return Err(GrammarError::whole(message));
        }
        if num_rules > MAX_RULES {
            return Err(GrammarError::whole(format!("there are more than {MAX_RULES} rules")));
        }
        prepared.push_str(token);
        if token == JSON {
            let (schema, after) = json_prefix(rest)?;
            prepared.push_str(&format!(" {}", json_schema::prepare(&schema)?));
            rest = after;
        }
    }
    Ok(prepared)
}

/// Returns the bytes of the string, regular expression, comment or word that `rest` begins with, and
/// of anything else the first character's.
fn token_length(rest: &str, first: char) -> usize {
    let until_line_end = || rest.find('\n').unwrap_or(rest.len());
    match first {
        '#' => until_line_end(),
        '/' if rest.starts_with("//") => until_line_end(),
        '"' | '/' => quoted_length(rest, first),
        '<' => special_token_length(rest).unwrap_or(1),
        '%' if rest.starts_with(JSON) => JSON.len(),
        '%' => {
            let word = rest[1..].find(|c: char| !c.is_ascii_alphanumeric());
            word.map_or(rest.len(), |end| end + 1)
        }
        _ => first.len_utf8(),
    }
}

/// Returns the bytes of the name in angle brackets that `rest` begins with. Quotes and brackets in it
/// are part of it.
fn special_token_length(rest: &str) -> Option<usize> {
    let end = rest[1..].find(|c: char| matches!(c, '<' | '>') || c.is_whitespace())?;
    rest[1 + end..].starts_with('>').then_some(end + 2)
}

/// Returns the bytes up to the next `quote` that no backslash escapes, both included.
fn quoted_length(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == quote => return i + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// Reads the JSON that `rest` begins with, and returns it and what follows.
fn json_prefix(rest: &str) -> Result<(Value, &str), GrammarError> {
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    match values.next() {
        Some(Ok(schema)) => {
            let end = values.byte_offset();
            Ok((schema, &rest[end..]))
        }
        Some(Err(error)) => Err(GrammarError::whole(format!("%json: {error}"))),
        None => Err(GrammarError::whole("%json: a schema must follow")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_written_so_that_lark_reads_them_back() {
        assert_eq!(string("a\"b\\c\n\u{7f}é\0"), "\"a\\\"b\\\\c\\n\\u007fé\\u0000\"");
    }

    #[test]
    fn depth_and_rules_are_counted_outside_of_strings_only() {
        let brackets = "(".repeat(500);
        let quoted = format!("start: \"{brackets}\" /{}\\/x/ // {brackets}\n", "[(]".repeat(100));
        assert_eq!(prepare(&quoted).unwrap(), quoted);
        assert!(prepare(&format!("start: {brackets}")).is_err());
        let hidden = format!("start: <\"> \"a\" {brackets}b <\">");
        assert!(prepare(&hidden).unwrap_err().message.contains("nested deeper"));
        let named = format!("start: <a\"{}> \"b\"", brackets);
        assert_eq!(prepare(&named).unwrap(), named);
        assert!(prepare(&"a: \"b\"\n".repeat(3000)).is_err());
    }

    #[test]
    fn schemas_in_a_grammar_are_prepared() {
        let prepared = prepare("start: \"a\" %json {\"type\": \"object\"} | b\nb: \"c\"").unwrap();
        assert!(prepared.contains("whitespace_pattern"), "{prepared}");
        assert!(prepared.ends_with(" | b\nb: \"c\""), "{prepared}");
        let remote = "start: %json {\"$ref\": \"http://example.com/x\"}";
        assert_eq!(prepare(remote).unwrap_err().path, "$ref");
        assert!(prepare("start: %json {").is_err());
        assert!(prepare("start: %jsontrue").unwrap().contains("whitespace_pattern"));
    }
}
