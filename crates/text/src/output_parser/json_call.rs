//! A call as one JSON object: a name, and an object of arguments under one of several keys.
//!
//! A call begins as soon as its name and the beginning of its arguments are there; from then on the
//! arguments come out as the model writes them, character by character. Two habits of models are
//! set right, so that what comes out parses: raw control characters inside strings are escaped,
//! and arguments that are a string with an object in it, or with nothing, are decoded. OpenAI's
//! nesting, where name and arguments lie in an object `function`, is read too.

use super::emitter::Emitter;
use super::json_string::{JsonString, StringStep};
use super::json_value::{JsonValue, ValueStep, is_space};
use super::known_tools::{Evidence, KnownTools};

/// What a character did to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStep {
    /// The call goes on.
    More,
    /// The character was the call's last.
    Ended,
    /// This is no call, or it breaks off here; the character is not part of it.
    Malformed,
}

/// Keys beside name and arguments that unmarked calls may have.
const HARMLESS_KEYS: [&str; 3] = ["type", "id", "call_id"];

/// Reads one object, from its opening brace on.
#[derive(Clone, Debug)]
pub(crate) struct JsonCall {
    evidence: Evidence,
    state: State,
    is_nested: bool,
    name: Option<String>,
    /// Arguments that came before the name.
    early_arguments: String,
    has_arguments: bool,
    has_begun: bool,
}

#[derive(Clone, Debug)]
enum State {
    Open,
    FirstKeyOrEnd,
    Key,
    InKey(JsonString, String),
    Colon(Key),
    Value(Key),
    InName(JsonString, String),
    /// Arguments that are an object.
    InArguments(JsonValue),
    /// Arguments that are `null`, of which this is missing.
    InNull(&'static str),
    /// Arguments that are a string.
    InArgumentText(JsonString, Quoted),
    InOther(JsonValue),
    CommaOrEnd,
}

/// How much of the object has come that a string holds.
#[derive(Clone, Debug)]
enum Quoted {
    Before,
    Inside(JsonValue),
    Behind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Name,
    Arguments,
    Function,
    Other,
}

impl JsonCall {
    /// Begins before the opening brace.
    pub(crate) fn new(evidence: Evidence) -> Self {
        Self {
            evidence,
            state: State::Open,
            is_nested: false,
            name: None,
            early_arguments: String::new(),
            has_arguments: false,
            has_begun: false,
        }
    }

    /// Takes the next character.
    pub(crate) fn push(&mut self, c: char, known: &KnownTools, out: &mut Emitter) -> CallStep {
        match &mut self.state {
            State::Open if c == '{' => self.go_on(State::FirstKeyOrEnd),
            State::Open => CallStep::Malformed,
            State::FirstKeyOrEnd | State::Key | State::Colon(_) | State::CommaOrEnd => {
                self.between(c, out)
            }
            State::InKey(string, text) => match string.push(c, text) {
                StringStep::More => CallStep::More,
                StringStep::Invalid => CallStep::Malformed,
                StringStep::Done => {
                    let text = std::mem::take(text);
                    self.end_key(&text)
                }
            },
            State::InName(string, text) => match string.push(c, text) {
                StringStep::More => CallStep::More,
                StringStep::Invalid => CallStep::Malformed,
                StringStep::Done => {
                    let name = std::mem::take(text);
                    self.end_name(name, known, out)
                }
            },
            State::Value(key) => {
                let key = *key;
                if is_space(c) { CallStep::More } else { self.begin_value(key, c, out) }
            }
            State::InArguments(_) => self.in_arguments(c, out),
            State::InNull(rest) => {
                let rest = *rest;
                self.in_null(rest, c, out)
            }
            State::InArgumentText(..) => self.in_argument_text(c, out),
            State::InOther(value) => match value.push(c) {
                ValueStep::More => CallStep::More,
                ValueStep::Done => self.go_on(State::CommaOrEnd),
                ValueStep::DoneBefore => {
                    self.state = State::CommaOrEnd;
                    self.between(c, out)
                }
                ValueStep::Invalid => CallStep::Malformed,
            },
        }
    }

    fn between(&mut self, c: char, out: &mut Emitter) -> CallStep {
        match (&self.state, c) {
            _ if is_space(c) => CallStep::More,
            (State::FirstKeyOrEnd | State::Key, '"') => {
                self.go_on(State::InKey(JsonString::default(), String::new()))
            }
            (State::Colon(key), ':') => self.go_on(State::Value(*key)),
            (State::CommaOrEnd, ',') => self.go_on(State::Key),
            (State::FirstKeyOrEnd | State::CommaOrEnd, '}') => self.close(out),
            _ => CallStep::Malformed,
        }
    }

    fn end_key(&mut self, text: &str) -> CallStep {
        let key = match text {
            "name" if self.name.is_none() => Key::Name,
            "arguments" | "parameters" if !self.has_arguments => Key::Arguments,
            "name" | "arguments" | "parameters" => return CallStep::Malformed,
            "function" if !self.is_nested => Key::Function,
            _ if self.evidence == Evidence::Bare && !HARMLESS_KEYS.contains(&text) => {
                return CallStep::Malformed;
            }
            _ => Key::Other,
        };
        self.go_on(State::Colon(key))
    }

    fn begin_value(&mut self, key: Key, c: char, out: &mut Emitter) -> CallStep {
        match (key, c) {
            (Key::Name, '"') => self.go_on(State::InName(JsonString::default(), String::new())),
            (Key::Function, '{') => {
                self.is_nested = true;
                self.go_on(State::FirstKeyOrEnd)
            }
            (Key::Arguments, '{') => {
                self.state = State::InArguments(JsonValue::new());
                self.begin_arguments(out);
                self.in_arguments(c, out)
            }
            (Key::Arguments, 'n') => self.go_on(State::InNull("ull")),
            (Key::Arguments, '"') => {
                self.go_on(State::InArgumentText(JsonString::default(), Quoted::Before))
            }
            (Key::Other, _) => {
                let mut value = JsonValue::new();
                let step = value.push(c);
                match step {
                    ValueStep::More => self.go_on(State::InOther(value)),
                    ValueStep::Done | ValueStep::DoneBefore | ValueStep::Invalid => {
                        CallStep::Malformed
                    }
                }
            }
            (Key::Name | Key::Function | Key::Arguments, _) => CallStep::Malformed,
        }
    }

    fn in_arguments(&mut self, c: char, out: &mut Emitter) -> CallStep {
        let State::InArguments(value) = &mut self.state else { return CallStep::Malformed };
        let mut piece = String::new();
        let next = match value.push_to(c, &mut piece) {
            ValueStep::More => None,
            ValueStep::Done => Some(State::CommaOrEnd),
            ValueStep::DoneBefore | ValueStep::Invalid => return CallStep::Malformed,
        };
        self.give(&piece, out);
        next.map_or(CallStep::More, |state| self.go_on(state))
    }

    /// Takes a character of arguments that are a string.
    fn in_argument_text(&mut self, c: char, out: &mut Emitter) -> CallStep {
        let state = std::mem::replace(&mut self.state, State::CommaOrEnd);
        let State::InArgumentText(mut string, mut quoted) = state else {
            return CallStep::Malformed;
        };
        let mut text = String::new();
        let step = string.push(c, &mut text);
        for c in text.chars() {
            let mut value = match quoted {
                Quoted::Before | Quoted::Behind if is_space(c) => continue,
                Quoted::Before if c == '{' => {
                    self.begin_arguments(out);
                    JsonValue::new()
                }
                Quoted::Inside(value) => value,
                Quoted::Before | Quoted::Behind => return CallStep::Malformed,
            };
            let mut piece = String::new();
            quoted = match value.push_to(c, &mut piece) {
                ValueStep::More => Quoted::Inside(value),
                ValueStep::Done => Quoted::Behind,
                ValueStep::DoneBefore | ValueStep::Invalid => return CallStep::Malformed,
            };
            self.give(&piece, out);
        }
        match (step, quoted) {
            (StringStep::More, quoted) => self.go_on(State::InArgumentText(string, quoted)),
            (StringStep::Done, Quoted::Before) => {
                self.give_none(out);
                CallStep::More
            }
            (StringStep::Done, Quoted::Behind) => CallStep::More,
            (StringStep::Done, Quoted::Inside(_)) | (StringStep::Invalid, _) => CallStep::Malformed,
        }
    }

    fn in_null(&mut self, rest: &'static str, c: char, out: &mut Emitter) -> CallStep {
        match rest.strip_prefix(c) {
            None => CallStep::Malformed,
            Some("") => {
                self.give_none(out);
                self.go_on(State::CommaOrEnd)
            }
            Some(rest) => self.go_on(State::InNull(rest)),
        }
    }

    fn end_name(&mut self, name: String, known: &KnownTools, out: &mut Emitter) -> CallStep {
        if !known.accept(&name, self.evidence) {
            return CallStep::Malformed;
        }
        self.name = Some(name);
        if self.has_arguments {
            self.begin(out);
        }
        self.go_on(State::CommaOrEnd)
    }

    fn begin_arguments(&mut self, out: &mut Emitter) {
        self.has_arguments = true;
        self.begin(out);
    }

    /// Begins the call if its name is known.
    fn begin(&mut self, out: &mut Emitter) {
        if let Some(name) = &self.name
            && !self.has_begun
        {
            self.has_begun = true;
            out.begin_call(name);
            out.arguments(&std::mem::take(&mut self.early_arguments));
        }
    }

    fn give(&mut self, piece: &str, out: &mut Emitter) {
        if self.has_begun { out.arguments(piece) } else { self.early_arguments.push_str(piece) }
    }

    /// Gives the arguments of a call that has none.
    fn give_none(&mut self, out: &mut Emitter) {
        self.begin_arguments(out);
        self.give("{}", out);
    }

    fn close(&mut self, out: &mut Emitter) -> CallStep {
        if self.is_nested {
            self.is_nested = false;
            return self.go_on(State::CommaOrEnd);
        }
        if self.name.is_none() || (!self.has_arguments && self.evidence == Evidence::Bare) {
            return CallStep::Malformed;
        }
        if !self.has_arguments {
            self.give_none(out);
        }
        out.end_call();
        CallStep::Ended
    }

    fn go_on(&mut self, state: State) -> CallStep {
        self.state = state;
        CallStep::More
    }
}
