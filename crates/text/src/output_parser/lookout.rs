//! Markers in a model's output, found character by character.
//!
//! A marker is a control token where the vocabulary has one for it, and then only that token
//! counts; else it is a text, found here across the borders of tokens. What may still become a
//! marker is held back and no more. No marker of a set may contain another anywhere but at its
//! start; of two that begin alike, the shorter is found.

/// What a model's output is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A character of a token's text.
    Char(char),
    /// A control token that is a marker.
    Marker(&'static str),
}

/// Looks out for a set of markers that are texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookout {
    markers: Vec<&'static str>,
    /// The end of the text so far, which is the beginning of a marker.
    held: String,
}

impl Lookout {
    /// Looks out for `markers`.
    pub(crate) fn new(markers: Vec<&'static str>) -> Self {
        Self { markers, held: String::new() }
    }

    /// Takes the next character and appends to `text` what is part of no marker. Returns the marker
    /// that the character completes.
    pub(crate) fn push(&mut self, c: char, text: &mut String) -> Option<&'static str> {
        self.held.push(c);
        loop {
            if let Some(marker) = self.markers.iter().copied().find(|marker| *marker == self.held) {
                self.held.clear();
                return Some(marker);
            }
            let may_become = |marker: &&str| marker.starts_with(&self.held);
            if self.held.is_empty() || self.markers.iter().any(may_become) {
                return None;
            }
            text.push(self.held.remove(0));
        }
    }

    /// Returns the text that is held back.
    pub(crate) fn held(&self) -> &str {
        &self.held
    }

    /// Appends the text that is held back.
    pub(crate) fn release(&mut self, text: &mut String) {
        text.push_str(&self.held);
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(markers: &[&'static str], text: &str, expected: &[&str], rest: &str) {
        let mut lookout = Lookout::new(markers.to_vec());
        let mut parts = Vec::new();
        let mut released = String::new();
        for c in text.chars() {
            if let Some(marker) = lookout.push(c, &mut released) {
                parts.push(std::mem::take(&mut released));
                parts.push(marker.to_owned());
            }
        }
        lookout.release(&mut released);
        assert_eq!(parts, expected, "{text:?}");
        assert_eq!(released, rest, "{text:?}");
    }

    #[test]
    fn markers_are_found_and_text_around_them_passes() {
        check(&["<a>", "<ab>"], "x<a>y<ab>z", &["x", "<a>", "y", "<ab>"], "z");
        check(&["<a>"], "<<a><", &["<", "<a>"], "<");
        check(&["aab"], "aaab", &["a", "aab"], "");
        check(&[], "<a>", &[], "<a>");
    }

    #[test]
    fn only_what_may_become_a_marker_is_held() {
        let mut lookout = Lookout::new(vec!["<tool>"]);
        let mut text = String::new();
        for c in "a<to".chars() {
            assert_eq!(lookout.push(c, &mut text), None);
        }
        assert_eq!(text, "a");
        assert_eq!(lookout.push('p', &mut text), None);
        assert_eq!(text, "a<top");
    }
}
