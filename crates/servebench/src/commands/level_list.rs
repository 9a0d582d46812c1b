//! Levels of load as users write them: `1,2,4` or `0.5,inf`.

use crate::results::LoadValue;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::str::FromStr;

/// Levels of load, at least one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LevelList(pub(crate) Vec<LoadValue>);

impl FromStr for LevelList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let levels: Vec<LoadValue> = parts
            .map(|part| match part.to_ascii_lowercase().as_str() {
                "inf" | "infinity" => Ok(LoadValue(f64::INFINITY)),
                number => number
                    .parse()
                    .ok()
                    .filter(|number: &f64| number.is_finite() && *number > 0.0)
                    .map(LoadValue)
                    .ok_or_else(|| format!("{part:?} is no number above 0, nor \"inf\"")),
            })
            .collect::<Result<_, _>>()?;
        if levels.is_empty() { Err("give at least one level".to_owned()) } else { Ok(Self(levels)) }
    }
}

impl Serialize for LevelList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let levels: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        serializer.serialize_str(&levels.join(","))
    }
}

impl<'de> Deserialize<'de> for LevelList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Level {
            Number(f64),
            Words(String),
        }
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "levels are a number, a list of numbers, or text such as \
                                       \"1,2,inf\""
        )]
        enum Form {
            One(Level),
            Many(Vec<Level>),
        }
        let levels = match Form::deserialize(deserializer)? {
            Form::One(level) => vec![level],
            Form::Many(levels) => levels,
        };
        let texts: Vec<String> = levels
            .into_iter()
            .map(|level| match level {
                Level::Number(number) => number.to_string(),
                Level::Words(words) => words,
            })
            .collect();
        texts.join(",").parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_from_text_numbers_and_lists() {
        let expected = LevelList(vec![LoadValue(1.0), LoadValue(0.5), LoadValue(f64::INFINITY)]);
        assert_eq!("1, 0.5,INF,".parse(), Ok(expected.clone()));
        for json in [r#""1,0.5,inf""#, r#"[1,0.5,"inf"]"#] {
            assert_eq!(serde_json::from_str::<LevelList>(json).unwrap(), expected, "{json}");
        }
        assert_eq!(serde_json::from_str::<LevelList>("4").unwrap().0, [LoadValue(4.0)]);
        let written = serde_json::to_string(&expected).unwrap();
        assert_eq!(serde_json::from_str::<LevelList>(&written).unwrap(), expected);
    }

    #[test]
    fn what_is_no_level_is_refused() {
        for text in ["", ",", "0", "-1", "many", "nan", "1;2"] {
            assert!(text.parse::<LevelList>().is_err(), "{text:?}");
        }
        assert!(serde_json::from_str::<LevelList>("[1,null]").is_err());
    }
}
