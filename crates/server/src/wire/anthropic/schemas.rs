//! The schemas of what `conversation`, `tools` and `request` read member by member.
//!
//! `null` is as good as no member there, and members of any name may be it.

use super::output_config::EFFORTS;
use crate::wire::described::described;
use serde_json::{Value, json};

/// Returns the schema of an object with members that must be there and others that may.
pub(crate) fn object(required: Value, optional: Value) -> Value {
    let names: Vec<String> =
        required.as_object().into_iter().flatten().map(|m| m.0.clone()).collect();
    let mut properties = required;
    for (name, schema) in optional.as_object().into_iter().flatten() {
        properties[name] = json!({"anyOf": [schema, {"type": "null"}]});
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": {"type": "null"},
    })
}

/// Returns the schema of a block of a content.
fn block(kind: &str, mut required: Value, mut optional: Value) -> Value {
    required["type"] = json!({"const": kind});
    for hint in ["cache_control", "citations"] {
        optional[hint] = json!({"description": "Accepted without effect."});
    }
    object(required, optional)
}

fn text() -> Value {
    json!({"type": "string"})
}

fn text_block() -> Value {
    block("text", json!({"text": text()}), json!({}))
}

/// Returns the schema of a text, or of blocks of it.
fn texts() -> Value {
    json!({"anyOf": [text(), {"type": "array", "items": text_block()}]})
}

described! {
    /// A text, or blocks of it.
    SystemField: texts();
    /// One message of a conversation.
    AnthropicMessage: {
        let result = json!({"content": texts(), "is_error": {"type": "boolean"}});
        let result = block("tool_result", json!({"tool_use_id": text()}), result);
        let blocks = json!({"type": "array", "items": {"oneOf": [text_block(), result]}, "minItems": 1});
        let by_user = json!({"role": {"const": "user"}, "content": {"anyOf": [text(), blocks]}});
        let thinking = block("thinking", json!({"thinking": text()}), json!({"signature": {}}));
        let call = json!({"id": text(), "name": text()});
        let call = block("tool_use", call, json!({"input": {"type": "object"}}));
        let blocks = json!({"type": "array", "items": {"oneOf": [text_block(), thinking, call]}});
        let content = json!({"anyOf": [text(), blocks]});
        let by_assistant = json!({"role": {"const": "assistant"}, "content": content});
        json!({"oneOf": [object(by_user, json!({})), object(by_assistant, json!({}))]})
    };
    /// A tool that the model may call.
    AnthropicTool: object(
        json!({
            "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
            "input_schema": {"type": "object"},
        }),
        json!({
            "description": text(),
            "type": {"const": "custom"},
            "strict": {"type": "boolean"},
            "input_examples": {},
            "eager_input_streaming": {"type": "boolean"},
            "defer_loading": {"const": false},
            "allowed_callers": {"const": ["direct"]},
            "cache_control": {},
        }),
    );
    /// Whether the model may or must call tools, and which.
    AnthropicToolChoice: {
        let flag = || json!({"disable_parallel_tool_use": {"type": "boolean"}});
        json!({"oneOf": [
            object(json!({"type": {"enum": ["auto", "none", "any"]}}), flag()),
            object(json!({"type": {"const": "tool"}, "name": text()}), flag()),
        ]})
    };
    /// What the output must be, and how much thought goes into it, which has no effect.
    OutputConfigField: {
        let format = json!({"type": {"const": "json_schema"}, "schema": {"type": "object"}});
        let format = object(format, json!({}));
        object(json!({}), json!({"effort": {"enum": EFFORTS}, "format": format}))
    };
    /// Edits that keep all of the conversation.
    ContextManagement: {
        let edit = json!({
            "type": "object",
            "properties": {
                "type": {"type": "string", "pattern": "^clear_thinking"},
                "keep": {"const": "all"},
            },
            "required": ["type", "keep"],
        });
        let edits = json!({"type": "array", "items": edit});
        json!({"type": "object", "properties": {"edits": edits}, "required": ["edits"]})
    };
    /// Whether the model thinks before it answers, if its chat template lets one choose.
    ThinkingField: {
        let budget = json!({"type": "integer", "minimum": 1});
        let display = || json!({"display": {"const": "summarized"}});
        json!({"oneOf": [
            object(json!({"type": {"const": "enabled"}, "budget_tokens": budget}), display()),
            object(json!({"type": {"enum": ["adaptive", "disabled"]}}), display()),
        ]})
    };
}
