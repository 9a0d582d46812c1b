//! A call as Qwen3-Coder writes it, in tags without quotes:
//! `<function=name><parameter=key>value</parameter></function>`.
//!
//! White space between tags means nothing. A call begins with its first parameter's tag or its
//! closing tag. The type of a value is its tool's matter, see [`value_types`](super::value_types).

use super::emitter::Emitter;
use super::json_call::CallStep;
use super::json_string::quoted;
use super::known_tools::{Evidence, KnownTools};
use super::markup_value::{MarkupStep, MarkupValue};

/// Begins a call.
pub(crate) const FUNCTION: &str = "<function=";
/// Begins a parameter.
const PARAMETER: &str = "<parameter=";
/// Ends a call.
const END_FUNCTION: &str = "</function>";

/// Reads one call.
#[derive(Clone, Debug)]
pub(crate) struct MarkupCall {
    evidence: Evidence,
    name: String,
    num_parameters: usize,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Before the call's tag, of which so much has come.
    Open(String),
    Name,
    /// Before a parameter or the end; so much of the next tag has come.
    Between(String),
    Key(String),
    Value(MarkupValue),
}

impl MarkupCall {
    /// Begins before the call's tag.
    pub(crate) fn new(evidence: Evidence) -> Self {
        Self { state: State::Open(String::new()), ..Self::in_tag(evidence) }
    }

    /// Begins inside the call's tag, before the name.
    pub(crate) fn in_tag(evidence: Evidence) -> Self {
        Self { evidence, name: String::new(), num_parameters: 0, state: State::Name }
    }

    /// Returns the characters that may still be text again, since the last thing given out.
    pub(crate) fn held(&self) -> String {
        match &self.state {
            State::Value(value) => value.held(),
            State::Open(tag) | State::Between(tag) => tag.clone(),
            State::Name | State::Key(_) => String::new(),
        }
    }

    /// Takes the next character.
    pub(crate) fn push(&mut self, c: char, known: &KnownTools, out: &mut Emitter) -> CallStep {
        match &mut self.state {
            State::Open(tag) => {
                tag.push(c);
                match tag.as_str() {
                    FUNCTION => self.go_on(State::Name),
                    tag if FUNCTION.starts_with(tag) => CallStep::More,
                    _ => CallStep::Malformed,
                }
            }
            State::Name if c == '>' && known.accept(&self.name, self.evidence) => {
                self.go_on(State::Between(String::new()))
            }
            State::Name if is_in_attribute(c) => {
                self.name.push(c);
                CallStep::More
            }
            State::Name => CallStep::Malformed,
            State::Between(tag) if tag.is_empty() && c.is_whitespace() => CallStep::More,
            State::Between(tag) => {
                tag.push(c);
                match tag.as_str() {
                    PARAMETER => self.go_on(State::Key(String::new())),
                    END_FUNCTION => self.end(out),
                    tag if [PARAMETER, END_FUNCTION].iter().any(|t| t.starts_with(tag)) => {
                        CallStep::More
                    }
                    _ => CallStep::Malformed,
                }
            }
            State::Key(key) if c == '>' && !key.is_empty() => {
                let key = std::mem::take(key);
                self.begin_value(&key, known, out)
            }
            State::Key(key) if is_in_attribute(c) => {
                key.push(c);
                CallStep::More
            }
            State::Key(_) => CallStep::Malformed,
            State::Value(value) => {
                let mut json = String::new();
                let step = value.push(c, &mut json);
                out.arguments(&json);
                match step {
                    MarkupStep::More => CallStep::More,
                    MarkupStep::Ended => self.go_on(State::Between(String::new())),
                }
            }
        }
    }

    fn begin_value(&mut self, key: &str, known: &KnownTools, out: &mut Emitter) -> CallStep {
        if self.num_parameters == 0 {
            out.begin_call(&self.name);
        }
        let value = MarkupValue::new(known.types(&self.name, key));
        let separator = if self.num_parameters == 0 { "{" } else { ", " };
        out.arguments(&format!("{separator}{}: {}", quoted(key), value.opening()));
        self.num_parameters += 1;
        self.go_on(State::Value(value))
    }

    fn end(&mut self, out: &mut Emitter) -> CallStep {
        if self.num_parameters == 0 {
            out.begin_call(&self.name);
            out.arguments("{");
        }
        out.arguments("}");
        out.end_call();
        CallStep::Ended
    }

    fn go_on(&mut self, state: State) -> CallStep {
        self.state = state;
        CallStep::More
    }
}

/// Tells whether a name or a key can go on with `c`.
fn is_in_attribute(c: char) -> bool {
    !matches!(c, '<' | '>' | '\n' | '\r')
}
