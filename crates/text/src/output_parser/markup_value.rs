//! The value of one parameter, written without quotes up to the tag that ends it.
//!
//! The line break behind the opening tag and the one before the closing tag are markup. A text
//! comes out as it is written; anything else waits for its end, since only that says whether it is
//! what the schema asks for.

use super::json_string::push_escaped;
use super::lookout::Lookout;
use super::value_types::ValueTypes;

/// The tag that ends a value.
const END: &str = "</parameter>";

/// Reads one value, from behind its opening tag on.
#[derive(Clone, Debug)]
pub(crate) struct MarkupValue {
    types: ValueTypes,
    lookout: Lookout,
    has_begun: bool,
    /// Whether a line break came last, which may belong to the closing tag.
    has_line_break: bool,
    /// The value so far, where it waits for its end.
    text: String,
}

/// Whether a value goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkupStep {
    More,
    Ended,
}

impl MarkupValue {
    /// Begins a value of these types.
    pub(crate) fn new(types: ValueTypes) -> Self {
        Self {
            types,
            lookout: Lookout::new(vec![END]),
            has_begun: false,
            has_line_break: false,
            text: String::new(),
        }
    }

    /// Returns what stands before the value's own characters in JSON.
    pub(crate) fn opening(&self) -> &'static str {
        if self.types.is_text() { "\"" } else { "" }
    }

    /// Takes the next character and appends to `json` what it completes.
    pub(crate) fn push(&mut self, c: char, json: &mut String) -> MarkupStep {
        let mut text = String::new();
        let ended = self.lookout.push(c, &mut text).is_some();
        text.chars().for_each(|c| self.take(c, json));
        if !ended {
            return MarkupStep::More;
        }
        let value = std::mem::take(&mut self.text);
        json.push_str(&if self.types.is_text() {
            "\"".to_owned()
        } else {
            self.types.json(&value)
        });
        MarkupStep::Ended
    }

    /// Returns the characters that are neither given out nor known to be markup.
    pub(crate) fn held(&self) -> String {
        let line_break = if self.has_line_break { "\n" } else { "" };
        format!("{}{line_break}{}", self.text, self.lookout.held())
    }

    /// Takes a character that is part of no tag.
    fn take(&mut self, c: char, json: &mut String) {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if c == '\n' && is_first {
            return;
        }
        if std::mem::take(&mut self.has_line_break) {
            self.add('\n', json);
        }
        if c == '\n' {
            self.has_line_break = true;
        } else {
            self.add(c, json);
        }
    }

    fn add(&mut self, c: char, json: &mut String) {
        if self.types.is_text() { push_escaped(c, json) } else { self.text.push(c) }
    }
}
