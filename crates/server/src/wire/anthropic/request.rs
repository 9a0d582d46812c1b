//! The body of a request, and what it asks for in OpenAI's terms.

use super::conversation::{Conversation, LastTurn};
use super::members::Members;
use super::output_config;
use super::schemas::{
    AnthropicMessage, AnthropicTool, AnthropicToolChoice, ContextManagement, OutputConfigField,
    SystemField, ThinkingField,
};
use super::tools;
use crate::validation::{self, MAX_STOP_STRINGS};
use crate::wire::chat::ChatRequest;
use crate::wire::error::ApiError;
use crate::wire::extra_fields;
use crate::wire::field_rules::{self, FieldRule};
use crate::wire::shared::StopField;
use crate::wire::tools::MAX_TOOLS;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;
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

/// Asks for the next message of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct MessagesRequest {
    /// The model, or an adapter of it; absent, the served model.
    model: Option<String>,
    /// Most output tokens; required but for counting.
    #[schemars(range(min = 1))]
    max_tokens: Option<u32>,
    /// The conversation.
    #[schemars(with = "Vec<AnthropicMessage>", length(min = 1))]
    messages: Option<Value>,
    /// What the system says before it.
    #[schemars(with = "Option<SystemField>")]
    system: Option<Value>,
    /// Strings that end the output and are not part of it.
    #[schemars(length(max = MAX_STOP_STRINGS), inner(length(min = 1)))]
    stop_sequences: Option<Vec<String>>,
    /// Sends events as they come.
    stream: Option<bool>,
    /// Evens out the probabilities of tokens above 1, sharpens them below; 0 takes the likeliest.
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    /// Keeps so many of the likeliest tokens; 0 and -1 keep all.
    #[schemars(range(min = -1, max = u32::MAX))]
    top_k: Option<i64>,
    /// Keeps the likeliest tokens that have this probability together.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    top_p: Option<f64>,
    /// Whether the model thinks first.
    #[schemars(with = "Option<ThinkingField>")]
    thinking: Option<Value>,
    /// What the output must be, and how much thought goes into it.
    #[schemars(with = "Option<OutputConfigField>")]
    output_config: Option<Value>,
    /// Tools that the model may call.
    #[schemars(with = "Option<Vec<AnthropicTool>>", length(max = MAX_TOOLS))]
    tools: Option<Value>,
    /// Whether the model may or must call tools.
    #[schemars(with = "Option<AnthropicToolChoice>")]
    tool_choice: Option<Value>,
    #[serde(flatten)]
    #[schemars(schema_with = "extra_schema")]
    extra: BTreeMap<String, Value>,
}

/// The body of `POST /v1/messages`, in the API's document: `max_tokens` is required there.
pub(crate) enum CreateMessageRequest {}

impl JsonSchema for CreateMessageRequest {
    fn schema_name() -> Cow<'static, str> {
        "CreateMessageRequest".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = MessagesRequest::json_schema(generator);
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            required.push("max_tokens".into());
        }
        if let Some(max_tokens) = schema.pointer_mut("/properties/max_tokens") {
            max_tokens["type"] = "integer".into();
        }
        schema
    }
}

/// Describes the fields that are judged out of `extra`.
fn extra_schema(generator: &mut SchemaGenerator) -> Schema {
    let edits = json_schema!({"properties": {"context_management": {
        "description": "Accepted where it leaves the conversation as it is.",
        "anyOf": [generator.subschema_for::<ContextManagement>(), {"type": "null"}],
    }}});
    extra_fields::merged([field_rules::schema(FIELDS), edits])
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
