//! A chat template's output, in which markup and a client's text can still be told apart.
//!
//! Where a client's text holds the characters of a special token, a guard character stands after
//! the first of them. The guard occurs nowhere else, so taking it out of the text between special
//! tokens gives back exactly what the client wrote.

use std::borrow::Cow;

/// A rendered chat, ready for [`Tokenizer::encode_chat`](crate::Tokenizer::encode_chat).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    guard: Option<char>,
}

impl RenderedPrompt {
    pub(crate) fn new(text: String, guard: Option<char>) -> Self {
        Self { text, guard }
    }

    /// Takes a text that someone rendered before: all markup in it is meant as such.
    #[must_use]
    pub fn from_markup(text: String) -> Self {
        Self { text, guard: None }
    }

    /// Returns the text as the template wrote it.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        self.without_guard(&self.text)
    }

    pub(crate) fn guarded_text(&self) -> &str {
        &self.text
    }

    /// Takes the guard out of a part of the guarded text.
    pub(crate) fn without_guard<'text>(&self, part: &'text str) -> Cow<'text, str> {
        match self.guard {
            Some(guard) if part.contains(guard) => Cow::Owned(part.replace(guard, "")),
            _ => Cow::Borrowed(part),
        }
    }
}
