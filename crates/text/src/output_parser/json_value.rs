//! One JSON value (RFC 8259), checked character by character.
//!
//! Line breaks and other control characters inside strings are let through, because models write
//! them, and escaped in what is passed on. Costs O(1) per character, and memory for the containers
//! that are open.

use super::json_string::push_escaped;

/// Containers inside one another at most; common parsers take no more.
const MAX_DEPTH: usize = 128;

/// What a character did to a value that is read one character at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueStep {
    /// The value goes on.
    More,
    /// The character was the value's last.
    Done,
    /// The value ended before the character, which is not part of it.
    DoneBefore,
    /// The value cannot go on like this.
    Invalid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    Object,
    Array,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    FirstItemOrEnd,
    Key,
    FirstKeyOrEnd,
    Colon,
    CommaOrEnd,
    /// In a string, a key or a value by the flag.
    String(Place),
    Escape(Place),
    /// In a `\u` escape that lacks so many digits.
    Hex(Place, u8),
    Number(Number),
    /// In `true`, `false` or `null`, of which this is missing.
    Literal(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Key,
    Value,
}

/// Checks one value.
#[derive(Clone, Debug)]
pub(crate) struct JsonValue {
    open: Vec<Container>,
    state: State,
}

impl JsonValue {
    /// Begins before the value's first character.
    pub(crate) fn new() -> Self {
        Self { open: Vec::new(), state: State::Value }
    }

    /// As [`JsonValue::push`]; a character that is part of the value is appended to `json`, as JSON
    /// has it.
    pub(crate) fn push_to(&mut self, c: char, json: &mut String) -> ValueStep {
        let is_raw_control = matches!(self.state, State::String(_)) && c < ' ';
        let step = self.push(c);
        match step {
            ValueStep::More | ValueStep::Done if is_raw_control => push_escaped(c, json),
            ValueStep::More | ValueStep::Done => json.push(c),
            ValueStep::DoneBefore | ValueStep::Invalid => {}
        }
        step
    }

    /// Takes the next character; after any step but [`ValueStep::More`] none may follow.
    pub(crate) fn push(&mut self, c: char) -> ValueStep {
        match self.state {
            State::String(place) => self.in_string(c, place),
            State::Escape(place) => self.in_escape(c, place),
            State::Hex(place, missing) => match (c.is_ascii_hexdigit(), missing) {
                (false, _) => ValueStep::Invalid,
                (true, 1) => self.go_on(State::String(place)),
                (true, _) => self.go_on(State::Hex(place, missing - 1)),
            },
            State::Number(number) => self.in_number(c, number),
            State::Literal(rest) => match rest.strip_prefix(c) {
                None => ValueStep::Invalid,
                Some("") => self.end_value(),
                Some(rest) => self.go_on(State::Literal(rest)),
            },
            State::Value
            | State::FirstItemOrEnd
            | State::Key
            | State::FirstKeyOrEnd
            | State::Colon
            | State::CommaOrEnd => self.between(c),
        }
    }

    fn between(&mut self, c: char) -> ValueStep {
        if is_space(c) {
            return ValueStep::More;
        }
        match (self.state, c) {
            (State::FirstItemOrEnd, ']') | (State::FirstKeyOrEnd, '}') => self.close(),
            (State::Value | State::FirstItemOrEnd, _) => self.begin_value(c),
            (State::Key | State::FirstKeyOrEnd, '"') => self.go_on(State::String(Place::Key)),
            (State::Colon, ':') => self.go_on(State::Value),
            (State::CommaOrEnd, _) => match (self.open.last(), c) {
                (Some(Container::Object), ',') => self.go_on(State::Key),
                (Some(Container::Array), ',') => self.go_on(State::Value),
                (Some(Container::Object), '}') | (Some(Container::Array), ']') => self.close(),
                _ => ValueStep::Invalid,
            },
            _ => ValueStep::Invalid,
        }
    }

    fn begin_value(&mut self, c: char) -> ValueStep {
        let state = match c {
            '{' | '[' if self.open.len() == MAX_DEPTH => return ValueStep::Invalid,
            '{' => {
                self.open.push(Container::Object);
                State::FirstKeyOrEnd
            }
            '[' => {
                self.open.push(Container::Array);
                State::FirstItemOrEnd
            }
            '"' => State::String(Place::Value),
            '-' => State::Number(Number::Minus),
            '0' => State::Number(Number::Zero),
            '1'..='9' => State::Number(Number::Integer),
            't' => State::Literal("rue"),
            'f' => State::Literal("alse"),
            'n' => State::Literal("ull"),
            _ => return ValueStep::Invalid,
        };
        self.go_on(state)
    }

    fn in_string(&mut self, c: char, place: Place) -> ValueStep {
        match (c, place) {
            ('\\', _) => self.go_on(State::Escape(place)),
            ('"', Place::Key) => self.go_on(State::Colon),
            ('"', Place::Value) => self.end_value(),
            _ => ValueStep::More,
        }
    }

    fn in_escape(&mut self, c: char, place: Place) -> ValueStep {
        match c {
            'u' => self.go_on(State::Hex(place, 4)),
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => self.go_on(State::String(place)),
            _ => ValueStep::Invalid,
        }
    }

    fn in_number(&mut self, c: char, number: Number) -> ValueStep {
        use Number::{E, Exponent, Fraction, Integer, Minus, Point, Sign, Zero};
        let next = match (number, c) {
            (Minus, '0') => Zero,
            (Minus, '1'..='9') | (Integer, '0'..='9') => Integer,
            (Zero | Integer, '.') => Point,
            (Point | Fraction, '0'..='9') => Fraction,
            (Zero | Integer | Fraction, 'e' | 'E') => E,
            (E, '+' | '-') => Sign,
            (E | Sign | Exponent, '0'..='9') => Exponent,
            (Zero | Integer | Fraction | Exponent, _) => {
                return match self.end_value() {
                    ValueStep::Done => ValueStep::DoneBefore,
                    ValueStep::More => self.between(c),
                    other @ (ValueStep::DoneBefore | ValueStep::Invalid) => other,
                };
            }
            (Minus | Point | E | Sign, _) => return ValueStep::Invalid,
        };
        self.go_on(State::Number(next))
    }

    fn close(&mut self) -> ValueStep {
        self.open.pop();
        self.end_value()
    }

    fn end_value(&mut self) -> ValueStep {
        if self.open.is_empty() { ValueStep::Done } else { self.go_on(State::CommaOrEnd) }
    }

    fn go_on(&mut self, state: State) -> ValueStep {
        self.state = state;
        ValueStep::More
    }
}

/// Tells whether JSON lets `c` stand between values.
pub(crate) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the step of the last character, or of the first that ends the value.
    fn run(text: &str) -> (ValueStep, usize) {
        let mut value = JsonValue::new();
        for (i, c) in text.chars().enumerate() {
            let step = value.push(c);
            if step != ValueStep::More {
                return (step, i + 1);
            }
        }
        (ValueStep::More, text.chars().count())
    }

    #[test]
    fn values_end_with_their_last_character() {
        let values = [
            "{}",
            "[]",
            "\"\"",
            "true",
            "null",
            " {\"a\": [1, -0.5e+3, {\"b\": null}], \"c\": \"\\u00e9\\n\"}",
            "[[], {}, false]",
            "\"line\nbreak\"",
        ];
        for text in values {
            assert_eq!(run(text), (ValueStep::Done, text.chars().count()), "{text}");
        }
        for text in ["1,", "-10.25 ", "0]", "1e5}"] {
            assert_eq!(run(text), (ValueStep::DoneBefore, text.len()), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_seen_at_its_first_wrong_character() {
        let broken = [
            "{a",
            "{\"a\"1",
            "{\"a\":}",
            "[1,]",
            "[1 2",
            "{,",
            "]",
            "tru ",
            "01",
            "-a",
            "1.e",
            "\"\\x",
            "\"\\u00g",
            "{\"a\":1,}",
            "'",
        ];
        for text in broken {
            let (step, taken) = run(text);
            let ended_before = step == ValueStep::DoneBefore && text.starts_with("01");
            assert!(step == ValueStep::Invalid || ended_before, "{text}: {step:?}");
            assert_eq!(taken, text.chars().count(), "{text}");
        }
        assert_eq!(run(&"[".repeat(MAX_DEPTH)).0, ValueStep::More);
        assert_eq!(run(&"[".repeat(MAX_DEPTH + 1)).0, ValueStep::Invalid);
    }

    #[test]
    fn it_agrees_with_serde_on_random_texts() {
        let seed: u64 = std::env::var("TEXT_SEED").map_or(1, |seed| seed.parse().unwrap());
        println!("TEXT_SEED={seed}");
        let mut state = seed;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        let words = [
            "{", "}", "[", "]", ",", ":", "\"a\"", "\"\\n\"", "1", "-0.5", "1e-9", "true", "null",
            " ",
        ];
        let mut num_valid = 0;
        for _ in 0..300_000 {
            let inner: String = (0..1 + next(5)).map(|_| words[next(words.len())]).collect();
            let text =
                if next(2) == 0 { format!("[{inner}]") } else { format!("{{\"k\":{inner}}}") };
            let is_valid = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            assert_eq!(run(&text) == (ValueStep::Done, text.len()), is_valid, "{text}");
            num_valid += u32::from(is_valid);
        }
        assert!(num_valid > 5_000, "{num_valid}");
    }
}
