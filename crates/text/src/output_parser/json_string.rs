//! A JSON string, decoded character by character, and its opposite.
//!
//! Halves of surrogate pairs that stand alone become U+FFFD.

/// Decodes a string from behind its opening quote.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonString {
    state: State,
    /// The first half of a surrogate pair.
    high: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Plain,
    Escape,
    /// In a `\u` escape: its value so far, and how many digits are missing.
    Hex(u32, u8),
}

/// What a character did to a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StringStep {
    /// The string goes on.
    More,
    /// The character was the closing quote.
    Done,
    /// The string has an escape that JSON does not know.
    Invalid,
}

impl JsonString {
    /// Takes the next character and appends what it completes to `text`.
    pub(crate) fn push(&mut self, c: char, text: &mut String) -> StringStep {
        match self.state {
            State::Plain => match c {
                '\\' => self.state = State::Escape,
                '"' => {
                    self.end_pair(text);
                    return StringStep::Done;
                }
                _ => self.plain(c, text),
            },
            State::Escape => {
                self.state = State::Plain;
                match c {
                    'u' => self.state = State::Hex(0, 4),
                    '"' | '\\' | '/' => self.plain(c, text),
                    'b' => self.plain('\u{8}', text),
                    'f' => self.plain('\u{C}', text),
                    'n' => self.plain('\n', text),
                    'r' => self.plain('\r', text),
                    't' => self.plain('\t', text),
                    _ => return StringStep::Invalid,
                }
            }
            State::Hex(value, missing) => {
                let Some(digit) = c.to_digit(16) else { return StringStep::Invalid };
                let value = value * 16 + digit;
                self.state = State::Hex(value, missing - 1);
                if missing == 1 {
                    self.state = State::Plain;
                    self.unit(value, text);
                }
            }
        }
        StringStep::More
    }

    fn plain(&mut self, c: char, text: &mut String) {
        self.end_pair(text);
        text.push(c);
    }

    /// Takes a UTF-16 unit.
    fn unit(&mut self, unit: u32, text: &mut String) {
        match (self.high.take(), unit) {
            (Some(high), 0xDC00..=0xDFFF) => {
                let code = 0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00);
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (high, unit) => {
                if high.is_some() {
                    text.push(char::REPLACEMENT_CHARACTER);
                }
                match unit {
                    0xD800..=0xDBFF => self.high = Some(unit),
                    _ => text.push(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)),
                }
            }
        }
    }

    fn end_pair(&mut self, text: &mut String) {
        if self.high.take().is_some() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Appends `c` as it stands inside a JSON string.
pub(crate) fn push_escaped(c: char, json: &mut String) {
    match c {
        '"' => json.push_str("\\\""),
        '\\' => json.push_str("\\\\"),
        '\n' => json.push_str("\\n"),
        '\r' => json.push_str("\\r"),
        '\t' => json.push_str("\\t"),
        '\0'..='\x1F' => json.push_str(&format!("\\u{:04x}", u32::from(c))),
        _ => json.push(c),
    }
}

/// Returns `text` as a JSON string, quotes included.
pub(crate) fn quoted(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    text.chars().for_each(|c| push_escaped(c, &mut json));
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(json: &str) -> Option<String> {
        let (mut string, mut text) = (JsonString::default(), String::new());
        let rest = json.strip_prefix('"').unwrap();
        for (i, c) in rest.char_indices() {
            match string.push(c, &mut text) {
                StringStep::More => {}
                StringStep::Done => {
                    assert_eq!(i + 1, rest.len(), "{json}");
                    return Some(text);
                }
                StringStep::Invalid => return None,
            }
        }
        None
    }

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(decode(r#""a\"\\\/\n\té\u00e9""#).unwrap(), "a\"\\/\n\téé");
        assert_eq!(decode(r#""\ud83d\ude00""#).unwrap(), "😀");
        assert_eq!(decode(r#""\ud83d.\ude00\ud83d""#).unwrap(), "\u{FFFD}.\u{FFFD}\u{FFFD}");
        assert_eq!(decode(r#""\ud83d\ud83d\ude00""#).unwrap(), "\u{FFFD}😀");
        assert_eq!(decode(r#""\'""#), None);
        assert_eq!(decode(r#""\u00g0""#), None);
    }

    #[test]
    fn quoting_is_undone_by_decoding_and_by_others() {
        let text: String = (0..0x3000).filter_map(char::from_u32).collect();
        let json = quoted(&text);
        assert_eq!(decode(&json).unwrap(), text);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
