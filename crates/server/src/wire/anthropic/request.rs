//! The body of a request, and what it asks for in OpenAI's terms.

use super::conversation::{Conversation, LastTurn};
use super::members::Members;
use super::output_config;
use super::tools;
use crate::validation;
use crate::wire::chat::ChatRequest;
use crate::wire::error::ApiError;
use crate::wire::field_rules::{self, FieldRule};
use crate::wire::shared::StopField;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Fields that no request type names, sorted.
const FIELDS: &[(&str, FieldRule)] = &[
    ("cache_control", FieldRule::Ignored),
    ("container", FieldRule::Neutral(Value::is_null)),
    ("context_management", FieldRule::Neutral(keeps_everything)),
    ("diagnostics", FieldRule::Neutral(Value::is_null)),
    ("inference_geo", FieldRule::Neutral(Value::is_null)),
    ("mcp_servers", FieldRule::Neutral(is_empty_list)),
    ("metadata", FieldRule::Ignored),
    ("service_tier", FieldRule::Neutral(is_any_tier)),
    ("speed", FieldRule::Neutral(is_standard)),
    ("thread", FieldRule::Neutral(Value::is_null)),
];

fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

/// Tells whether the edits of a conversation leave all of it as it is.
fn keeps_everything(value: &Value) -> bool {
    let keeps_all = |edit: &Value| {
        edit["type"].as_str().is_some_and(|kind| kind.starts_with("clear_thinking"))
            && edit["keep"] == "all"
    };
    let edits = value.get("edits").and_then(Value::as_array);
    edits.is_some_and(|edits| edits.iter().all(keeps_all))
}

fn is_standard(value: &Value) -> bool {
    value == "standard"
}

/// Tells whether a tier asks for nothing that is not there: there is one for all.
fn is_any_tier(value: &Value) -> bool {
    matches!(value.as_str(), Some("auto" | "standard_only"))
}

/// A request body; absent and `null` mean the same.
#[derive(Debug, Deserialize)]
pub(crate) struct MessagesRequest {
    model: Option<String>,
    max_tokens: Option<u32>,
    messages: Option<Value>,
    system: Option<Value>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    thinking: Option<Value>,
    output_config: Option<Value>,
    tools: Option<Value>,
    tool_choice: Option<Value>,
    #[serde(flatten)]
    extra: BTreeMap<String, Value>,
}

impl MessagesRequest {
    /// Checks that there is a `max_tokens`, which all but counting needs.
    ///
    /// # Errors
    /// Refuses its absence.
    pub(crate) fn check_max_tokens(&self) -> Result<(), ApiError> {
        match self.max_tokens {
            Some(_) => Ok(()),
            None => Err(ApiError::invalid("max_tokens", "is required")),
        }
    }

    /// Returns the request of OpenAI's API that asks for the same.
    ///
    /// # Errors
    /// Refuses what is not well-formed or not served, naming it.
    pub(crate) fn into_chat(self) -> Result<ChatRequest, ApiError> {
        field_rules::check("", &self.extra, FIELDS)?;
        let stop = self.stop_sequences.map(StopField::Many);
        let stop = validation::stop_strings(stop).map_err(own_name)?;
        let Conversation { messages, last } = Conversation::read(self.system, self.messages)?;
        let mut extra = tools::read(self.tools, self.tool_choice)?;
        if last == LastTurn::Assistant {
            extra.insert("continue_final_message".to_owned(), Value::from(true));
        }
        if let Some(thinking) = self.thinking.filter(|thinking| !thinking.is_null()) {
            let variables = json!({"enable_thinking": read_thinking(thinking)?});
            extra.insert("chat_template_kwargs".to_owned(), variables);
        }
        let output_config = self.output_config.filter(|config| !config.is_null());
        Ok(ChatRequest {
            response_format: output_config.map(output_config::read).transpose()?.flatten(),
            model: self.model,
            messages: Some(messages),
            stream: self.stream,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            stop: Some(StopField::Many(stop)),
            extra,
            ..ChatRequest::default()
        })
    }
}

/// Returns whether the model is asked to think.
fn read_thinking(field: Value) -> Result<bool, ApiError> {
    let mut thinking = Members::new("thinking", field)?;
    let thinks = match thinking.text("type")?.as_str() {
        "enabled" => {
            // Bounded by `max_tokens` alone: no model here is told of a budget.
            let budget = thinking.take("budget_tokens").unwrap_or_default();
            if budget.as_u64().is_none_or(|budget| budget == 0) {
                return Err(thinking.invalid("budget_tokens", "must be a number of tokens"));
            }
            true
        }
        "adaptive" => true,
        "disabled" => false,
        _ => {
            let message = "must be \"enabled\", \"adaptive\" or \"disabled\"";
            return Err(thinking.invalid("type", message));
        }
    };
    if thinking.take("display").is_some_and(|display| display != "summarized") {
        let message = "must be \"summarized\": what the model thinks is always told";
        return Err(thinking.invalid("display", message));
    }
    thinking.finish()?;
    Ok(thinks)
}

/// Names the field of an error as Anthropic's API does.
pub(crate) fn own_name(error: ApiError) -> ApiError {
    let own = |param: String| match param.strip_prefix("response_format.json_schema") {
        Some(rest) => format!("output_config.format{rest}"),
        None if param == "stop" => "stop_sequences".to_owned(),
        None if param.starts_with("tools[") => {
            param.replace(".function.parameters", ".input_schema").replace(".function", "")
        }
        None => param,
    };
    let ApiError::InvalidField { param, message } = error else { return error };
    ApiError::InvalidField { param: own(param), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_free_of_duplicates() {
        assert!(FIELDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
