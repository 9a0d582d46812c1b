//! The schemas of what `item_reading`, `settings` and `tools` read member by member.

use super::request::INCLUDABLE;
use super::settings::{
    EFFORTS, MAX_METADATA, MAX_METADATA_KEY_CHARS, MAX_METADATA_VALUE_CHARS, SUMMARIES,
};
use crate::wire::anthropic::schemas::object;
use crate::wire::described::described;
use serde_json::{Value, json};

fn text() -> Value {
    json!({"type": "string"})
}

/// Returns the schema of an item of a kind, with members that must be there and others that may.
fn item(kind: &str, mut required: Value, mut optional: Value) -> Value {
    let kind = json!({"const": kind});
    // What has no type is a message.
    if kind["const"] == "message" {
        optional["type"] = kind;
    } else {
        required["type"] = kind;
    }
    optional["id"] = text();
    optional["status"] = json!({"description": "Accepted without effect."});
    object(required, optional)
}

/// Returns the schema of a text, or of a list of parts that hold texts or are one of `others`.
fn texts(others: &[Value]) -> Value {
    let part = json!({"type": {"enum": ["input_text", "output_text"]}, "text": text()});
    let part =
        object(part, json!({"annotations": {}, "logprobs": {}, "prompt_cache_breakpoint": {}}));
    let parts = [&[part], others].concat();
    json!({"anyOf": [text(), {"type": "array", "items": {"anyOf": parts}}]})
}

/// Returns the schema of a function that is named.
fn named() -> Value {
    object(json!({"type": {"const": "function"}, "name": text()}), json!({}))
}

described! {
    /// A text of the user, or items of a conversation.
    ResponseInput: {
        let others = json!({"enum": ["user", "system", "developer"]});
        let said = json!({"role": others, "content": texts(&[])});
        let said = item("message", said, json!({"phase": {}}));
        let refusal =
            object(json!({"type": {"const": "refusal"}, "refusal": text()}), json!({}));
        let answered = json!({"role": {"const": "assistant"}, "content": texts(&[refusal])});
        let answered = item("message", answered, json!({"phase": {}}));
        let thought =
            object(json!({"type": {"const": "reasoning_text"}, "text": text()}), json!({}));
        let thoughts = json!({
            "content": {"type": "array", "items": thought}, "summary": {}, "encrypted_content": {},
        });
        let call = json!({"call_id": text(), "name": text(), "arguments": text()});
        let output = json!({"call_id": text(), "output": texts(&[])});
        let items = json!([
            said,
            answered,
            item("reasoning", json!({}), thoughts),
            item("function_call", call, json!({})),
            item("function_call_output", output, json!({"name": text()})),
        ]);
        json!({"anyOf": [text(), {"type": "array", "items": {"anyOf": items}}]})
    };
    /// What a response holds besides its output; only log probabilities have an effect.
    Includable: json!({"enum": INCLUDABLE});
    /// Pairs of texts that the response repeats.
    ResponseMetadata: json!({
        "type": "object",
        "maxProperties": MAX_METADATA,
        "propertyNames": {"maxLength": MAX_METADATA_KEY_CHARS},
        "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE_CHARS},
    });
    /// How much the model thinks, if its chat template lets one choose.
    ReasoningField: object(json!({}), json!({
        "effort": {"enum": EFFORTS},
        "summary": {"enum": SUMMARIES},
        "generate_summary": {"enum": SUMMARIES},
        "context": {"const": "auto"},
        "mode": {"const": "standard"},
    }));
    /// What the output must be.
    TextField: {
        let plain = object(json!({"type": {"enum": ["text", "json_object"]}}), json!({}));
        let required = json!({
            "type": {"const": "json_schema"},
            "schema": {"anyOf": [{"type": "object"}, {"type": "string", "minLength": 2}]},
        });
        let named = json!({
            "name": text(), "description": text(), "strict": {"type": "boolean"},
        });
        let format = json!({"anyOf": [plain, object(required, named)]});
        object(json!({}), json!({"format": format, "verbosity": {"const": "medium"}}))
    };
    /// A function that the model may call.
    ResponseTool: object(
        json!({
            "type": {"const": "function"},
            "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        }),
        json!({
            "description": text(),
            "parameters": {
                "description": "The JSON schema of the arguments, which are an object.",
                "type": "object",
            },
            "strict": {"type": "boolean"},
        }),
    );
    /// Whether the model may or must call tools, and which.
    ResponseToolChoice: {
        let allowed = json!({
            "type": {"const": "allowed_tools"},
            "mode": {"enum": ["auto", "required"]},
            "tools": {"type": "array", "items": named(), "minItems": 1},
        });
        let choices = json!([
            {"enum": ["auto", "none", "required"]}, named(), object(allowed, json!({})),
        ]);
        json!({"anyOf": choices})
    };
    /// Says how prefixes are cached, which needs no saying.
    CacheHints: json!({
        "type": "object",
        "properties": {"mode": {}, "ttl": {}},
        "additionalProperties": {"enum": [null, false]},
    });
}
