//! Token ids to text, token by token, never half a character.
//!
//! Tokens hold bytes, and a character's bytes may lie in several. Bytes that may still become a
//! character (at most 3) wait; bytes that never can become U+FFFD, as in
//! `String::from_utf8_lossy`. So the chunks joined equal the whole detokenised at once. Each token
//! costs the time to copy its bytes.

use crate::Tokenizer;
use crate::tokenizer::SpacePrefix;
use mini_infer_core::TokenId;
use std::sync::Arc;

/// What the output follows, which decides over its leading space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStart {
    /// A text of its own, as an answer in a chat: the space that some tokenizers put before every
    /// text is no part of it.
    NewText,
    /// The rest of a text whose beginning was the prompt: its leading space counts.
    Continuation,
}

/// Whether control tokens, such as the one that ends a turn, are part of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlTokens {
    /// They have no text.
    #[default]
    Skipped,
    /// Their names are written out.
    Written,
}

/// Turns one sequence's tokens into text as they come.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    control_tokens: ControlTokens,
    /// Bytes that are the beginning of a character.
    incomplete: Vec<u8>,
    /// The next byte is dropped if it is a space.
    drop_space: bool,
}

impl Detokenizer {
    /// Starts at the first output token of a sequence.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, start: OutputStart) -> Self {
        let drop_space =
            start == OutputStart::NewText && tokenizer.space_prefix() == SpacePrefix::Added;
        let control_tokens = ControlTokens::default();
        Self { tokenizer, control_tokens, incomplete: Vec::new(), drop_space }
    }

    /// Returns the same detokenizer, which treats control tokens as told.
    #[must_use]
    pub fn with_control_tokens(self, control_tokens: ControlTokens) -> Self {
        Self { control_tokens, ..self }
    }

    /// Appends the text that `token` completes to `text`: perhaps none, perhaps more than its own.
    pub fn push(&mut self, token: TokenId, text: &mut String) {
        let mut bytes = match self.control_tokens {
            ControlTokens::Skipped => self.tokenizer.output_bytes(token),
            ControlTokens::Written => self.tokenizer.token_bytes(token).unwrap_or(&[]),
        };
        if self.drop_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.drop_space = false;
        }
        if self.incomplete.is_empty() {
            let rest = push_characters(bytes, text);
            self.incomplete.extend_from_slice(rest);
        } else {
            self.incomplete.extend_from_slice(bytes);
            let rest = push_characters(&self.incomplete, text).len();
            self.incomplete.drain(..self.incomplete.len() - rest);
        }
    }

    /// Appends what is left when no token follows: U+FFFD if the last character is incomplete.
    pub fn finish(&mut self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&self.incomplete));
        self.incomplete.clear();
    }
}

/// Appends all characters of `bytes` to `text`, and returns the beginning of one at the end.
fn push_characters<'bytes>(bytes: &'bytes [u8], text: &mut String) -> &'bytes [u8] {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                return &[];
            }
            Err(error) => {
                let (valid, invalid) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                let Some(len) = error.error_len() else { return invalid };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &invalid[len..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GgufVocabulary;

    /// One token per byte, then a control token, then ` a`.
    fn tokenizer(add_space_prefix: bool) -> Arc<Tokenizer> {
        let mut tokens: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
        tokens.extend(["<s>".to_owned(), "▁a".to_owned()]);
        let mut token_types = vec![6; 256];
        token_types.extend([3, 1]);
        let vocabulary = GgufVocabulary {
            model: "llama".to_owned(),
            scores: vec![0.0; tokens.len()],
            tokens,
            token_types,
            add_space_prefix: Some(add_space_prefix),
            ..GgufVocabulary::default()
        };
        Arc::new(Tokenizer::from_gguf(vocabulary).unwrap())
    }

    const CONTROL: TokenId = 256;
    const SPACE_A: TokenId = 257;

    fn chunks(tokenizer: &Arc<Tokenizer>, start: OutputStart, ids: &[TokenId]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), start);
        let mut chunks: Vec<String> = ids
            .iter()
            .map(|id| {
                let mut chunk = String::new();
                detokenizer.push(*id, &mut chunk);
                chunk
            })
            .collect();
        let mut rest = String::new();
        detokenizer.finish(&mut rest);
        chunks.push(rest);
        chunks
    }

    fn check(bytes: &[u8], expected: &[&str]) {
        let ids: Vec<TokenId> = bytes.iter().map(|byte| TokenId::from(*byte)).collect();
        assert_eq!(chunks(&tokenizer(false), OutputStart::NewText, &ids), expected, "{bytes:x?}");
    }

    #[test]
    fn a_character_comes_whole_with_its_last_byte() {
        check("aé".as_bytes(), &["a", "", "é", ""]);
        check("🙂".as_bytes(), &["", "", "", "🙂", ""]);
    }

    #[test]
    fn bytes_that_are_no_character_become_replacements_once_that_is_certain() {
        check(b"\xF0\x9F", &["", "", "\u{FFFD}"]);
        check(b"\xF0\x9Fa", &["", "", "\u{FFFD}a", ""]);
        check(b"\xFFa", &["\u{FFFD}", "a", ""]);
        check(b"\xC3\xC3\xA9", &["", "\u{FFFD}", "é", ""]);
    }

    #[test]
    fn control_and_unknown_ids_have_no_text() {
        let ids = [CONTROL, TokenId::from(b'b'), 100_000, SPACE_A, CONTROL];
        let got = chunks(&tokenizer(false), OutputStart::NewText, &ids);
        assert_eq!(got, ["", "b", "", " a", "", ""]);
    }

    #[test]
    fn control_tokens_are_written_where_that_is_wanted() {
        let tokenizer = tokenizer(true);
        let detokenizer = Detokenizer::new(tokenizer, OutputStart::NewText);
        let mut detokenizer = detokenizer.with_control_tokens(ControlTokens::Written);
        let mut text = String::new();
        for token in [SPACE_A, CONTROL, 100_000, SPACE_A] {
            detokenizer.push(token, &mut text);
        }
        assert_eq!(text, "a<s> a");
    }

    #[test]
    fn the_space_before_a_new_text_is_dropped_and_that_of_a_continuation_kept() {
        let ids = [CONTROL, SPACE_A, SPACE_A];
        let check = |add_space_prefix, start, expected: &str| {
            assert_eq!(chunks(&tokenizer(add_space_prefix), start, &ids).concat(), expected);
        };
        check(true, OutputStart::NewText, "a a");
        check(true, OutputStart::Continuation, " a a");
        check(false, OutputStart::NewText, " a a");
    }

    #[test]
    fn chunks_joined_equal_the_whole() {
        let seed: u64 = std::env::var("TEXT_SEED").map_or(1, |seed| seed.parse().unwrap());
        println!("TEXT_SEED={seed}");
        let mut state = seed;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let tokenizer = tokenizer(true);
        // Bytes that begin, continue, break and complete characters of every length.
        let bytes = b"a \x80\xBF\xC3\xA9\xE2\x82\xAC\xED\xF0\x9F\x99\x82\xF4\xFF";
        for _ in 0..20_000 {
            let ids: Vec<TokenId> = (0..next(24))
                .map(|_| match next(20) {
                    0 => CONTROL,
                    1 => SPACE_A,
                    _ => {
                        let index = usize::try_from(next(bytes.len() as u64)).unwrap();
                        TokenId::from(bytes[index])
                    }
                })
                .collect();
            let chunks = chunks(&tokenizer, OutputStart::NewText, &ids);
            assert_eq!(chunks.concat(), tokenizer.detokenize(&ids), "{ids:?}");
        }
    }
}
