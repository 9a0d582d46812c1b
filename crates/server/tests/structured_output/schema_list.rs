//! Schemas as people write them, one feature or a few each.

use serde_json::Value;

/// Returns the schemas of [`LIST`].
pub(crate) fn schemas() -> Vec<Value> {
    let parse =
        |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    LIST.lines().map(str::trim).filter(|line| !line.is_empty()).map(parse).collect()
}

/// One schema a line.
const LIST: &str = r##"
{"type": "object"}
{"type": "object", "properties": {}, "additionalProperties": false}
{"type": "string"}
{"type": "integer"}
{"type": "number"}
{"type": "boolean"}
{"type": "null"}
{"type": "array"}
{"type": ["string", "null"]}
{"type": ["integer", "boolean", "array"], "items": {"type": "null"}, "maxItems": 3}
{"const": "a \"quoted\" word\n"}
{"const": {"a": [1, null, "x"], "b": {"c": true}}}
{"const": []}
{"const": 1.5}
{"const": -7}
{"enum": ["red", "green", "blue"]}
{"enum": ["日本", "é\u0301", "🙂", "\u0000", "\\", "/", "\u007f"]}
{"enum": [1, 2.5, "three", null, true, [4], {"five": 5}]}
{"enum": ["a", "ab", "abc", "abcd"]}
{"enum": [0, 10, 100, 1000]}
{"type": "string", "minLength": 3, "maxLength": 5}
{"type": "string", "minLength": 1}
{"type": "string", "maxLength": 0}
{"type": "string", "maxLength": 20000}
{"type": "string", "pattern": "^[a-z]{2,4}$"}
{"type": "string", "pattern": "^\\d{3}-\\d{4}$"}
{"type": "string", "pattern": "ab+c"}
{"type": "string", "pattern": "^(foo|bar)(-[0-9]+)?$"}
{"type": "string", "pattern": "^\\w+@\\w+\\.com$"}
{"type": "string", "pattern": "^[^\"\\\\]*$", "maxLength": 12}
{"type": "string", "pattern": "^[\\u00e0-\\u00ff日本]+$", "minLength": 2, "maxLength": 6}
{"type": "string", "pattern": "^/[a-z/]*$", "maxLength": 9}
{"type": "string", "format": "date"}
{"type": "string", "format": "time"}
{"type": "string", "format": "date-time"}
{"type": "string", "format": "uuid"}
{"type": "string", "format": "ipv4"}
{"type": "integer", "minimum": 0, "maximum": 9}
{"type": "integer", "minimum": -128, "maximum": 127}
{"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 20}
{"type": "integer", "minimum": 1000000}
{"type": "integer", "maximum": -5}
{"type": "integer", "multipleOf": 7, "minimum": -100000, "maximum": 100000}
{"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}
{"type": "integer", "minimum": -9007199254740992, "maximum": 9007199254740992}
{"type": "number", "minimum": 0, "maximum": 1}
{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
{"type": "number", "minimum": -273.15}
{"type": "number", "maximum": 3.14159}
{"type": "number", "minimum": 0.1, "maximum": 0.2}
{"type": "array", "items": {"type": "integer"}}
{"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 2, "maxItems": 4}
{"type": "array", "maxItems": 0}
{"type": "array", "items": {"type": "boolean"}, "minItems": 20, "maxItems": 30}
{"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false}
{"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}, "minItems": 3, "maxItems": 5}
{"type": "array", "prefixItems": [{"type": "null"}], "minItems": 1}
{"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"type": "null"}, {"type": "boolean"}], "additionalItems": false}
{"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 2}, "maxItems": 2}, "maxItems": 2}
{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}}, "required": ["name", "age"], "additionalProperties": false}
{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "additionalProperties": false}
{"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}}, "required": ["b"], "additionalProperties": false}
{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id", "other"]}
{"type": "object", "additionalProperties": {"type": "integer"}}
{"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": {"type": "null"}}
{"type": "object", "patternProperties": {"^x-[a-z]+$": {"type": "integer"}}, "additionalProperties": false}
{"type": "object", "patternProperties": {"^n_": {"type": "null"}, "^b_": {"type": "boolean"}}, "additionalProperties": false}
{"type": "object", "properties": {"a\"b": {"const": 1}, "日本": {"const": 2}, "c\\d": {"const": 3}, "": {"const": 4}}, "required": ["a\"b", "日本", "c\\d", ""], "additionalProperties": false}
{"anyOf": [{"type": "string", "maxLength": 5}, {"type": "integer"}]}
{"anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}, {"type": "array", "items": {"type": "null"}}]}
{"anyOf": [{"type": "string", "const": "x"}, {"type": "null"}]}
{"oneOf": [{"type": "string"}, {"type": "integer"}]}
{"oneOf": [{"const": "a"}, {"const": "b"}]}
{"oneOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number", "minimum": 0}}, "required": ["kind", "radius"], "additionalProperties": false}, {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "number", "minimum": 0}}, "required": ["kind", "side"], "additionalProperties": false}]}
{"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "$defs": {"cat": {"type": "object", "properties": {"type": {"const": "cat"}, "lives": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["type", "lives"], "additionalProperties": false}, "dog": {"type": "object", "properties": {"type": {"const": "dog"}, "good": {"const": true}}, "required": ["type", "good"], "additionalProperties": false}}}
{"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 12}]}
{"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]}]}
{"allOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 4}]}
{"$ref": "#/$defs/item", "$defs": {"item": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}}}
{"type": "object", "properties": {"a": {"$ref": "#/definitions/leaf"}, "b": {"$ref": "#/definitions/leaf"}}, "required": ["a", "b"], "additionalProperties": false, "definitions": {"leaf": {"enum": ["x", "y"]}}}
{"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "required": ["value", "next"], "additionalProperties": false}}}
{"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}, "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}}, "required": ["name", "children"], "additionalProperties": false}
{"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}, "right": {"type": "null"}}, "required": ["left", "right"], "additionalProperties": false}}}
{"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "maxItems": 1}, "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 1}}}
{"title": "Person", "description": "as pydantic writes it", "type": "object", "properties": {"name": {"title": "Name", "type": "string", "default": "x"}, "nick": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null, "title": "Nick"}, "tags": {"items": {"type": "string", "maxLength": 6}, "title": "Tags", "type": "array", "maxItems": 3}}, "required": ["name", "nick", "tags"]}
{"type": "object", "properties": {"steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "maxItems": 2}, "final_answer": {"type": "string"}}, "required": ["steps", "final_answer"], "additionalProperties": false, "$defs": {"Step": {"type": "object", "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}}, "required": ["explanation", "output"], "additionalProperties": false}}}
{"type": "object", "properties": {"when": {"type": "string", "format": "date"}, "who": {"type": "array", "items": {"type": "string", "format": "uuid"}, "maxItems": 2}, "where": {"type": "object", "properties": {"lat": {"type": "number", "minimum": -90, "maximum": 90}, "lon": {"type": "number", "minimum": -180, "maximum": 180}}, "required": ["lat", "lon"], "additionalProperties": false}}, "required": ["when", "who", "where"], "additionalProperties": false}
{"x-vendor": {"anything": [1]}, "examples": ["a"], "deprecated": true, "type": "string", "maxLength": 4}
"##;
