//! The schemas of `tools`, `tool_choice` and calls, which `wire::tools` and `wire::tool_choice` read.

use super::described::described;
use super::tools::{MAX_NAME_LEN, MAX_TOOLS};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Returns the schema of the fields of a request that are about tools.
pub(crate) fn request_fields(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"properties": {
        "tools": {
            "description": "Tools that the model may call.",
            "type": ["array", "null"],
            "items": generator.subschema_for::<Tool>(),
            "maxItems": MAX_TOOLS,
        },
        "tool_choice": {
            "description": "Whether the model may or must call tools, and which.",
            "anyOf": [generator.subschema_for::<ToolChoiceField>(), {"type": "null"}],
        },
        "parallel_tool_calls": {
            "description": "`false`: the answer ends behind its first call.",
            "type": ["boolean", "null"],
        },
    }})
}

/// Returns the schema of the fields of a message that chat templates read.
pub(crate) fn message_fields(generator: &mut SchemaGenerator) -> Schema {
    let text = |description: &str| json!({"description": description, "type": ["string", "null"]});
    json_schema!({"properties": {
        "name": text("Who says it, among those of the same role."),
        "tool_call_id": text("The call that this message answers."),
        "reasoning_content": text("What the assistant thought before its answer."),
        "refusal": text("Why the assistant would not answer."),
        "tool_calls": {
            "description": "Calls that the assistant made.",
            "type": ["array", "null"],
            "items": generator.subschema_for::<EarlierCall>(),
        },
    }})
}

/// Returns the schema of a reference to a tool by its name.
fn named() -> Value {
    let function = json!({
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
    });
    json!({
        "type": "object",
        "properties": {"type": {"const": "function"}, "function": function},
        "required": ["type", "function"],
    })
}

described! {
    /// A function that the model may call.
    Tool: json!({
        "type": "object",
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "properties": {
                    "name": {
                        "type": "string",
                        "pattern": format!("^[a-zA-Z0-9_-]{{1,{MAX_NAME_LEN}}}$"),
                    },
                    "description": {"type": ["string", "null"]},
                    "parameters": {
                        "description": "The JSON schema of the arguments, which are an object.",
                        "type": ["object", "null"],
                    },
                    "strict": {"type": ["boolean", "null"]},
                },
                "required": ["name"],
            },
        },
        "required": ["type", "function"],
    });
    /// Whether the model may or must call tools, and which.
    ToolChoiceField: {
        let allowed = json!({
            "type": "object",
            "properties": {
                "mode": {"enum": ["auto", "required"]},
                "tools": {"type": "array", "items": named(), "minItems": 1},
            },
            "required": ["mode", "tools"],
        });
        json!({"anyOf": [
            {"enum": ["auto", "none", "required"]},
            named(),
            {
                "type": "object",
                "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": allowed},
                "required": ["type", "allowed_tools"],
            },
        ]})
    };
    /// A call of an earlier answer.
    EarlierCall: json!({
        "type": "object",
        "properties": {
            "id": {"type": ["string", "null"]},
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "arguments": {
                        "description": "JSON, as a text or as it is.",
                        "type": ["string", "object", "null"],
                    },
                },
                "required": ["name"],
            },
        },
        "required": ["function"],
    });
}
