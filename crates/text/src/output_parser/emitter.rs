//! What a parser gives out: events, with neighbouring pieces of one kind joined.
//!
//! White space between text and calls is part of the markup: it is held until text follows, and
//! dropped where calls are all that came before or nothing follows them.

use super::OutputEvent;

/// Collects events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Emitter {
    events: Vec<OutputEvent>,
    num_calls: usize,
    /// Counts what was given out about calls.
    num_steps: usize,
    has_content: bool,
    /// White space that may border on a call.
    spaces: String,
}

impl Emitter {
    /// Takes the events that have come up.
    pub(crate) fn take(&mut self) -> Vec<OutputEvent> {
        std::mem::take(&mut self.events)
    }

    /// Adds a character to the answer's text.
    pub(crate) fn content(&mut self, c: char) {
        if c.is_whitespace() {
            self.spaces.push(c);
            return;
        }
        let mut text = std::mem::take(&mut self.spaces);
        if self.num_calls > 0 && !self.has_content {
            text.clear();
        }
        text.push(c);
        self.has_content = true;
        self.text(&text);
    }

    /// Ends the output.
    pub(crate) fn finish(&mut self) {
        let spaces = std::mem::take(&mut self.spaces);
        if self.num_calls == 0 && !spaces.is_empty() {
            self.text(&spaces);
        }
    }

    fn text(&mut self, piece: &str) {
        match self.events.last_mut() {
            Some(OutputEvent::Content(text)) => text.push_str(piece),
            _ => self.events.push(OutputEvent::Content(piece.to_owned())),
        }
    }

    /// Begins the next call.
    pub(crate) fn begin_call(&mut self, name: &str) {
        let event = OutputEvent::CallBegun { index: self.num_calls, name: name.to_owned() };
        self.events.push(event);
        self.num_calls += 1;
        self.num_steps += 1;
    }

    /// Adds to the arguments of the call that was begun last.
    pub(crate) fn arguments(&mut self, piece: &str) {
        if piece.is_empty() {
            return;
        }
        self.num_steps += 1;
        match self.events.last_mut() {
            Some(OutputEvent::Arguments { text, .. }) => text.push_str(piece),
            _ => self
                .events
                .push(OutputEvent::Arguments { index: self.num_calls - 1, text: piece.to_owned() }),
        }
    }

    /// Ends the call that was begun last.
    pub(crate) fn end_call(&mut self) {
        self.num_steps += 1;
        self.events.push(OutputEvent::CallEnded { index: self.num_calls - 1 });
    }

    /// Returns a number that grows with everything that is given out about calls.
    pub(crate) fn progress(&self) -> usize {
        self.num_steps
    }
}
