//! What a response repeats of its request, and the fields of which that takes some reading.

use crate::wire::anthropic::members::Members;
use crate::wire::error::ApiError;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Bounds of `metadata`, as at OpenAI.
pub(super) const MAX_METADATA: usize = 16;
pub(super) const MAX_METADATA_KEY_CHARS: usize = 64;
pub(super) const MAX_METADATA_VALUE_CHARS: usize = 512;

/// How much a model may be asked to think.
pub(super) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// How its thoughts may be summed up, which they never are.
pub(super) const SUMMARIES: [&str; 3] = ["auto", "concise", "detailed"];

/// The settings of a response, with the values that were used where the request named none.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseSettings {
    pub(crate) background: bool,
    pub(crate) instructions: Option<String>,
    pub(crate) max_output_tokens: Option<u32>,
    pub(crate) max_tool_calls: Option<u32>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) previous_response_id: Option<String>,
    pub(crate) prompt_cache_key: Option<String>,
    pub(crate) reasoning: ReasoningSettings,
    pub(crate) safety_identifier: Option<String>,
    pub(crate) service_tier: &'static str,
    pub(crate) store: bool,
    pub(crate) temperature: f64,
    pub(crate) text: TextSettings,
    pub(crate) tool_choice: Value,
    pub(crate) tools: Vec<Value>,
    pub(crate) top_logprobs: u32,
    pub(crate) top_p: f64,
    pub(crate) truncation: &'static str,
    pub(crate) user: Option<String>,
}

/// How the model was asked to think.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct ReasoningSettings {
    pub(crate) effort: Option<String>,
    pub(crate) summary: Option<String>,
}

/// How the model was asked to write.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TextSettings {
    pub(crate) format: Value,
    pub(crate) verbosity: &'static str,
}

impl ReasoningSettings {
    /// Reads `reasoning`.
    ///
    /// # Errors
    /// Refuses other values than those that are known, and what is not served.
    pub(super) fn read(field: Option<Value>) -> Result<Self, ApiError> {
        let Some(field) = field else { return Ok(Self::default()) };
        let mut members = Members::new("reasoning", field)?;
        let mut one_of = |name: &str, known: &[&str]| match members.take(name) {
            None => Ok(None),
            Some(Value::String(value)) if known.contains(&value.as_str()) => Ok(Some(value)),
            Some(_) => Err(members.invalid(name, &format!("must be one of {known:?}"))),
        };
        let effort = one_of("effort", &EFFORTS)?;
        let summary = one_of("summary", &SUMMARIES)?;
        let older_name = one_of("generate_summary", &SUMMARIES)?;
        // The template decides which reasoning of earlier turns the model is shown.
        one_of("context", &["auto"])?;
        one_of("mode", &["standard"])?;
        members.finish()?;
        Ok(Self { effort, summary: summary.or(older_name) })
    }

    /// Returns the variables of the chat template; `own`, which the request sets itself, outweigh
    /// what its effort stands for.
    pub(super) fn template_variables(&self, own: Option<Value>) -> Option<Value> {
        let own = own.filter(|own| !own.is_null());
        let Some(effort) = self.effort.as_deref() else { return own };
        let mut variables = match own {
            None => Map::new(),
            Some(Value::Object(own)) => own,
            // Refused where chat's own field is.
            Some(other) => return Some(other),
        };
        let thinks = effort != "none";
        variables.entry("enable_thinking").or_insert(Value::from(thinks));
        if thinks {
            variables.entry("reasoning_effort").or_insert(Value::from(effort));
        }
        Some(Value::Object(variables))
    }
}

impl TextSettings {
    /// Reads `text`; also returns the field of chat that says the same.
    ///
    /// # Errors
    /// Refuses other formats, and what is not served.
    pub(super) fn read(field: Option<Value>) -> Result<(Self, Option<Value>), ApiError> {
        let mut members = Members::new("text", field.unwrap_or_else(|| json!({})))?;
        if members.take("verbosity").is_some_and(|verbosity| verbosity != "medium") {
            return Err(ApiError::UnsupportedField { param: members.path_to("verbosity") });
        }
        let format = members.take("format").unwrap_or_else(|| json!({"type": "text"}));
        let response_format = response_format(format.clone(), members.path_to("format"))?;
        members.finish()?;
        Ok((Self { format, verbosity: "medium" }, response_format))
    }
}

/// Returns chat's form of a format, `None` for text.
fn response_format(format: Value, path: String) -> Result<Option<Value>, ApiError> {
    let mut members = Members::new(path, format)?;
    let format = match members.text("type")?.as_str() {
        "text" => None,
        "json_object" => Some(json!({"type": "json_object"})),
        "json_schema" => {
            let mut schema = Map::new();
            for name in ["name", "description", "schema", "strict"] {
                schema.extend(members.take(name).map(|value| (name.to_owned(), value)));
            }
            Some(json!({"type": "json_schema", "json_schema": schema}))
        }
        _ => {
            let message = "must be \"text\", \"json_object\" or \"json_schema\"";
            return Err(members.invalid("type", message));
        }
    };
    members.finish()?;
    Ok(format)
}

/// Reads `metadata`.
///
/// # Errors
/// Refuses more or longer pairs than OpenAI takes, and what is no text.
pub(super) fn read_metadata(field: Option<Value>) -> Result<Map<String, Value>, ApiError> {
    let invalid = |param: &str, message: String| Err(ApiError::invalid(param, message));
    let pairs = match field {
        None => Map::new(),
        Some(Value::Object(pairs)) => pairs,
        Some(_) => return invalid("metadata", "must be an object".to_owned()),
    };
    if pairs.len() > MAX_METADATA {
        let message = format!("takes at most {MAX_METADATA} pairs, got {}", pairs.len());
        return invalid("metadata", message);
    }
    for (key, value) in &pairs {
        if key.chars().count() > MAX_METADATA_KEY_CHARS {
            let message = format!("keys have at most {MAX_METADATA_KEY_CHARS} characters");
            return invalid("metadata", message);
        }
        let length = value.as_str().map(|text| text.chars().count());
        if length.is_none_or(|length| length > MAX_METADATA_VALUE_CHARS) {
            let message =
                format!("must be a string of at most {MAX_METADATA_VALUE_CHARS} characters");
            return invalid(&format!("metadata.{key}"), message);
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efforts_are_variables_that_a_request_can_set_itself() {
        let variables = |own: Option<Value>, effort: Option<&str>| {
            let effort = effort.map(str::to_owned);
            ReasoningSettings { effort, summary: None }.template_variables(own)
        };
        let none = json!({"enable_thinking": false});
        assert_eq!(variables(None, Some("none")), Some(none.clone()));
        let low = json!({"enable_thinking": true, "reasoning_effort": "low"});
        assert_eq!(variables(Some(Value::Null), Some("low")), Some(low));
        let own = json!({"enable_thinking": false, "reasoning_effort": "low"});
        assert_eq!(variables(Some(none.clone()), Some("low")), Some(own));
        assert_eq!(variables(None, None), None);
        assert_eq!(variables(Some(none.clone()), None), Some(none));
    }
}
