//! The fields that constrain the output, on the wire.

use super::described::described;
use serde_json::{Value, json};

/// What a body says about its output, unread: each has forms of its own, and `output_rule` names the
/// place that is wrong.
#[derive(Debug, Default)]
pub(crate) struct OutputFields {
    /// OpenAI's: text, any object, or a schema.
    pub(crate) response_format: Option<Value>,
    /// vLLM's older names, one field for each kind.
    pub(crate) guided_json: Option<Value>,
    pub(crate) guided_regex: Option<Value>,
    pub(crate) guided_choice: Option<Value>,
    pub(crate) guided_grammar: Option<Value>,
    /// vLLM's newer name, an object with one member for each kind.
    pub(crate) structured_outputs: Option<Value>,
    /// llama.cpp's.
    pub(crate) grammar: Option<Value>,
}

/// Returns the schema of a JSON schema, which may also be a text that holds one.
fn schema_of_schemas() -> Value {
    json!({"anyOf": [{"type": "object"}, {"type": "string", "minLength": 2}]})
}

/// Returns the schema of a text that is not empty.
fn schema_of_texts() -> Value {
    json!({"type": "string", "minLength": 1})
}

/// Returns the schema of a list of texts of which the output is one.
fn schema_of_choices() -> Value {
    json!({"type": "array", "items": schema_of_texts(), "minItems": 1, "maxItems": 10_000})
}

described! {
    /// `text`: anything; `json_object`: a JSON object; `json_schema`: JSON that a schema allows.
    ResponseFormat: {
        let of_type = |kind: &str, members: Value, required: &[&str]| {
            let mut properties = json!({"type": {"const": kind}});
            for (name, schema) in members.as_object().into_iter().flatten() {
                properties[name] = schema.clone();
            }
            json!({
                "type": "object", "properties": properties, "required": required,
                "additionalProperties": {"type": "null"},
            })
        };
        let named = json!({
            "type": "object",
            "properties": {
                "schema": schema_of_schemas(),
                "name": {"type": ["string", "null"]},
                "description": {"type": ["string", "null"]},
                "strict": {"type": ["boolean", "null"]},
            },
            "required": ["schema"],
            "additionalProperties": {"type": "null"},
        });
        json!({"oneOf": [
            of_type("text", json!({}), &["type"]),
            of_type("json_object", json!({"schema": schema_of_schemas()}), &["type"]),
            of_type("json_schema", json!({"json_schema": named}), &["type", "json_schema"]),
        ]})
    };
    /// A JSON schema, as an object or as a text that holds one.
    JsonSchemaField: schema_of_schemas();
    /// A text that is not empty.
    NonEmptyText: schema_of_texts();
    /// Texts of which the output is one.
    ChoiceList: schema_of_choices();
    /// What the output must be, in one of five ways.
    StructuredOutputs: {
        let or_null = |schema: Value| json!({"anyOf": [schema, {"type": "null"}]});
        json!({
            "type": "object",
            "properties": {
                "json": or_null(schema_of_schemas()),
                "json_object": {"type": ["boolean", "null"]},
                "regex": or_null(schema_of_texts()),
                "choice": or_null(schema_of_choices()),
                "grammar": or_null(schema_of_texts()),
            },
            "additionalProperties": {"type": "null"},
            "minProperties": 1,
        })
    };
}
