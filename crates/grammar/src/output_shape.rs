//! Fixed texts around JSON: what a program that parses answers needs them to be.
//!
//! Tool calls are an example: a marker, an object with a name and arguments that a schema allows, and
//! a marker, once or several times. A shape becomes Lark; JSON in it is compiled like a schema alone,
//! so white space in it has the same bounds.

use crate::GrammarError;
use crate::json_path;
use crate::json_schema;
use crate::lark_text;
use mini_infer_core::TokenId;
use serde_json::Value;
use std::fmt;

/// The regular expression of any text, line breaks included.
const ANY_TEXT: &str = "/(?s:.*)/";

/// A part of an output, or all of it.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputShape {
    /// This text.
    Text(String),
    /// The special token that the vocabulary writes so, or the text if it has none.
    Marker(String),
    /// JSON that a schema allows.
    Json(Value),
    /// Any text up to the first such marker, and the marker.
    TextThrough(String),
    /// One part after the other.
    Sequence(Vec<OutputShape>),
    /// One of these.
    OneOf(Vec<OutputShape>),
    /// One item or more, with a separator between two.
    List {
        /// What is repeated.
        item: Box<OutputShape>,
        /// What stands between two of them.
        separator: Box<OutputShape>,
    },
}

impl OutputShape {
    /// Returns the shape as a Lark grammar; `special_token` finds the special token that the
    /// vocabulary writes so.
    ///
    /// # Errors
    /// Refuses a schema that cannot be followed, by its place in the shape.
    pub(crate) fn to_lark(
        &self,
        special_token: &dyn Fn(&str) -> Option<TokenId>,
    ) -> Result<String, GrammarError> {
        let mut writer = LarkWriter { special_token, rules: Vec::new(), texts: Vec::new() };
        let start = writer.expression(self, "")?;
        let mut text = format!("start: {start}\n");
        for (i, rule) in writer.rules.iter().enumerate() {
            text.push_str(&format!("{}: {rule}\n", rule_name(i)));
        }
        for (i, rule) in writer.texts.iter().enumerate() {
            text.push_str(&format!("{}[lazy]: {rule}\n", text_name(i)));
        }
        Ok(text)
    }
}

/// A text that only an equal shape has.
impl fmt::Display for OutputShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |f: &mut fmt::Formatter<'_>, kind: &str, parts: &[OutputShape]| {
            write!(f, "{kind}(")?;
            parts.iter().try_for_each(|part| write!(f, "{part},"))?;
            f.write_str(")")
        };
        match self {
            Self::Text(text) => write!(f, "text {text:?}"),
            Self::Marker(text) => write!(f, "marker {text:?}"),
            Self::Json(schema) => write!(f, "json {schema}"),
            Self::TextThrough(marker) => write!(f, "text_through {marker:?}"),
            Self::Sequence(parts) => all(f, "sequence", parts),
            Self::OneOf(parts) => all(f, "one_of", parts),
            Self::List { item, separator } => write!(f, "list({item},{separator})"),
        }
    }
}

/// Writes a shape; what may be needed several times becomes a rule, so that it is compiled once.
struct LarkWriter<'a> {
    special_token: &'a dyn Fn(&str) -> Option<TokenId>,
    /// What the rules besides `start` stand for.
    rules: Vec<String>,
    /// What the rules that end as soon as they can stand for.
    texts: Vec<String>,
}

impl LarkWriter<'_> {
    fn expression(&mut self, shape: &OutputShape, path: &str) -> Result<String, GrammarError> {
        match shape {
            OutputShape::Text(text) => Ok(lark_text::string(text)),
            OutputShape::Marker(text) => Ok(self.marker(text)),
            OutputShape::TextThrough(text) if (self.special_token)(text).is_some() => {
                Ok(format!("({ANY_TEXT} {})", self.marker(text)))
            }
            OutputShape::TextThrough(text) => {
                self.texts.push(format!("{ANY_TEXT} {}", lark_text::string(text)));
                Ok(text_name(self.texts.len() - 1))
            }
            OutputShape::Json(schema) => {
                let schema = json_schema::prepare(schema).map_err(|error| {
                    let place = match error.path.as_str() {
                        "" => path.to_owned(),
                        inner => json_path::member(path, inner),
                    };
                    GrammarError { path: place, ..error }
                })?;
                Ok(self.rule(lark_text::json(&schema)))
            }
            OutputShape::Sequence(parts) => self.all(parts, " ", path),
            OutputShape::OneOf(parts) => self.all(parts, " | ", path),
            OutputShape::List { item, separator } => {
                let item = self.expression(item, path)?;
                let item = self.rule(item);
                let separator = self.expression(separator, path)?;
                Ok(format!("({item} ({separator} {item})*)"))
            }
        }
    }

    fn marker(&self, text: &str) -> String {
        match (self.special_token)(text) {
            // By its number, since Lark knows names in angle brackets only.
            Some(token) => format!("<[{token}]>"),
            None => lark_text::string(text),
        }
    }

    fn all(
        &mut self,
        parts: &[OutputShape],
        separator: &str,
        path: &str,
    ) -> Result<String, GrammarError> {
        let numbered = parts.iter().enumerate();
        let parts = numbered.map(|(i, part)| self.expression(part, &json_path::item(path, i)));
        Ok(format!("({})", parts.collect::<Result<Vec<_>, _>>()?.join(separator)))
    }

    /// Returns the name of the rule that stands for this expression.
    fn rule(&mut self, expression: String) -> String {
        let known = self.rules.iter().position(|known| *known == expression);
        let index = known.unwrap_or_else(|| {
            self.rules.push(expression);
            self.rules.len() - 1
        });
        rule_name(index)
    }
}

fn text_name(index: usize) -> String {
    format!("text_{index}")
}

fn rule_name(index: usize) -> String {
    format!("part_{index}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn special_tokens_have_numbers_and_repeated_parts_one_rule() {
        let schema = OutputShape::Json(json!({"type": "integer"}));
        let marker = |text: &str| OutputShape::Marker(text.to_owned());
        let item = OutputShape::Sequence(vec![marker("[A]"), marker("[B]"), schema.clone()]);
        let list = OutputShape::List { item: Box::new(item), separator: Box::new(schema) };
        let lark = list.to_lark(&|text| (text == "[A]").then_some(7)).unwrap();
        let lines: Vec<&str> = lark.lines().collect();
        assert_eq!(lines[0], "start: (part_1 (part_0 part_1)*)");
        assert!(lines[1].starts_with("part_0: %json {"), "{lark}");
        assert_eq!(lines[2..], ["part_1: (<[7]> \"[B]\" part_0)"]);
    }
}
