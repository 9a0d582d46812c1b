//! Finds tokens that stand for themselves in a text: markup, and pieces added to the vocabulary.
//!
//! The leftmost occurrence wins, and the longest of those that start there, as in the reference
//! tokenizers. One pass over the text whatever the number of tokens (Aho-Corasick).

use crate::TokenizerError;
use aho_corasick::{AhoCorasick, MatchKind};
use mini_infer_core::TokenId;

/// A token that is matched as a whole, and how much of its surroundings belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct MatchedToken {
    pub(crate) id: TokenId,
    pub(crate) text: String,
    /// Takes the white space before it along.
    pub(crate) strip_left: bool,
    /// Takes the white space after it along.
    pub(crate) strip_right: bool,
    /// Matches only where no letter, digit or underscore touches it.
    pub(crate) whole_word: bool,
}

impl MatchedToken {
    /// Returns a token that matches its text anywhere and nothing more.
    pub(crate) fn plain(id: TokenId, text: &str) -> Self {
        let text = text.to_owned();
        Self { id, text, strip_left: false, strip_right: false, whole_word: false }
    }
}

/// A stretch of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'text> {
    /// Text between tokens, never empty.
    Text(&'text str),
    /// A token that stands for itself.
    Token(TokenId),
}

/// Longest text of a token that stands for itself; published ones have at most a tenth of that.
const MAX_TOKEN_BYTES: usize = 1024;
/// Most bytes of all those texts; the 6,415 of Gemma 3 have 80,000.
const MAX_TOTAL_BYTES: usize = 1 << 20;

/// Splits texts at a fixed set of tokens.
#[derive(Debug)]
pub(crate) struct TokenMatcher {
    /// `None` when there are no tokens to match.
    automaton: Option<AhoCorasick>,
    tokens: Vec<MatchedToken>,
}

impl TokenMatcher {
    /// Prepares to match `tokens`; those with an empty text never match.
    pub(crate) fn new(mut tokens: Vec<MatchedToken>) -> Result<Self, TokenizerError> {
        tokens.retain(|token| !token.text.is_empty());
        // The automata below take tens of bytes for each byte of these, and overlapping ones time.
        let longest = tokens.iter().map(|token| token.text.len()).max().unwrap_or(0);
        let total: usize = tokens.iter().map(|token| token.text.len()).sum();
        for (got, limit) in [(longest, MAX_TOKEN_BYTES), (total, MAX_TOTAL_BYTES)] {
            if got > limit {
                return Err(TokenizerError::AddedTokensTooLong { got, limit });
            }
        }
        let automaton = if tokens.is_empty() {
            None
        } else {
            let texts = tokens.iter().map(|token| token.text.as_bytes());
            let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
            Some(built.map_err(|source| TokenizerError::Build { source: source.into() })?)
        };
        Ok(Self { automaton, tokens })
    }

    /// Returns the tokens that are matched.
    pub(crate) fn tokens(&self) -> &[MatchedToken] {
        &self.tokens
    }

    /// Cuts `text` into tokens and the text between them, in order.
    pub(crate) fn split<'text>(&self, text: &'text str) -> Vec<Piece<'text>> {
        let mut pieces = Vec::new();
        let mut done = 0;
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            let token = &self.tokens[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            // White space that a token took along may hold the next one.
            if start < done || (token.whole_word && !stands_alone(text, start, end)) {
                continue;
            }
            if token.strip_left {
                start = done + text[done..start].trim_end().len();
            }
            if token.strip_right {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                pieces.push(Piece::Text(&text[done..start]));
            }
            pieces.push(Piece::Token(token.id));
            done = end;
        }
        if done < text.len() {
            pieces.push(Piece::Text(&text[done..]));
        }
        pieces
    }
}

fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].ends_with(in_word) && !text[end..].starts_with(in_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tokens: &[&str], text: &str, expected: &[Piece<'_>]) {
        let tokens = tokens
            .iter()
            .zip(0..)
            .map(|(text, id)| {
                let mut token = MatchedToken::plain(id, text.trim_matches('_'));
                token.strip_left = text.starts_with('_');
                token.strip_right = text.ends_with('_');
                token
            })
            .collect();
        assert_eq!(TokenMatcher::new(tokens).unwrap().split(text), expected, "{text:?}");
    }

    #[test]
    fn the_leftmost_then_longest_token_wins() {
        use Piece::{Text, Token};
        check(&[], "a", &[Text("a")]);
        check(&["<s>"], "", &[]);
        check(&["<s>", "<s><s>"], "a<s><s><s>", &[Text("a"), Token(1), Token(0)]);
        check(&["ab", "bcd"], "abcd", &[Token(0), Text("cd")]);
        check(&["", "é"], "éa", &[Token(1), Text("a")]);
    }

    #[test]
    fn a_token_takes_the_white_space_along_that_it_claims() {
        use Piece::{Text, Token};
        check(&["_<m>"], "a  <m> b", &[Text("a"), Token(0), Text(" b")]);
        check(&["<m>_"], "a <m> \n b", &[Text("a "), Token(0), Text("b")]);
        check(&["_<m>_", " "], " <m>  <m> ", &[Token(1), Token(0), Token(0)]);
    }

    #[test]
    fn a_whole_word_token_does_not_match_inside_a_word() {
        let mut token = MatchedToken::plain(0, "ab");
        token.whole_word = true;
        let matcher = TokenMatcher::new(vec![token]).unwrap();
        assert_eq!(matcher.split("abc_ab"), [Piece::Text("abc_ab")]);
        assert_eq!(matcher.split("ab."), [Piece::Token(0), Piece::Text(".")]);
    }
}
