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

/// Turns one sequence's tokens into text as they come.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
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
        Self { tokenizer, incomplete: Vec::new(), drop_space }
    }

    /// Appends the text that `token` completes to `text`: perhaps none, perhaps more than its own.
    ///
    /// Control tokens have no text.
    pub fn push(&mut self, token: TokenId, text: &mut String) {
        let mut bytes = self.tokenizer.output_bytes(token);
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
