//! Stop strings, found across the borders of tokens.
//!
//! The match that is complete first wins; of those complete at the same character, the longest. So
//! the result does not depend on how the text is cut into chunks. Only the longest end of the text
//! that may still become a stop string is held back. Each byte costs amortised O(1) per stop string
//! (Knuth, Morris and Pratt, 1977).

use std::error::Error;
use std::fmt;

/// Watches one sequence's text for stop strings.
#[derive(Clone, Debug)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// Text that is not yet given out.
    held: String,
    /// Which stop string ended the text.
    stopped_by: Option<usize>,
}

/// Whether a stop string has been found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopStatus {
    /// None yet.
    Going,
    /// The text ended before the stop string with this index; what follows is dropped.
    Stopped(usize),
}

/// A stop string without characters, which would stop everything at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyStopString {
    /// Which of the stop strings.
    pub index: usize,
}

impl fmt::Display for EmptyStopString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stop string {} is empty", self.index)
    }
}

impl Error for EmptyStopString {}

impl StopStrings {
    /// Prepares to watch for any of `stops`; with none, all text passes at once.
    ///
    /// # Errors
    /// Returns [`EmptyStopString`] for the first empty one.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, EmptyStopString> {
        if let Some(index) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(EmptyStopString { index });
        }
        let patterns = stops.iter().map(|stop| Pattern::new(stop.as_ref())).collect();
        Ok(Self { patterns, held: String::new(), stopped_by: None })
    }

    /// Takes the next chunk and appends to `text` what can no longer be part of a stop string.
    pub fn push(&mut self, chunk: &str, text: &mut String) -> StopStatus {
        if let Some(index) = self.stopped_by {
            return StopStatus::Stopped(index);
        }
        let num_held = self.held.len();
        self.held.push_str(chunk);
        for (offset, byte) in chunk.bytes().enumerate() {
            let mut longest: Option<(usize, usize)> = None;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                if pattern.step(byte) && longest.is_none_or(|(_, len)| pattern.len() > len) {
                    longest = Some((index, pattern.len()));
                }
            }
            if let Some((index, len)) = longest {
                text.push_str(&self.held[..num_held + offset + 1 - len]);
                self.held.clear();
                self.stopped_by = Some(index);
                return StopStatus::Stopped(index);
            }
        }
        let num_open = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let safe = self.held.len() - num_open;
        text.push_str(&self.held[..safe]);
        self.held.drain(..safe);
        StopStatus::Going
    }

    /// Appends the text held back, when no chunk follows.
    pub fn finish(&mut self, text: &mut String) {
        text.push_str(&self.held);
        self.held.clear();
    }
}

/// One stop string and how much of it the text so far ends with.
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// For each prefix, by its length: the longest shorter prefix that it ends with.
    fallback: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let mut pattern =
            Self { bytes: text.as_bytes().to_vec(), fallback: vec![0, 0], matched: 0 };
        for index in 1..pattern.bytes.len() {
            // Running the pattern over itself: its state after each byte is the fallback.
            let byte = pattern.bytes[index];
            pattern.advance(byte);
            pattern.fallback.push(pattern.matched);
        }
        pattern.matched = 0;
        pattern
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes one byte; returns whether it completes the stop string.
    fn step(&mut self, byte: u8) -> bool {
        self.advance(byte);
        self.matched == self.len()
    }

    fn advance(&mut self, byte: u8) {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
    }
}
