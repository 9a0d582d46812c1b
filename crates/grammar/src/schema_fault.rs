//! Finds where in a schema a fault is, by asking of ever smaller parts whether they have it.
//!
//! The compiler says what is wrong, not where. A part that has the fault by itself, while none of the
//! parts in it does, is where it is; and if it is gone without one keyword, that keyword is to blame.
//! Costs a compilation for each part that is asked about, which are bounded.

use crate::GrammarError;
use crate::json_path;
use serde_json::{Map, Value};

/// Most parts that are asked about.
const MAX_ASKED: usize = 200;

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
    let mut search = Search { root: schema, fault, num_asked: 0 };
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
        let mut candidates = first.into_iter().chain(last);
        candidates
            .find(|keyword| self.num_asked < MAX_ASKED && self.ask(&without(keyword)).is_none())
            .cloned()
    }

    /// Returns the fault that a part has by itself, with the definitions of the whole.
    fn ask(&mut self, part: &Value) -> Option<String> {
        if self.num_asked >= MAX_ASKED {
            return None;
        }
        self.num_asked += 1;
        let Value::Object(members) = part else { return (self.fault)(part) };
        let mut alone: Map<String, Value> = members.clone();
        for key in DEFINITIONS {
            if let Some(definitions) = self.root.get(key) {
                alone.insert(key.to_owned(), definitions.clone());
            }
        }
        (self.fault)(&Value::Object(alone))
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
