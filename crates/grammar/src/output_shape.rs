//! Fixed texts around JSON: what a program that parses answers needs them to be.
//!
//! Tool calls are an example: a marker, an object with a name and arguments that a schema allows, and
//! a marker, once or several times. A shape becomes Lark; JSON in it is compiled like a schema alone,
//! so white space in it has the same bounds.

use crate::GrammarError;
use crate::json_path;
use crate::json_schema;
use crate::lark_text;
use serde_json::Value;

/// A part of an output, or all of it.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputShape {
    /// This text.
    Text(String),
    /// The special token that the vocabulary writes so, or the text if it has none.
    Marker(String),
    /// JSON that a schema allows.
    Json(Value),
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
    /// Returns the shape as a Lark grammar; `is_special` tells whether the vocabulary has a special
    /// token that is written so.
    ///
    /// # Errors
    /// Refuses a schema that cannot be followed, by its place in the shape.
    pub(crate) fn to_lark(
        &self,
        is_special: &dyn Fn(&str) -> bool,
    ) -> Result<String, GrammarError> {
        Ok(format!("start: {}\n", self.expression("", is_special)?))
    }

    fn expression(
        &self,
        path: &str,
        is_special: &dyn Fn(&str) -> bool,
    ) -> Result<String, GrammarError> {
        let all = |parts: &[OutputShape], separator: &str| -> Result<String, GrammarError> {
            let part = |(i, part): (usize, &OutputShape)| {
                part.expression(&json_path::item(path, i), is_special)
            };
            let parts: Vec<String> =
                parts.iter().enumerate().map(part).collect::<Result<_, _>>()?;
            Ok(format!("({})", parts.join(separator)))
        };
        match self {
            // A name in angle brackets is Lark's syntax for a special token.
            Self::Marker(text) if is_special(text) => Ok(text.clone()),
            Self::Text(text) | Self::Marker(text) => Ok(lark_text::string(text)),
            Self::Json(schema) => {
                let schema = json_schema::prepare(schema).map_err(|error| {
                    let place = match error.path.as_str() {
                        "" => path.to_owned(),
                        inner => json_path::member(path, inner),
                    };
                    GrammarError { path: place, ..error }
                })?;
                Ok(lark_text::json(&schema))
            }
            Self::Sequence(parts) => all(parts, " "),
            Self::OneOf(parts) => all(parts, " | "),
            Self::List { item, separator } => {
                let item = item.expression(path, is_special)?;
                let separator = separator.expression(path, is_special)?;
                Ok(format!("({item} ({separator} {item})*)"))
            }
        }
    }
}
