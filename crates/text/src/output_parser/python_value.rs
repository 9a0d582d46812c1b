//! One Python literal, turned into JSON character by character.
//!
//! Strings with one kind of quote, numbers, `True`, `False`, `None`, lists, tuples (which become
//! arrays) and dictionaries with string keys. JSON's own words are taken too. Anything else, such as
//! a name or an expression, is no literal.

use super::json_string::push_escaped;
use super::json_value::ValueStep;

/// Containers inside one another at most, as in JSON.
const MAX_DEPTH: usize = 128;
/// Most characters of a number or a word.
const MAX_WORD_BYTES: usize = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    List,
    Tuple,
    Dictionary,
}

impl Container {
    fn close(self) -> (char, char) {
        match self {
            Self::List => (']', ']'),
            Self::Tuple => (')', ']'),
            Self::Dictionary => ('}', '}'),
        }
    }
}

#[derive(Clone, Debug)]
enum State {
    Value,
    /// A value, a key, or the end of the container.
    ItemOrEnd,
    Colon,
    CommaOrEnd,
    String {
        quote: char,
        is_key: bool,
    },
    Escape {
        quote: char,
        is_key: bool,
    },
    Hex {
        quote: char,
        is_key: bool,
        value: u32,
        missing: u8,
    },
    Word(String),
}

/// Converts one literal.
#[derive(Clone, Debug)]
pub(crate) struct PythonValue {
    json: String,
    open: Vec<Container>,
    state: State,
    has_items: bool,
}

impl PythonValue {
    /// Begins before the literal's first character.
    pub(crate) fn new() -> Self {
        Self { json: String::new(), open: Vec::new(), state: State::Value, has_items: false }
    }

    /// Returns the JSON of a literal that has ended.
    pub(crate) fn into_json(self) -> String {
        self.json
    }

    /// Takes the next character; after any step but [`ValueStep::More`] none may follow.
    pub(crate) fn push(&mut self, c: char) -> ValueStep {
        match std::mem::replace(&mut self.state, State::Value) {
            State::String { quote, is_key } => self.in_string(c, quote, is_key),
            State::Escape { quote, is_key } => self.in_escape(c, quote, is_key),
            State::Hex { quote, is_key, value, missing } => {
                self.in_hex(c, quote, is_key, (value, missing))
            }
            State::Word(word) => self.in_word(c, word),
            state @ (State::Value | State::ItemOrEnd | State::Colon | State::CommaOrEnd) => {
                self.between(c, state)
            }
        }
    }

    fn between(&mut self, c: char, state: State) -> ValueStep {
        if c.is_ascii_whitespace() {
            return self.go_on(state);
        }
        let container = self.open.last().copied();
        if let Some(container) = container
            && matches!(state, State::ItemOrEnd | State::CommaOrEnd)
            && c == container.close().0
        {
            self.open.pop();
            self.json.push(container.close().1);
            return self.end_value();
        }
        match (state, c) {
            (State::Colon, ':') => {
                self.json.push_str(": ");
                self.go_on(State::Value)
            }
            (State::CommaOrEnd, ',') => self.go_on(State::ItemOrEnd),
            (State::ItemOrEnd, _) => {
                if self.has_items {
                    self.json.push_str(", ");
                }
                match (container, c) {
                    (Some(Container::Dictionary), '\'' | '"') => self.begin_string(c, true),
                    (Some(Container::Dictionary), _) => ValueStep::Invalid,
                    _ => self.begin_value(c),
                }
            }
            (State::Value, _) => self.begin_value(c),
            _ => ValueStep::Invalid,
        }
    }

    fn begin_value(&mut self, c: char) -> ValueStep {
        let container = match c {
            '\'' | '"' => return self.begin_string(c, false),
            '[' => Container::List,
            '(' => Container::Tuple,
            '{' => Container::Dictionary,
            '-' | '+' | '.' | '0'..='9' | 'a'..='z' | 'A'..='Z' => {
                return self.go_on(State::Word(c.to_string()));
            }
            _ => return ValueStep::Invalid,
        };
        if self.open.len() == MAX_DEPTH {
            return ValueStep::Invalid;
        }
        self.open.push(container);
        self.json.push(if container == Container::Dictionary { '{' } else { '[' });
        self.has_items = false;
        self.go_on(State::ItemOrEnd)
    }

    fn begin_string(&mut self, quote: char, is_key: bool) -> ValueStep {
        self.json.push('"');
        self.go_on(State::String { quote, is_key })
    }

    fn in_string(&mut self, c: char, quote: char, is_key: bool) -> ValueStep {
        if c == '\\' {
            return self.go_on(State::Escape { quote, is_key });
        }
        if c != quote {
            push_escaped(c, &mut self.json);
            return self.go_on(State::String { quote, is_key });
        }
        self.json.push('"');
        if is_key { self.go_on(State::Colon) } else { self.end_value() }
    }

    fn in_escape(&mut self, c: char, quote: char, is_key: bool) -> ValueStep {
        let missing = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        if missing > 0 {
            return self.go_on(State::Hex { quote, is_key, value: 0, missing });
        }
        let text = match c {
            'n' => "\n",
            't' => "\t",
            'r' => "\r",
            'b' => "\u{8}",
            'f' => "\u{C}",
            // The line goes on.
            '\n' => "",
            '\\' | '\'' | '"' => &c.to_string(),
            _ => &format!("\\{c}"),
        };
        text.chars().for_each(|c| push_escaped(c, &mut self.json));
        self.go_on(State::String { quote, is_key })
    }

    fn in_hex(&mut self, c: char, quote: char, is_key: bool, read: (u32, u8)) -> ValueStep {
        let (value, missing) = read;
        let Some(digit) = c.to_digit(16) else { return ValueStep::Invalid };
        // Eight digits fill the integer exactly.
        let value = value << 4 | digit;
        if missing > 1 {
            return self.go_on(State::Hex { quote, is_key, value, missing: missing - 1 });
        }
        let Some(c) = char::from_u32(value) else { return ValueStep::Invalid };
        push_escaped(c, &mut self.json);
        self.go_on(State::String { quote, is_key })
    }

    fn in_word(&mut self, c: char, mut word: String) -> ValueStep {
        let goes_on = c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        if goes_on && word.len() < MAX_WORD_BYTES {
            word.push(c);
            return self.go_on(State::Word(word));
        }
        match word.as_str() {
            "True" | "true" => self.json.push_str("true"),
            "False" | "false" => self.json.push_str("false"),
            "None" | "null" => self.json.push_str("null"),
            number if serde_json::from_str::<serde_json::Number>(number).is_ok() => {
                self.json.push_str(number);
            }
            _ => return ValueStep::Invalid,
        }
        match self.end_value() {
            ValueStep::Done => ValueStep::DoneBefore,
            ValueStep::More => self.between(c, State::CommaOrEnd),
            other @ (ValueStep::DoneBefore | ValueStep::Invalid) => other,
        }
    }

    fn end_value(&mut self) -> ValueStep {
        self.has_items = true;
        if self.open.is_empty() { ValueStep::Done } else { self.go_on(State::CommaOrEnd) }
    }

    fn go_on(&mut self, state: State) -> ValueStep {
        self.state = state;
        ValueStep::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Converts the literal before `;`.
    fn convert(text: &str) -> Option<String> {
        let mut value = PythonValue::new();
        for c in text.chars().chain([';']) {
            match value.push(c) {
                ValueStep::More => {}
                ValueStep::Invalid => return None,
                ValueStep::Done | ValueStep::DoneBefore => return Some(value.into_json()),
            }
        }
        None
    }

    fn check(python: &str, json: &str) {
        assert_eq!(convert(python).as_deref(), Some(json), "{python}");
    }

    #[test]
    fn literals_become_json() {
        check("'it\\'s \"so\"\\n'", r#""it's \"so\"\n""#);
        check(r#""a\x41\u00e9\U0001F600\d""#, "\"aAé😀\\\\d\"");
        check("-12.5e3", "-12.5e3");
        check("True", "true");
        check("None", "null");
        check("[]", "[]");
        check(
            "[1, 'a', (2, 3,), {'k': [False], \"l\": {}},]",
            r#"[1, "a", [2, 3], {"k": [false], "l": {}}]"#,
        );
        check("{ 'a' : 1 , }", r#"{"a": 1}"#);
    }

    #[test]
    fn what_is_no_literal_is_refused() {
        for text in
            ["x", "1 + 2", "f(1)", "{1: 2}", "[1 2]", "'\\xg'", "--1", "{'a' 1}", "[,]", "\u{e9}"]
        {
            let got = convert(text);
            assert!(
                got.is_none() || text == "1 + 2" && got.as_deref() == Some("1"),
                "{text}: {got:?}"
            );
        }
        assert_eq!(convert(&"[".repeat(200)), None);
    }
}
