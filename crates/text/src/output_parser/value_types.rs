//! What a parameter of a tool takes, as far as its JSON schema tells.
//!
//! Models that write values without quotes leave it to the schema whether `5` is a number or a
//! text. What a schema leaves open is text, as the models' own parsers have it.

use super::json_string::quoted;
use super::json_value::ValueStep;
use super::python_value::PythonValue;
use serde_json::Value;

/// Schemas that are looked at for one tool, references followed; what is beyond is left open.
const MAX_SCHEMAS: u32 = 2048;

/// The JSON types that a value may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ValueTypes(u8);

const STRING: u8 = 1;
const NULL: u8 = 2;
const BOOLEAN: u8 = 4;
const NUMBER: u8 = 8;
const ARRAY: u8 = 16;
const OBJECT: u8 = 32;

/// Returns the parameters of a tool and what each takes; `root` is the schema of its arguments.
pub(crate) fn parameter_types(root: &Value) -> Vec<(String, ValueTypes)> {
    let mut reader = SchemaReader { root, num_left: MAX_SCHEMAS };
    let Some(properties) = root["properties"].as_object() else { return Vec::new() };
    let parameters = properties.iter();
    parameters.map(|(name, schema)| (name.clone(), ValueTypes(reader.types(schema)))).collect()
}

impl ValueTypes {
    /// Tells whether every value is a text, or nothing is known.
    pub(crate) fn is_text(self) -> bool {
        self.0 & !STRING == 0
    }

    /// Returns a value that is written without quotes as JSON: as what the types allow it to be, and
    /// if that is nothing as a string.
    pub(crate) fn json(self, text: &str) -> String {
        let word = text.trim();
        let lower = word.to_ascii_lowercase();
        if self.has(NULL) && matches!(lower.as_str(), "null" | "none") {
            return "null".to_owned();
        }
        if self.has(BOOLEAN) && matches!(lower.as_str(), "true" | "false") {
            return lower;
        }
        if self.has(NUMBER) && serde_json::from_str::<serde_json::Number>(word).is_ok() {
            return word.to_owned();
        }
        let is_allowed = |json: &str| match serde_json::from_str(json) {
            Ok(Value::Array(_)) => self.has(ARRAY),
            Ok(Value::Object(_)) => self.has(OBJECT),
            Ok(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | Err(_) => {
                false
            }
        };
        if self.has(ARRAY | OBJECT) {
            if is_allowed(word) {
                return word.to_owned();
            }
            if let Some(json) = python_literal(word).filter(|json| is_allowed(json)) {
                return json;
            }
        }
        quoted(text)
    }

    fn has(self, types: u8) -> bool {
        self.0 & types != 0
    }
}

/// Reads the schemas of one tool.
struct SchemaReader<'a> {
    /// What references point into.
    root: &'a Value,
    /// How many more are looked at: references may go round in circles.
    num_left: u32,
}

impl SchemaReader<'_> {
    fn types(&mut self, schema: &Value) -> u8 {
        let Some(num_left) = self.num_left.checked_sub(1) else { return 0 };
        self.num_left = num_left;
        let Some(members) = schema.as_object() else { return 0 };
        let named = match members.get("type") {
            Some(Value::String(name)) => named_type(name),
            Some(Value::Array(names)) => union(names, |name| name.as_str().map_or(0, named_type)),
            _ => 0,
        };
        if named != 0 {
            return named;
        }
        if let Some(Value::Array(values)) = members.get("enum") {
            return union(values, type_of);
        }
        if let Some(value) = members.get("const") {
            return type_of(value);
        }
        let path = members.get("$ref").and_then(Value::as_str);
        let target = path.and_then(|path| self.root.pointer(path.strip_prefix('#')?));
        let mut all = target.map_or(0, |target| self.types(target));
        for key in ["anyOf", "oneOf", "allOf"] {
            if let Some(Value::Array(options)) = members.get(key) {
                all |= union(options, |option| self.types(option));
            }
        }
        all
    }
}

fn union(items: &[Value], mut types: impl FnMut(&Value) -> u8) -> u8 {
    items.iter().fold(0, |all, item| all | types(item))
}

fn named_type(name: &str) -> u8 {
    match name {
        "string" => STRING,
        "null" => NULL,
        "boolean" => BOOLEAN,
        "integer" | "number" => NUMBER,
        "array" => ARRAY,
        "object" => OBJECT,
        _ => 0,
    }
}

fn type_of(value: &Value) -> u8 {
    match value {
        Value::String(_) => STRING,
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(_) => NUMBER,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// Returns a Python literal as JSON: models that write Python's `True` write its lists too.
fn python_literal(text: &str) -> Option<String> {
    let mut value = PythonValue::new();
    let mut chars = text.chars();
    loop {
        match value.push(chars.next()?) {
            ValueStep::More => {}
            ValueStep::Done => break,
            ValueStep::DoneBefore | ValueStep::Invalid => return None,
        }
    }
    chars.next().is_none().then(|| value.into_json())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(schema: &Value) -> ValueTypes {
        let mut root = schema.clone();
        root["properties"] = json!({"x": schema});
        parameter_types(&root)[0].1
    }

    fn check(schema: Value, text: &str, expected: &str) {
        assert_eq!(of(&schema).json(text), expected, "{schema} {text}");
    }

    #[test]
    fn values_are_what_the_schema_lets_them_be() {
        check(json!({"type": "integer"}), "5", "5");
        check(json!({"type": "integer"}), " -5\n", "-5");
        check(json!({"type": "number"}), "1e3", "1e3");
        check(json!({"type": "number"}), "five", "\"five\"");
        check(json!({"type": "boolean"}), "True", "true");
        check(json!({"type": "boolean"}), "1", "\"1\"");
        check(json!({"type": ["integer", "null"]}), "None", "null");
        check(json!({"type": ["integer", "string"]}), "5 apples", "\"5 apples\"");
        check(json!({"type": "integer"}), "null", "\"null\"");
        check(json!({"type": "array"}), "[1, \"a\"]", "[1, \"a\"]");
        check(json!({"type": "array"}), "['a', True]", "[\"a\", true]");
        check(json!({"type": "array"}), "{\"a\": 1}", "\"{\\\"a\\\": 1}\"");
        check(json!({"type": "object"}), "{\n\"a\": 1}", "{\n\"a\": 1}");
        check(json!({"type": "object"}), "{a", "\"{a\"");
        check(json!({"type": "object"}), "{} {}", "\"{} {}\"");
    }

    #[test]
    fn types_are_found_in_every_place_that_schemas_have_for_them() {
        let number = ValueTypes(NUMBER);
        assert_eq!(of(&json!({"enum": [1, 2.5]})), number);
        assert_eq!(of(&json!({"const": 1})), number);
        let either = json!({"anyOf": [{"type": "number"}, {"type": "null"}]});
        assert_eq!(of(&either), ValueTypes(NUMBER | NULL));
        let root = json!({"$ref": "#/$defs/n", "$defs": {"n": {"allOf": [{"type": "number"}]}}});
        assert_eq!(of(&root), number);
        assert!(of(&json!({"type": "string"})).is_text());
    }

    #[test]
    fn what_is_left_open_is_text() {
        let endless = vec![json!({"$ref": "#"}); 100];
        let open =
            [json!({}), json!({"type": "x"}), json!({"$ref": "y"}), json!({"anyOf": endless})];
        for schema in open {
            assert!(of(&schema).is_text(), "{schema}");
        }
        assert_eq!(parameter_types(&json!(true)), []);
    }
}
