//! How long the expressions of a chat template may be.
//!
//! The template engine compiles `1+1+1…`, `not not …` and chains of `elif` by calling itself once
//! for each link, and so a hostile template of a few kilobytes would overflow the stack and end the
//! process. Nested brackets and blocks it bounds itself.

use crate::template_tags::{TagKind, tags};

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
    for tag in tags(source) {
        let excess = |limit| Excess { line: source[..tag.start].matches('\n').count() + 1, limit };
        if tag.words.len() > MAX_TAG_LEN {
            return Err(excess(MAX_TAG_LEN));
        }
        let name = tag.words.first().map(|word| word.text);
        num_elifs += usize::from(tag.kind == TagKind::Statement && name == Some("elif"));
        if num_elifs > MAX_ELIFS {
            return Err(excess(MAX_ELIFS));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
