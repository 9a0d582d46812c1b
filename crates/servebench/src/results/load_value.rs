//! How much load a level puts on the server: a number of streams, or requests per second.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// How much load a level puts on the server: requests in flight, or requests per second, where
/// infinity sends everything at once. Positive.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct LoadValue(pub f64);

impl fmt::Display for LoadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_infinite() { f.write_str("inf") } else { self.0.fmt(f) }
    }
}

impl Serialize for LoadValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_infinite() {
            serializer.serialize_str("Infinity")
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for LoadValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(f64),
            Word(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(Self(number)),
            Form::Word(word) if ["inf", "Infinity"].contains(&word.as_str()) => {
                Ok(Self(f64::INFINITY))
            }
            Form::Word(word) => word.parse().map(Self).map_err(|_| {
                serde::de::Error::custom(format!(
                    "expected a number or \"Infinity\", found {word:?}"
                ))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinity_is_a_word_in_json() {
        for (value, json) in [(LoadValue(f64::INFINITY), "\"Infinity\""), (LoadValue(1.5), "1.5")] {
            assert_eq!(serde_json::to_string(&value).unwrap(), json);
            assert_eq!(serde_json::from_str::<LoadValue>(json).unwrap(), value);
        }
        assert!(serde_json::from_str::<LoadValue>("\"many\"").is_err());
    }
}
