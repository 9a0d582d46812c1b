//! The tags of a Jinja template and the words in them, as the template engine cuts them.
//!
//! Comments and raw blocks hold no tags. A tag ends at its mark outside of strings and brackets.
//! One pass over the text; nothing nests.

/// What a tag does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagKind {
    /// `{% … %}`.
    Statement,
    /// `{{ … }}`.
    Expression,
}

/// One tag of a template.
#[derive(Clone, Debug)]
pub(crate) struct Tag<'a> {
    pub(crate) kind: TagKind,
    /// Where it begins in the template, in bytes.
    pub(crate) start: usize,
    /// The mark at its beginning, with the sign for white space.
    pub(crate) open: &'a str,
    pub(crate) body: &'a str,
    /// The mark at its end, with the sign for white space; empty when the template ends before it.
    pub(crate) close: &'a str,
    /// The words of the body.
    pub(crate) words: Vec<Word<'a>>,
    /// Whether every bracket is closed, and none that was not open.
    pub(crate) is_balanced: bool,
}

/// A name, number, string or sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word<'a> {
    pub(crate) text: &'a str,
    /// Where it begins in the body, in bytes.
    pub(crate) start: usize,
    /// Brackets that are open around it; a bracket is not inside itself.
    pub(crate) depth: usize,
}

impl Word<'_> {
    pub(crate) fn end(&self) -> usize {
        self.start + self.text.len()
    }

    /// Whether it begins as names and numbers do.
    pub(crate) fn is_alphanumeric(&self) -> bool {
        self.text.starts_with(is_of_name)
    }
}

impl Tag<'_> {
    /// Where the tag ends in the template, in bytes.
    pub(crate) fn end(&self) -> usize {
        self.start + self.open.len() + self.body.len() + self.close.len()
    }
}

/// Returns the tags of a template in order.
pub(crate) fn tags(source: &str) -> impl Iterator<Item = Tag<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let start = at + opening(&source[at..])?;
            let rest = &source[start..];
            if let Some(comment) = rest.strip_prefix("{#") {
                at = source.len() - comment.find("#}").map_or(0, |end| comment.len() - end - 2);
                continue;
            }
            let tag = cut_tag(source, start);
            if tag.kind == TagKind::Statement
                && let Some(raw) = basic_tag_len(&source[start + tag.open.len()..], "raw")
            {
                at = start + tag.open.len() + raw;
                at += end_of_raw(&source[at..]);
                continue;
            }
            at = tag.end();
            return Some(tag);
        }
    })
}

/// Returns where the next tag or comment begins.
fn opening(text: &str) -> Option<usize> {
    let opens = |start: &usize| matches!(text.as_bytes().get(start + 1), Some(b'{' | b'%' | b'#'));
    text.match_indices('{').map(|(start, _)| start).find(opens)
}

/// Returns where the tag that ends a raw block begins, or the text's end.
fn end_of_raw(text: &str) -> usize {
    let ends = |start: &usize| {
        let tag = &text[start + 2..];
        basic_tag_len(tag.strip_prefix(['-', '+']).unwrap_or(tag), "endraw").is_some()
    };
    text.match_indices("{%").map(|(start, _)| start).find(ends).unwrap_or(text.len())
}

/// Returns the length of a tag behind its opening mark that is nothing but a name, and `None` where
/// it is anything else.
fn basic_tag_len(text: &str, name: &str) -> Option<usize> {
    let rest = text.trim_ascii_start().strip_prefix(name)?.trim_ascii_start();
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(text.len() - rest.len())
}

fn cut_tag(source: &str, start: usize) -> Tag<'_> {
    let rest = &source[start..];
    let (kind, mark) = if rest.starts_with("{%") {
        (TagKind::Statement, "%}")
    } else {
        (TagKind::Expression, "}}")
    };
    let open_len = 2 + usize::from(rest[2..].starts_with(['-', '+']));
    let (open, rest) = rest.split_at(open_len);
    let mut words = Vec::new();
    let (mut at, mut depth, mut is_balanced) = (0, 0_usize, true);
    let mut close_len = 0;
    while let Some(c) = rest[at..].chars().next() {
        let here = &rest[at..];
        if depth == 0 {
            let sign = usize::from(here.starts_with(['-', '+']));
            if here[sign..].starts_with(mark) {
                close_len = sign + mark.len();
                break;
            }
        }
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        if matches!(c, ')' | ']' | '}') {
            is_balanced &= depth > 0;
            depth = depth.saturating_sub(1);
        }
        let text = &here[..word_len(here, c)];
        words.push(Word { text, start: at, depth });
        depth += usize::from(matches!(c, '(' | '[' | '{'));
        at += text.len();
    }
    let (body, close) = (&rest[..at], &rest[at..at + close_len]);
    Tag { kind, start, open, body, close, words, is_balanced: is_balanced && depth == 0 }
}

/// Returns the length of the word that `text` begins with.
fn word_len(text: &str, first: char) -> usize {
    match first {
        '"' | '\'' => string_len(text, first),
        '0'..='9' => number_len(text),
        _ if is_of_name(first) => text.find(|c| !is_of_name(c)).unwrap_or(text.len()),
        _ if ["==", "!=", "<=", ">=", "//", "**"].iter().any(|sign| text.starts_with(sign)) => 2,
        _ => first.len_utf8(),
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn string_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let ends = |&(_, c): &(usize, char)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    };
    text.char_indices().skip(1).find(ends).map_or(text.len(), |(end, _)| end + 1)
}

/// Returns the length of a number, with its fraction and the sign of its exponent.
fn number_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let goes_on = match byte {
            b'.' => is_digit(at + 1),
            b'+' | b'-' => {
                !text.starts_with("0x") && matches!(bytes[at - 1], b'e' | b'E') && is_digit(at + 1)
            }
            _ => byte.is_ascii_alphanumeric() || byte == b'_',
        };
        if !goes_on {
            break;
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &[(&str, &str)]) {
        let found: Vec<_> = tags(source).map(|tag| (tag.body, &source[tag.end()..])).collect();
        assert_eq!(found, expected, "{source:?}");
    }

    #[test]
    fn brackets_and_quotes_hide_the_end_of_a_tag() {
        check("{{ a }}x", &[(" a ", "x")]);
        check("{%- if x['}}'] == \"a\\\"%}\" -%}x", &[(" if x['}}'] == \"a\\\"%}\" ", "x")]);
        check("{{ {'a': {}} }}x{", &[(" {'a': {}} ", "x{")]);
        check("{% a }} %}{{ b %} }}", &[(" a }} ", "{{ b %} }}"), (" b %} ", "")]);
        check("{{ never ends", &[(" never ends", "")]);
    }

    #[test]
    fn comments_and_raw_blocks_hold_no_tags() {
        check("{# {{ a }} #}{{ b }}{# never ends {{ c }}", &[(" b ", "{# never ends {{ c }}")]);
        let raw = "{% raw -%}{{ a }}{% b %}{%+ endraw %}{{ c }}";
        check(raw, &[(" endraw ", "{{ c }}"), (" c ", "")]);
        check("{% raw %}{{ a }}", &[]);
    }

    /// What only looks like an end would let tags through that the engine sees and nobody checks.
    #[test]
    fn comments_and_raw_blocks_end_where_the_engine_ends_them() {
        check("{#} {{ a }} #}{{ b }}", &[(" b ", "")]);
        check("{#-#}{{ b }}", &[(" b ", "")]);
        for no_end in ["{% endrawx %}", "{% endraw x %}", "{%\u{a0}endraw %}", "{% endraw"] {
            check(&format!("{{% raw %}}{no_end}{{{{ a }}}}"), &[]);
            let source = format!("{{%raw%}}{no_end}{{{{ '{{%endraw+%}}{{{{ b }}}}");
            check(&source, &[("endraw", "{{ b }}"), (" b ", "")]);
        }
        check("{% raw x %}{{ a }}", &[(" raw x ", "{{ a }}"), (" a ", "")]);
    }

    #[test]
    fn words_are_names_numbers_strings_and_signs() {
        let source = "{{ a.b_1 | c('x y', 1.5e-3)[-1] ** 2 == d }}";
        let tag = tags(source).next().unwrap();
        let words: Vec<_> = tag.words.iter().map(|word| (word.text, word.depth)).collect();
        let expected = [
            ("a", 0),
            (".", 0),
            ("b_1", 0),
            ("|", 0),
            ("c", 0),
            ("(", 0),
            ("'x y'", 1),
            (",", 1),
            ("1.5e-3", 1),
            (")", 0),
            ("[", 0),
            ("-", 1),
            ("1", 1),
            ("]", 0),
            ("**", 0),
            ("2", 0),
            ("==", 0),
            ("d", 0),
        ];
        assert_eq!(words, expected);
        assert!(
            tag.is_balanced && tag.words.iter().all(|w| tag.body[w.start..].starts_with(w.text))
        );
        assert!(!tags("{{ a) + (b }}").next().unwrap().is_balanced);
        assert!(!tags("{{ (a }}").next().unwrap().is_balanced);
    }
}
