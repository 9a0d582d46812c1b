//! A call as Python writes it: `name(key=value, …)`, with literals as values.
//!
//! A call begins with its first whole argument or its closing bracket, and arguments come out as
//! JSON, one whole argument at a time: a value's text says only at its end whether it is a literal.

use super::emitter::Emitter;
use super::json_call::CallStep;
use super::json_string::quoted;
use super::json_value::ValueStep;
use super::known_tools::{Evidence, KnownTools};
use super::python_value::PythonValue;

/// Reads one call, from its name on.
#[derive(Clone, Debug)]
pub(crate) struct PythonCall {
    name: String,
    num_arguments: usize,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Name,
    KeyOrEnd,
    Key(String),
    Equals(String),
    Value(String, PythonValue),
    CommaOrEnd,
}

/// Tells whether a name can begin with `c`.
pub(crate) fn begins_name(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

/// Tells whether a name can go on with `c`: Python's letters, and what names of tools may hold.
pub(crate) fn is_in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

impl PythonCall {
    /// Begins before the name.
    pub(crate) fn new() -> Self {
        Self { name: String::new(), num_arguments: 0, state: State::Name }
    }

    /// Takes the next character.
    pub(crate) fn push(&mut self, c: char, known: &KnownTools, out: &mut Emitter) -> CallStep {
        match std::mem::replace(&mut self.state, State::CommaOrEnd) {
            State::Name if is_in_name(c) => {
                self.name.push(c);
                self.go_on(State::Name)
            }
            State::Name if c == '(' && known.accept(&self.name, Evidence::Bare) => {
                self.go_on(State::KeyOrEnd)
            }
            State::Name => CallStep::Malformed,
            State::KeyOrEnd if c.is_ascii_whitespace() => self.go_on(State::KeyOrEnd),
            State::KeyOrEnd if begins_name(c) => self.go_on(State::Key(c.to_string())),
            State::Key(mut key) if is_in_name(c) => {
                key.push(c);
                self.go_on(State::Key(key))
            }
            State::Key(key) | State::Equals(key) if c.is_ascii_whitespace() => {
                self.go_on(State::Equals(key))
            }
            State::Key(key) | State::Equals(key) if c == '=' => {
                self.go_on(State::Value(key, PythonValue::new()))
            }
            State::Key(_) | State::Equals(_) => CallStep::Malformed,
            State::Value(key, mut value) => match value.push(c) {
                ValueStep::More => self.go_on(State::Value(key, value)),
                ValueStep::Invalid => CallStep::Malformed,
                ValueStep::Done => {
                    self.end_argument(&key, &value.into_json(), out);
                    CallStep::More
                }
                ValueStep::DoneBefore => {
                    self.end_argument(&key, &value.into_json(), out);
                    self.push(c, known, out)
                }
            },
            State::CommaOrEnd if c.is_ascii_whitespace() => CallStep::More,
            State::CommaOrEnd if c == ',' => self.go_on(State::KeyOrEnd),
            State::KeyOrEnd | State::CommaOrEnd if c == ')' => {
                if self.num_arguments == 0 {
                    out.begin_call(&self.name);
                    out.arguments("{");
                }
                out.arguments("}");
                out.end_call();
                CallStep::Ended
            }
            State::KeyOrEnd | State::CommaOrEnd => CallStep::Malformed,
        }
    }

    fn end_argument(&mut self, key: &str, json: &str, out: &mut Emitter) {
        if self.num_arguments == 0 {
            out.begin_call(&self.name);
        }
        let opening = if self.num_arguments == 0 { "{" } else { ", " };
        out.arguments(&format!("{opening}{}: {json}", quoted(key)));
        self.num_arguments += 1;
        self.state = State::CommaOrEnd;
    }

    fn go_on(&mut self, state: State) -> CallStep {
        self.state = state;
        CallStep::More
    }
}
