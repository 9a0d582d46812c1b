//! Finds where in a schema a fault is, by asking of ever smaller parts whether they have it.
//!
//! The compiler says what is wrong, not where. A part that has the fault by itself, while none of the
//! parts in it does, is where it is; and if it is gone without one keyword, that keyword is to blame.
//! Costs a compilation for each part that is asked about; their number and size are bounded.

use crate::GrammarError;
use crate::json_path;
use serde_json::{Map, Value};

/// Most parts that are asked about.
const MAX_ASKED: usize = 200;
/// Most values in them, definitions counted with each part: whoever looks for a fault in a large schema
/// with many parts would compile it many times.
const MAX_VALUES_ASKED: usize = 100_000;

/// Members that hold what references refer to, so that parts must keep them.
const DEFINITIONS: [&str; 4] = ["$defs", "definitions", "$schema", "x-guidance"];
/// Keywords whose value is a schema, or a list of schemas.
const SUBSCHEMAS: [&str; 7] =
    ["items", "prefixItems", "additionalProperties", "additionalItems", "anyOf", "oneOf", "allOf"];
/// Keywords whose value holds schemas by name.
const NAMED_SUBSCHEMAS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Returns where the fault `message` of a schema is, and what the fault of that part by itself is;
/// `fault` tells what is wrong with a schema, if anything.
pub(crate) fn find(
    schema: &Value,
    message: String,
    fault: &dyn Fn(&Value) -> Option<String>,
) -> GrammarError {
    let mut search = Search { root: schema, fault, num_asked: 0, num_values: 0 };
    let mut found = Part { path: String::new(), schema, message };
    while let Some(part) = search.faulty_part(&found) {
        found = part;
    }
    let path = match search.faulty_keyword(found.schema) {
        Some(keyword) => json_path::member(&found.path, &keyword),
        None => found.path,
    };
    GrammarError { path, message: found.message }
}

/// A part of a schema that has a fault.
struct Part<'a> {
    path: String,
    schema: &'a Value,
    message: String,
}

struct Search<'a> {
    root: &'a Value,
    fault: &'a dyn Fn(&Value) -> Option<String>,
    num_asked: usize,
    /// Values in what was asked about.
    num_values: usize,
}

impl<'a> Search<'a> {
    /// Returns a part of `part` that has the fault by itself.
    fn faulty_part(&mut self, part: &Part<'a>) -> Option<Part<'a>> {
        let mut candidates = parts(&part.path, part.schema).into_iter();
        candidates.find_map(|(path, schema)| {
            let message = self.ask(schema)?;
            Some(Part { path, schema, message })
        })
    }

    /// Returns the keyword without which a schema has no fault.
    fn faulty_keyword(&mut self, part: &Value) -> Option<String> {
        let members = part.as_object()?;
        let is_option = |key: &&String| DEFINITIONS.contains(&key.as_str());
        let keywords: Vec<&String> = members.keys().filter(|key| !is_option(key)).collect();
        let without = |keyword: &String| {
            let mut members = members.clone();
            members.shift_remove(keyword);
            Value::Object(members)
        };
        // A type that contradicts another keyword is rarely the one at fault.
        let (last, first): (Vec<&String>, Vec<&String>) =
            keywords.into_iter().partition(|key| key.as_str() == "type");
        for keyword in first.into_iter().chain(last) {
            if self.is_over() {
                break;
            }
            if self.ask(&without(keyword)).is_none() && !self.is_over() {
                return Some(keyword.clone());
            }
        }
        None
    }

    /// Returns the fault that a part has by itself, with the definitions of the whole.
    fn ask(&mut self, part: &Value) -> Option<String> {
        if self.is_over() {
            return None;
        }
        let Value::Object(members) = part else { return self.ask_alone(part) };
        let mut alone: Map<String, Value> = members.clone();
        for key in DEFINITIONS {
            if let Some(definitions) = self.root.get(key) {
                alone.insert(key.to_owned(), definitions.clone());
            }
        }
        self.ask_alone(&Value::Object(alone))
    }

    fn ask_alone(&mut self, part: &Value) -> Option<String> {
        self.num_asked += 1;
        self.num_values += num_values(part);
        if self.is_over() { None } else { (self.fault)(part) }
    }

    /// Tells whether nothing more is asked.
    fn is_over(&self) -> bool {
        self.num_asked > MAX_ASKED || self.num_values > MAX_VALUES_ASKED
    }
}

/// Returns how many values there are in a value, itself included.
fn num_values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(num_values).sum(),
        Value::Object(members) => members.values().map(num_values).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Returns the schemas directly in a schema, and their paths.
fn parts<'a>(path: &str, part: &'a Value) -> Vec<(String, &'a Value)> {
    let mut found = Vec::new();
    for key in SUBSCHEMAS {
        match part.get(key) {
            Some(Value::Array(items)) => {
                let path = json_path::member(path, key);
                let numbered = items.iter().enumerate();
                found.extend(numbered.map(|(i, item)| (json_path::item(&path, i), item)));
            }
            Some(schema @ Value::Object(_)) => found.push((json_path::member(path, key), schema)),
            Some(_) | None => {}
        }
    }
    for key in NAMED_SUBSCHEMAS {
        if let Some(Value::Object(schemas)) = part.get(key) {
            let path = json_path::member(path, key);
            found.extend(
                schemas.iter().map(|(name, schema)| (json_path::member(&path, name), schema)),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::cell::Cell;

    #[test]
    fn what_is_asked_about_is_bounded_by_its_size() {
        let properties = |value: &Value| {
            Value::Object((0..1_000).map(|i| (format!("p{i}"), value.clone())).collect())
        };
        let large = json!({"type": "object", "properties": properties(&json!({"type": "null"}))});
        let schema = json!({
            "properties": properties(&json!({"$ref": "#/$defs/large"})),
            "$defs": {"large": large},
        });
        let num_values_asked = Cell::new(0);
        let fault = |part: &Value| {
            num_values_asked.set(num_values_asked.get() + num_values(part));
            None
        };
        let found = find(&schema, "is wrong".to_owned(), &fault);
        assert_eq!((found.path.as_str(), found.message.as_str()), ("", "is wrong"));
        let asked = num_values_asked.get();
        assert!((MAX_VALUES_ASKED * 9 / 10..=MAX_VALUES_ASKED).contains(&asked), "{asked}");
    }
}
