//! Tells reasoning from the answer behind it.
//!
//! Reasoning stands before everything else, or it is none: a marker further on is text. White space
//! at both of its ends, and before the answer, is part of the markup, unless it is known what stands
//! there. One character or marker at a
//! time, so the result does not depend on how the output was cut into chunks.

use super::lookout::{Item, Lookout};
use super::reasoning_format::ReasoningFormat;

/// Splits one output.
#[derive(Clone, Debug)]
pub(crate) struct Reasoning {
    start: &'static str,
    end: &'static str,
    state: State,
    lookout: Lookout,
    /// White space that a marker may follow.
    spaces: String,
    has_text: bool,
    /// What stands between the reasoning and the answer, and nothing before both; `None` where it may
    /// be any white space.
    gap: Option<&'static str>,
    /// Characters of white space behind the reasoning that are part of the markup.
    num_gap_chars: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come.
    Start,
    Inside,
    /// Behind reasoning, where nothing but white space has come.
    Behind,
    Answer,
}

/// What an item turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A character of the reasoning.
    Reasoning(char),
    /// Part of the answer.
    Answer(Item),
}

/// Whether the prompt ends inside reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The prompt has begun it.
    Begun,
    /// The model begins it, if it reasons.
    Open,
}

impl Reasoning {
    /// Starts at the beginning of an output; `is_control` tells which markers are control tokens.
    pub(crate) fn new(
        format: ReasoningFormat,
        start: ReasoningStart,
        is_control: impl Fn(&str) -> bool,
    ) -> Self {
        let markers = [format.start(), format.end()].into_iter();
        Self {
            start: format.start(),
            end: format.end(),
            state: if format.begins_inside(start) { State::Inside } else { State::Start },
            lookout: Lookout::new(markers.filter(|marker| !is_control(marker)).collect()),
            spaces: String::new(),
            has_text: false,
            gap: None,
            num_gap_chars: usize::MAX,
        }
    }

    /// Takes nothing for markup around the reasoning but `gap`, white space, behind it.
    pub(crate) fn followed_by(self, gap: &'static str) -> Self {
        Self { gap: Some(gap), num_gap_chars: gap.len(), ..self }
    }

    /// Tells whether the next character is part of the reasoning unless it ends it.
    pub(crate) fn is_inside(&self) -> bool {
        self.state == State::Inside
    }

    /// Takes the next character or marker and gives out what it completes.
    pub(crate) fn push(&mut self, item: Item, give: &mut impl FnMut(Part)) {
        if self.state == State::Answer {
            return give(Part::Answer(item));
        }
        let mut text = String::new();
        let marker = match item {
            Item::Char(c) => self.lookout.push(c, &mut text),
            Item::Marker(marker) => {
                self.lookout.release(&mut text);
                Some(marker)
            }
        };
        text.chars().for_each(|c| self.take(c, give));
        if let Some(marker) = marker {
            self.marker(marker, item, give);
        }
        if self.state == State::Answer {
            let mut rest = String::new();
            self.lookout.release(&mut rest);
            rest.chars().for_each(|c| give(Part::Answer(Item::Char(c))));
        }
    }

    /// Ends the output.
    pub(crate) fn finish(&mut self, give: &mut impl FnMut(Part)) {
        let mut text = String::new();
        self.lookout.release(&mut text);
        text.chars().for_each(|c| self.take(c, give));
        if self.state == State::Start {
            self.give_spaces(give);
        }
    }

    fn marker(&mut self, marker: &'static str, item: Item, give: &mut impl FnMut(Part)) {
        match self.state {
            State::Start if marker == self.start => {
                self.state = State::Inside;
                self.spaces.clear();
            }
            // The model repeats what the prompt ends with.
            State::Inside if marker == self.start && !self.has_text => self.spaces.clear(),
            State::Inside if marker == self.end => {
                self.state = State::Behind;
                self.spaces.clear();
            }
            State::Start | State::Inside | State::Behind | State::Answer => match item {
                Item::Char(_) => marker.chars().for_each(|c| self.take(c, give)),
                Item::Marker(_) if self.state == State::Inside => {}
                Item::Marker(_) => {
                    self.give_spaces(give);
                    self.state = State::Answer;
                    give(Part::Answer(item));
                }
            },
        }
    }

    /// Takes a character that is part of no marker.
    fn take(&mut self, c: char, give: &mut impl FnMut(Part)) {
        let is_markup = match self.state {
            State::Start => self.gap.is_none(),
            State::Inside => true,
            State::Behind => self.num_gap_chars > 0,
            State::Answer => false,
        };
        if is_markup && c.is_whitespace() {
            if self.state == State::Behind {
                self.num_gap_chars -= 1;
            } else {
                self.spaces.push(c);
            }
            return;
        }
        match self.state {
            State::Inside => {
                let spaces = std::mem::take(&mut self.spaces);
                if self.has_text {
                    spaces.chars().for_each(|c| give(Part::Reasoning(c)));
                }
                self.has_text = true;
                give(Part::Reasoning(c));
            }
            State::Start | State::Behind | State::Answer => {
                self.give_spaces(give);
                self.state = State::Answer;
                give(Part::Answer(Item::Char(c)));
            }
        }
    }

    fn give_spaces(&mut self, give: &mut impl FnMut(Part)) {
        let spaces = std::mem::take(&mut self.spaces);
        spaces.chars().for_each(|c| give(Part::Answer(Item::Char(c))));
    }
}
