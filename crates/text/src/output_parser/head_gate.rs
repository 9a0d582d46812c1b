//! An answer that is calls or text as a whole, told by how it begins.
//!
//! Where an output is constrained to be one or the other, looking for calls further on would find
//! them in texts that only look alike. What may still become a head is held back, and no more.

use mini_infer_core::TokenId;

/// What calls begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputHead {
    /// This control token.
    Token(TokenId),
    /// This text, not empty.
    Text(String),
}

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Calls,
    Text,
}

/// Reads the beginning of an answer.
#[derive(Clone, Debug)]
pub(crate) struct HeadGate {
    heads: Vec<OutputHead>,
    /// The answer so far, which is the beginning of a head.
    held: String,
}

impl HeadGate {
    /// Starts at the beginning of an answer.
    pub(crate) fn new(heads: Vec<OutputHead>) -> Self {
        Self { heads, held: String::new() }
    }

    /// Takes the next character; `None` while it can be either.
    pub(crate) fn push(&mut self, c: char) -> Option<Verdict> {
        self.held.push(c);
        let mut texts = self.heads.iter().filter_map(|head| match head {
            OutputHead::Text(text) => text.starts_with(&self.held).then_some(text),
            OutputHead::Token(_) => None,
        });
        match texts.next() {
            None => Some(Verdict::Text),
            Some(text) if *text == self.held => Some(Verdict::Calls),
            Some(_) if texts.any(|text| *text == self.held) => Some(Verdict::Calls),
            Some(_) => None,
        }
    }

    /// Takes a control token.
    pub(crate) fn push_token(&self, token: TokenId) -> Verdict {
        let is_head = self.held.is_empty() && self.heads.contains(&OutputHead::Token(token));
        if is_head { Verdict::Calls } else { Verdict::Text }
    }

    /// Returns the text that is held back.
    pub(crate) fn into_held(self) -> String {
        self.held
    }
}
