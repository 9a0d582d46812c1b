//! What an output must be, as clients say it.

use crate::OutputShape;
use serde_json::Value;

/// What an output must be. The whole output must match, never a part of it.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// JSON that this schema (draft 2020-12 or what its `$schema` says) allows.
    JsonSchema(Value),
    /// Text that this regular expression (the syntax of Rust's `regex`) matches from start to end.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of this grammar in `llguidance`'s dialect of Lark; its first rule is `start`.
    Lark(String),
    /// Text of this grammar in llama.cpp's GBNF; its first rule is `root`.
    Gbnf(String),
    /// Fixed texts around JSON, for answers that another program parses.
    Shape(OutputShape),
}

/// Most bytes of a grammar or schema. The largest published schemas that people constrain outputs
/// with are below 200 kB.
pub(crate) const MAX_SOURCE_BYTES: usize = 256 << 10;

impl GrammarSource {
    /// Takes a grammar in either language: GBNF's first rule is defined by `::=`, Lark's by `:`.
    #[must_use]
    pub fn grammar(text: String) -> Self {
        let is_comment = |line: &&str| line.is_empty() || line.starts_with(['#', '/']);
        let first = text.lines().map(str::trim).find(|line| !is_comment(line)).unwrap_or_default();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_gbnf = first.trim_start_matches(is_name).trim_start().starts_with("::=");
        if is_gbnf { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    /// Returns a text that only an equal source has.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::JsonObject => "json_object".to_owned(),
            Self::JsonSchema(schema) => format!("json_schema {schema}"),
            Self::Regex(regex) => format!("regex {regex}"),
            Self::Choice(texts) => format!("choice {texts:?}"),
            Self::Lark(text) => format!("lark {text}"),
            Self::Gbnf(text) => format!("gbnf {text}"),
            Self::Shape(shape) => format!("shape {shape}"),
        }
    }

    /// Tells whether a complete output is JSON, which may be followed by nothing but white space.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self, Self::JsonObject | Self::JsonSchema(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_of_a_grammar_is_told_by_its_first_rule() {
        let is_gbnf =
            |text: &str| matches!(GrammarSource::grammar(text.to_owned()), GrammarSource::Gbnf(_));
        assert!(is_gbnf("root ::= \"a\""));
        assert!(is_gbnf("\n# comment\n  my-rule2::= \"a\""));
        assert!(!is_gbnf("start: \"::=\""));
        assert!(!is_gbnf("// root ::= x\n%import common.INT\nstart: INT"));
        assert!(!is_gbnf(""));
    }

    #[test]
    fn different_sources_have_different_keys() {
        let text = "start: \"a\"".to_owned();
        let sources = [
            GrammarSource::Regex(text.clone()),
            GrammarSource::Lark(text.clone()),
            GrammarSource::Gbnf(text.clone()),
            GrammarSource::Choice(vec![text.clone()]),
            GrammarSource::Shape(OutputShape::Text(text.clone())),
            GrammarSource::Shape(OutputShape::Marker(text.clone())),
            GrammarSource::Shape(OutputShape::Json(text.clone().into())),
            GrammarSource::Shape(OutputShape::Sequence(vec![OutputShape::Text(text.clone())])),
            GrammarSource::Shape(OutputShape::OneOf(vec![OutputShape::Text(text)])),
            GrammarSource::JsonObject,
        ];
        for (i, a) in sources.iter().enumerate() {
            for (j, b) in sources.iter().enumerate() {
                assert_eq!(a.key() == b.key(), i == j);
            }
        }
    }
}
