//! What happens to request fields that this server does not act on.
//!
//! A field of OpenAI's API that is not served yet is accepted at its neutral value and refused
//! otherwise; fields that cannot change the answer are accepted and have no effect; anything else
//! is refused as OpenAI refuses it. `docs/http-api.md` holds the same tables for readers.

use super::error::ApiError;
use schemars::{Schema, json_schema};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What to do with a field.
#[derive(Clone, Copy)]
pub(crate) enum FieldRule {
    /// Accept any value: it cannot change the answer.
    Ignored,
    /// Accept any value: the chat template decides what it means.
    ToTemplate,
    /// Accept `null` and values for which the function holds: they ask for nothing.
    Neutral(fn(&Value) -> bool),
}

use FieldRule::{Ignored, Neutral, ToTemplate};

/// Fields of `POST /v1/chat/completions`, sorted.
pub(crate) const CHAT: &[(&str, FieldRule)] = &[
    ("audio", Neutral(Value::is_null)),
    ("function_call", Neutral(is_no_tool_choice)),
    ("functions", Neutral(is_empty)),
    ("metadata", Ignored),
    ("modalities", Neutral(is_text_only)),
    ("prediction", Neutral(Value::is_null)),
    ("prompt_cache_key", Ignored),
    ("safety_identifier", Ignored),
    ("service_tier", Neutral(is_default_tier)),
    ("store", Neutral(is_false)),
    ("user", Ignored),
    ("web_search_options", Neutral(Value::is_null)),
];

/// Fields of `POST /v1/completions`, sorted.
pub(crate) const COMPLETIONS: &[(&str, FieldRule)] =
    &[("metadata", Ignored), ("store", Neutral(is_false)), ("user", Ignored)];

/// Fields of `POST /v1/embeddings`, sorted.
pub(crate) const EMBEDDINGS: &[(&str, FieldRule)] = &[("user", Ignored)];

/// Fields of `POST /tokenize`, sorted.
pub(crate) const TOKENIZE: &[(&str, FieldRule)] = &[
    ("chat_template", Neutral(Value::is_null)),
    ("parse_special", Neutral(is_false)),
    ("with_pieces", Neutral(is_false)),
];

/// Fields of `POST /apply-template`, sorted.
pub(crate) const APPLY_TEMPLATE: &[(&str, FieldRule)] =
    &[("chat_template", Neutral(Value::is_null))];

/// Fields of a chat message that clients send back from earlier responses, sorted.
pub(crate) const MESSAGE: &[(&str, FieldRule)] = &[
    ("annotations", Ignored),
    ("audio", Neutral(Value::is_null)),
    ("function_call", Neutral(Value::is_null)),
    ("name", ToTemplate),
    ("reasoning_content", ToTemplate),
    ("refusal", ToTemplate),
    ("tool_call_id", ToTemplate),
    ("tool_calls", ToTemplate),
];

/// Fields of `stream_options`, sorted.
pub(crate) const STREAM_OPTIONS: &[(&str, FieldRule)] =
    &[("include_obfuscation", Neutral(is_false))];

/// Checks the fields in `extra`, which are those that no wire type names.
///
/// # Errors
/// Returns the first field that asks for something this server would not do; its `param` is
/// `prefix` and the field's name.
pub(crate) fn check(
    prefix: &str,
    extra: &BTreeMap<String, Value>,
    rules: &[(&str, FieldRule)],
) -> Result<(), ApiError> {
    for (name, value) in extra {
        let param = format!("{prefix}{name}");
        let rule = rules.iter().find(|(known, _)| known == name).map(|(_, rule)| rule);
        match rule {
            None => return Err(ApiError::UnknownField { param }),
            Some(Ignored | ToTemplate) => {}
            Some(Neutral(_)) if value.is_null() => {}
            Some(Neutral(is_neutral)) if is_neutral(value) => {}
            Some(Neutral(_)) => return Err(ApiError::UnsupportedField { param }),
        }
    }
    Ok(())
}

/// Returns the schema of an object with the fields that `rules` name; what a neutral field takes is
/// asked of its rule.
pub(crate) fn schema(rules: &[(&str, FieldRule)]) -> Schema {
    let field = |(name, rule): &(&str, FieldRule)| {
        let schema = match rule {
            Ignored => json!({"description": "Accepted without effect."}),
            ToTemplate => json!({"description": "Handed to the chat template."}),
            Neutral(is_neutral) => {
                let taken = neutral_values().into_iter();
                let taken = taken.filter(|value| value.is_null() || is_neutral(value));
                json!({
                    "description": "Accepted at values that ask for nothing.",
                    "enum": taken.collect::<Vec<_>>(),
                })
            }
        };
        ((*name).to_owned(), schema)
    };
    json_schema!({"properties": rules.iter().map(field).collect::<Map<_, _>>()})
}

/// Returns the values that some neutral field takes, in the order in which they are told.
fn neutral_values() -> [Value; 16] {
    [
        json!("auto"),
        json!("default"),
        json!("standard_only"),
        json!("standard"),
        json!("disabled"),
        json!("none"),
        json!(["text"]),
        json!(""),
        json!([]),
        json!({}),
        json!({"completion_window": "soonest"}),
        json!(0),
        json!(1),
        json!(true),
        json!(false),
        Value::Null,
    ]
}

fn is_false(value: &Value) -> bool {
    value.as_bool() == Some(false)
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
        || value.as_object().is_some_and(serde_json::Map::is_empty)
        || value.as_str().is_some_and(str::is_empty)
}

fn is_no_tool_choice(value: &Value) -> bool {
    matches!(value.as_str(), Some("none" | "auto"))
}

fn is_default_tier(value: &Value) -> bool {
    matches!(value.as_str(), Some("auto" | "default"))
}

fn is_text_only(value: &Value) -> bool {
    *value == json!(["text"]) || *value == json!([])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(value: Value) -> Option<ApiError> {
        let extra = serde_json::from_value(value).unwrap();
        check("", &extra, CHAT).err()
    }

    #[test]
    fn neutral_values_pass_and_others_name_the_field() {
        assert_eq!(refused(json!({"functions": [], "user": "me"})), None);
        assert_eq!(refused(json!({"service_tier": "auto", "store": false})), None);
        assert_eq!(refused(json!({"functions": null})), None);
        for field in ["functions", "store"] {
            let expected = ApiError::UnsupportedField { param: field.to_owned() };
            assert_eq!(refused(json!({field: {"5": 1}})), Some(expected));
        }
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        let expected = ApiError::UnknownField { param: "options".to_owned() };
        assert_eq!(refused(json!({"options": {"num_ctx": 4096}})), Some(expected));
    }

    #[test]
    fn the_schema_of_a_neutral_field_holds_what_its_rule_takes() {
        let schema = schema(CHAT).to_value();
        let expected = |field: &str, values: Value| {
            assert_eq!(schema["properties"][field]["enum"], values, "{field}");
        };
        expected("store", json!([false, null]));
        expected("service_tier", json!(["auto", "default", null]));
        expected("function_call", json!(["auto", "none", null]));
        expected("functions", json!(["", [], {}, null]));
        expected("modalities", json!([["text"], [], null]));
        expected("audio", json!([null]));
    }

    #[test]
    fn tables_are_sorted_and_free_of_duplicates() {
        for table in
            [CHAT, COMPLETIONS, EMBEDDINGS, TOKENIZE, APPLY_TEMPLATE, MESSAGE, STREAM_OPTIONS]
        {
            assert!(table.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
    }
}
