//! A JSON schema before it is compiled: bounds, and what the compiler would get wrong.
//!
//! The compiler recurses over a schema and the references in it, takes numbers as doubles, and can
//! tell the options of `oneOf` apart only where they stand, not behind a reference. So schemas are
//! bounded here, whole numbers that a double does not hold are refused, and references directly below
//! `oneOf` are replaced by what they refer to. White space between JSON's tokens is bounded, because a
//! weak model would write it for ever.

use crate::GrammarError;
use crate::json_path;
use llguidance::JsonCompileOptions;
use serde_json::{Map, Value, json};

/// Most values in a schema, references below `oneOf` replaced.
const MAX_VALUES: usize = 20_000;
/// Most levels of a schema. The JSON parser of requests stops at 128.
const MAX_DEPTH: usize = 64;
/// White space between two tokens of JSON: none, a space, or a line break and an indent of up to 20.
const WHITE_SPACE: &str = r"\x20|\x0A[\x20\x09]{0,20}";
/// The keyword with which a schema could change how it is compiled.
const OPTIONS: &str = "x-guidance";

/// Returns a schema as the compiler shall see it.
///
/// # Errors
/// Refuses what is too large, refers elsewhere, or holds numbers that would lose digits.
pub(crate) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    let mut prepared = match schema {
        Value::Object(_) => schema.clone(),
        Value::Bool(true) => json!({}),
        Value::Bool(false)
        | Value::Null
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_) => return Err(GrammarError::whole("a schema must be an object")),
    };
    let mut num_values = 0;
    check(&prepared, "", 0, &mut num_values)?;
    let root = prepared.clone();
    resolve_one_of(&mut prepared, &root, "", &mut num_values)?;
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITE_SPACE.to_owned()),
        ..JsonCompileOptions::default()
    };
    options.apply_to(&mut prepared);
    Ok(prepared)
}

/// Checks a value of a schema and those in it.
fn check(
    value: &Value,
    path: &str,
    depth: usize,
    num_values: &mut usize,
) -> Result<(), GrammarError> {
    *num_values += 1;
    if *num_values > MAX_VALUES {
        let message = format!("the schema has more than {MAX_VALUES} values");
        return Err(GrammarError::whole(message));
    }
    if depth > MAX_DEPTH {
        let message = format!("the schema is nested deeper than {MAX_DEPTH} levels");
        return Err(GrammarError::at(path, message));
    }
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                check(item, &json_path::item(path, i), depth + 1, num_values)?;
            }
        }
        Value::Object(members) => {
            for (key, member) in members {
                let path = json_path::member(path, key);
                check_keyword(key, member, &path)?;
                check(member, &path, depth + 1, num_values)?;
            }
        }
        Value::Number(number) if !is_exact(number) => {
            let message = format!("{number} has more digits than a double can hold");
            return Err(GrammarError::at(path, message));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(())
}

fn check_keyword(key: &str, value: &Value, path: &str) -> Result<(), GrammarError> {
    let text = value.as_str().unwrap_or_default();
    if path == OPTIONS {
        return Err(GrammarError::at(path, format!("the keyword `{OPTIONS}` is not supported")));
    }
    if key == "$ref" && value.is_string() && !text.starts_with('#') {
        let message = format!("`$ref` must begin with `#`, got `{text}`: nothing is fetched");
        return Err(GrammarError::at(path, message));
    }
    if value.is_string() && ["$dynamicRef", "$recursiveRef"].contains(&key) {
        return Err(GrammarError::at(path, format!("the keyword `{key}` is not supported")));
    }
    Ok(())
}

/// Tells whether a double holds a whole number exactly; others are rounded by every reader of JSON.
fn is_exact(number: &serde_json::Number) -> bool {
    /// Whole numbers up to here have doubles of their own.
    const LIMIT: u64 = 1 << 53;
    let magnitude = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
    magnitude.is_none_or(|magnitude| magnitude <= LIMIT || magnitude.is_power_of_two())
}

/// Replaces references directly below `oneOf` by what they refer to.
fn resolve_one_of(
    value: &mut Value,
    root: &Value,
    path: &str,
    num_values: &mut usize,
) -> Result<(), GrammarError> {
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                resolve_one_of(item, root, &json_path::item(path, i), num_values)?;
            }
        }
        Value::Object(members) => {
            for (key, member) in members {
                let path = json_path::member(path, key);
                resolve_one_of(member, root, &path, num_values)?;
                if let ("oneOf", Value::Array(options)) = (key.as_str(), member) {
                    for option in options {
                        if let Some(target) = target(option, root) {
                            *option = target.clone();
                            check(option, &path, 0, num_values)?;
                        }
                    }
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(())
}

/// Returns what a schema that is nothing but a reference refers to.
fn target<'a>(option: &Value, root: &'a Value) -> Option<&'a Value> {
    let members: &Map<String, Value> = option.as_object()?;
    let reference = members.get("$ref").filter(|_| members.len() == 1)?;
    let found = root.pointer(reference.as_str()?.strip_prefix('#')?)?;
    // A reference to a reference stays for the compiler.
    found.get("$ref").is_none().then_some(found)
}
