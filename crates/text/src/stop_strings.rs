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
    stop_text: StopText,
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
    /// The stop string with this index ended the text; what follows is dropped.
    Stopped(usize),
}

/// Whether a stop string is part of the text that it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopText {
    /// The text ends before it.
    #[default]
    Dropped,
    /// The text ends with it.
    Kept,
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
        let stop_text = StopText::default();
        Ok(Self { patterns, stop_text, held: String::new(), stopped_by: None })
    }

    /// Returns the same watcher, which treats the stop string that it finds as told.
    #[must_use]
    pub fn with_stop_text(self, stop_text: StopText) -> Self {
        Self { stop_text, ..self }
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
                let end = num_held + offset + 1;
                text.push_str(match self.stop_text {
                    StopText::Dropped => &self.held[..end - len],
                    StopText::Kept => &self.held[..end],
                });
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

    /// Appends the text held back, when what follows is no text: no stop string goes across it.
    pub fn interrupt(&mut self, text: &mut String) {
        self.finish(text);
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes `chunks` and returns what came out of each, the flush at the end, and what stopped it.
    fn run(stops: &[&str], chunks: &[&str]) -> (Vec<String>, Option<usize>) {
        let mut watcher = StopStrings::new(stops).unwrap();
        let mut texts = Vec::new();
        let mut stopped = None;
        for chunk in chunks {
            let mut text = String::new();
            if let StopStatus::Stopped(index) = watcher.push(chunk, &mut text) {
                stopped = Some(index);
            }
            texts.push(text);
        }
        let mut rest = String::new();
        watcher.finish(&mut rest);
        texts.push(rest);
        (texts, stopped)
    }

    fn check(stops: &[&str], chunks: &[&str], texts: &[&str], stopped: Option<usize>) {
        let expected = (texts.iter().map(|text| (*text).to_owned()).collect(), stopped);
        assert_eq!(run(stops, chunks), expected, "{stops:?} {chunks:?}");
    }

    #[test]
    fn a_stop_string_is_found_across_chunks_and_nothing_of_it_comes_out() {
        check(&["DEF"], &["ABC", "D", "E", "F", "G"], &["ABC", "", "", "", "", ""], Some(0));
        check(&["DEF"], &["ABCDEFG"], &["ABC", ""], Some(0));
        check(&["é!"], &["caf", "é", "!x"], &["caf", "", "", ""], Some(0));
    }

    #[test]
    fn only_what_may_still_become_a_stop_string_is_held_back() {
        check(&["aab"], &["xaa", "a", "c"], &["x", "a", "aac", ""], None);
        check(&["aab"], &["aaa", "ab"], &["a", "a", ""], Some(0));
        check(&["\n\nUser:"], &["a\n", "\nU", "x"], &["a", "", "\n\nUx", ""], None);
        check(&["stop"], &["st"], &["", "st"], None);
        check(&[], &["anything"], &["anything", ""], None);
    }

    #[test]
    fn the_match_that_is_complete_first_wins_and_then_the_longest() {
        check(&["abcd", "bc"], &["abcd"], &["a", ""], Some(1));
        check(&["c", "bc"], &["abc"], &["a", ""], Some(1));
        check(&["b", "b"], &["ab"], &["a", ""], Some(0));
    }

    #[test]
    fn a_stop_string_ends_the_text_where_it_is_kept() {
        let watcher = StopStrings::new(&["bc", "abcd"]).unwrap();
        let mut watcher = watcher.with_stop_text(StopText::Kept);
        let mut text = String::new();
        assert_eq!(watcher.push("xa", &mut text), StopStatus::Going);
        assert_eq!(text, "x");
        assert_eq!(watcher.push("bcd", &mut text), StopStatus::Stopped(0));
        watcher.finish(&mut text);
        assert_eq!(text, "xabc");
    }

    #[test]
    fn no_stop_string_goes_across_an_interruption() {
        let mut watcher = StopStrings::new(&["abc"]).unwrap();
        let mut text = String::new();
        assert_eq!(watcher.push("xab", &mut text), StopStatus::Going);
        watcher.interrupt(&mut text);
        assert_eq!(text, "xab");
        assert_eq!(watcher.push("cab", &mut text), StopStatus::Going);
        assert_eq!(text, "xabc");
        assert_eq!(watcher.push("c", &mut text), StopStatus::Stopped(0));
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        assert_eq!(StopStrings::new(&["a", ""]).unwrap_err(), EmptyStopString { index: 1 });
    }

    #[test]
    fn how_the_text_is_cut_does_not_matter() {
        let seed: u64 = std::env::var("TEXT_SEED").map_or(1, |seed| seed.parse().unwrap());
        println!("TEXT_SEED={seed}");
        let mut state = seed;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        let letters = ["a", "b", "é"];
        for _ in 0..20_000 {
            let mut word = |most| -> String {
                (0..1 + next(most)).map(|_| letters[next(letters.len())]).collect()
            };
            let stops: Vec<String> = (0..3).map(|_| word(4)).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let text = word(12);
            // The obvious way: the shortest beginning of the text that ends with a stop string.
            let found = text
                .char_indices()
                .map(|(start, c)| &text[..start + c.len_utf8()])
                .find_map(|begun| {
                    let ends = stops.iter().filter(|stop| begun.ends_with(**stop));
                    ends.map(|stop| stop.len()).max().map(|len| &begun[..begun.len() - len])
                });
            let mut chunks = vec![String::new()];
            for c in text.chars() {
                if next(2) == 0 {
                    chunks.push(String::new());
                }
                chunks.last_mut().unwrap().push(c);
            }
            let chunks: Vec<&str> = chunks.iter().map(String::as_str).collect();
            let (texts, stopped) = run(&stops, &chunks);
            assert_eq!(texts.concat(), found.unwrap_or(&text), "{stops:?} {chunks:?}");
            assert_eq!(stopped.is_some(), found.is_some());
        }
    }
}
