//! A call as newer Mistral models write it: a name, `[ARGS]`, and an object of arguments.
//!
//! Between the first two, `[CALL_ID]` and an id may stand, which is passed over; `[ARGS]` itself is
//! optional. The call begins with the opening brace.

use super::emitter::Emitter;
use super::json_call::CallStep;
use super::json_value::{JsonValue, ValueStep};
use super::lookout::{Item, Lookout};
use super::python_call::is_in_name;

/// The marker before arguments.
pub(crate) const ARGS: &str = "[ARGS]";
/// The marker before an id.
pub(crate) const CALL_ID: &str = "[CALL_ID]";

/// Reads one call, from its name on.
#[derive(Clone, Debug)]
pub(crate) struct NamedCall {
    name: String,
    lookout: Lookout,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Name,
    Id,
    Brace,
    Arguments(JsonValue),
}

impl NamedCall {
    /// Begins before the name; `text_markers` are those of this module that are no control tokens.
    pub(crate) fn new(text_markers: Vec<&'static str>) -> Self {
        Self { name: String::new(), lookout: Lookout::new(text_markers), state: State::Name }
    }

    /// Takes the next character or marker.
    pub(crate) fn push(&mut self, item: Item, out: &mut Emitter) -> CallStep {
        match (&mut self.state, item) {
            // Half of a marker is part of no name.
            (State::Name | State::Id, Item::Marker(_) | Item::Char('{'))
                if !self.lookout.held().is_empty() =>
            {
                CallStep::Malformed
            }
            (State::Name | State::Id, Item::Marker(marker)) => self.marker(marker),
            (State::Name | State::Id, Item::Char('{')) => self.begin(out),
            (State::Name | State::Id, Item::Char(c)) => {
                let mut text = String::new();
                if let Some(marker) = self.lookout.push(c, &mut text) {
                    return self.marker(marker);
                }
                if !text.chars().all(is_in_name) {
                    return CallStep::Malformed;
                }
                if matches!(self.state, State::Name) {
                    self.name.push_str(&text);
                }
                CallStep::More
            }
            (State::Brace, Item::Char('{')) => self.begin(out),
            (State::Brace, Item::Char(c)) if c.is_ascii_whitespace() => CallStep::More,
            (State::Arguments(value), Item::Char(c)) => {
                let mut piece = String::new();
                let step = value.push_to(c, &mut piece);
                out.arguments(&piece);
                match step {
                    ValueStep::More => CallStep::More,
                    ValueStep::Done => {
                        out.end_call();
                        CallStep::Ended
                    }
                    ValueStep::DoneBefore | ValueStep::Invalid => CallStep::Malformed,
                }
            }
            (State::Brace | State::Arguments(_), _) => CallStep::Malformed,
        }
    }

    fn marker(&mut self, marker: &str) -> CallStep {
        match (&self.state, marker) {
            _ if self.name.is_empty() => CallStep::Malformed,
            (State::Name, CALL_ID) => {
                self.state = State::Id;
                CallStep::More
            }
            (State::Name | State::Id, ARGS) => {
                self.state = State::Brace;
                CallStep::More
            }
            _ => CallStep::Malformed,
        }
    }

    fn begin(&mut self, out: &mut Emitter) -> CallStep {
        if self.name.is_empty() {
            return CallStep::Malformed;
        }
        let mut value = JsonValue::new();
        let step = value.push('{');
        debug_assert_eq!(step, ValueStep::More, "a brace begins an object");
        self.state = State::Arguments(value);
        out.begin_call(&self.name);
        out.arguments("{");
        CallStep::More
    }
}
