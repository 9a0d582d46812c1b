//! How long the expressions of a chat template may be.
//!
//! The template engine compiles `1+1+1…`, `not not …` and chains of `elif` by calling itself once
//! for each link, and so a hostile template of a few kilobytes would overflow the stack and end the
//! process. Nested brackets and blocks it bounds itself.

/// Most words and signs in one tag; published templates have at most 62. Compiling takes about 2.5
/// KiB of stack for each in a build without optimisations, and threads have 2 MiB.
const MAX_TAG_LEN: usize = 500;
/// Most `elif` in a template; published ones have at most 20.
const MAX_ELIFS: usize = 250;

/// What exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// Line of the tag, counted from 1.
    pub(crate) line: usize,
    pub(crate) limit: usize,
}

/// Checks every tag of a template.
pub(crate) fn check(source: &str) -> Result<(), Excess> {
    let mut num_elifs = 0;
    let mut rest = source;
    while let Some(start) = tag_start(rest) {
        let excess = |limit| {
            let done = source.len() - rest.len() + start;
            Excess { line: source[..done].matches('\n').count() + 1, limit }
        };
        let tag = &rest[start + 2..];
        let (num_words, len) = measure(tag);
        if num_words > MAX_TAG_LEN {
            return Err(excess(MAX_TAG_LEN));
        }
        let name = tag.trim_start_matches(['-', '+', ' ', '\t', '\r', '\n']);
        num_elifs += usize::from(name.starts_with("elif"));
        if num_elifs > MAX_ELIFS {
            return Err(excess(MAX_ELIFS));
        }
        rest = &tag[len..];
    }
    Ok(())
}

fn tag_start(text: &str) -> Option<usize> {
    let opens = |start: &usize| matches!(text.as_bytes().get(start + 1), Some(b'{' | b'%'));
    text.match_indices('{').map(|(start, _)| start).find(opens)
}

/// Returns the number of words, strings and signs in a tag, and where it ends in bytes.
fn measure(tag: &str) -> (usize, usize) {
    let mut num_words = 0;
    let mut num_open: usize = 0;
    let mut in_word = false;
    let mut quote = None;
    let mut escaped = false;
    for (index, c) in tag.char_indices() {
        if let Some(end) = quote {
            quote = Some(end).filter(|end| escaped || c != *end);
            escaped = c == '\\' && !escaped;
            continue;
        }
        if num_open == 0 && (tag[index..].starts_with("}}") || tag[index..].starts_with("%}")) {
            return (num_words, index);
        }
        let continues = in_word && (c.is_alphanumeric() || c == '_');
        num_words += usize::from(!continues && !c.is_whitespace());
        in_word = c.is_alphanumeric() || c == '_';
        match c {
            '"' | '\'' => quote = Some(c),
            '(' | '[' | '{' => num_open += 1,
            ')' | ']' | '}' => num_open = num_open.saturating_sub(1),
            _ => {}
        }
    }
    (num_words, tag.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_measure(tag: &str, num_words: usize, end: &str) {
        let (got, len) = measure(tag);
        assert_eq!((got, &tag[len..]), (num_words, end), "{tag:?}");
    }

    #[test]
    fn words_strings_and_signs_count_and_brackets_and_quotes_hide_the_end() {
        check_measure(" a.b_1 | c }}x", 5, "}}x");
        check_measure("- if x['}}'] == \"a\\\"%}\" -%}x", 10, "%}x");
        check_measure(" {'a': {}} }}x", 6, "}}x");
        check_measure(" never ends", 2, "");
    }

    #[test]
    fn long_tags_and_chains_are_refused_by_line_and_long_texts_are_not() {
        let long = "1+".repeat(MAX_TAG_LEN);
        let excess = |source: &str| check(source).unwrap_err();
        assert_eq!(
            excess(&format!("a\n{{{{ {long}1 }}}}")),
            Excess { line: 2, limit: MAX_TAG_LEN }
        );
        assert_eq!(excess(&format!("{{{{ {{}}}} {long} }}}}")).limit, MAX_TAG_LEN);
        let elifs = "{%- elif 0 %}".repeat(MAX_ELIFS + 1);
        assert_eq!(excess(&elifs).limit, MAX_ELIFS);
        assert_eq!(check(&format!("{long}{{{{ '{long}' }}}}{{# {long} #}}")), Ok(()));
    }
}
