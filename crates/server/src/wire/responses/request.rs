//! The body of a request, and what it asks for in chat's terms.

use super::conversation;
use super::item::{Item, ItemIds};
use super::item_reading::read_input;
use super::schemas::{
    CacheHints, Includable, ReasoningField, ResponseInput, ResponseMetadata, ResponseTool,
    ResponseToolChoice, TextField,
};
use super::settings::{self, ReasoningSettings, ResponseSettings, TextSettings};
use super::tools;
use crate::chat_rendering::RenderingFields;
use crate::prefix_sharing::MAX_SALT_BYTES;
use crate::wire::chat::ChatRequest;
use crate::wire::error::ApiError;
use crate::wire::extra_fields;
use crate::wire::field_rules::{self, FieldRule};
use crate::wire::sampler_fields::{self, SamplerFields};
use crate::wire::shared::{StopField, StreamOptions};
use crate::wire::tools::MAX_TOOLS;
use mini_infer_core::SamplingParams;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Fields that no request type names, sorted.
const FIELDS: &[(&str, FieldRule)] = &[
    ("access_programs", FieldRule::Neutral(Value::is_null)),
    ("background_options", FieldRule::Neutral(is_soonest)),
    ("context_management", FieldRule::Neutral(is_empty_list)),
    ("conversation", FieldRule::Neutral(Value::is_null)),
    ("image", FieldRule::Neutral(Value::is_null)),
    ("moderation", FieldRule::Neutral(Value::is_null)),
    ("prompt", FieldRule::Neutral(Value::is_null)),
    ("prompt_cache_options", FieldRule::Neutral(is_cache_hint)),
    ("prompt_cache_retention", FieldRule::Ignored),
    ("service_tier", FieldRule::Neutral(is_default_tier)),
    ("truncation", FieldRule::Neutral(is_disabled)),
];

/// What `include` may name: the log probabilities act, the others belong to what is never there or
/// is there anyhow.
const LOGPROBS: &str = "message.output_text.logprobs";
pub(super) const INCLUDABLE: [&str; 8] = [
    LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
];

fn is_soonest(value: &Value) -> bool {
    value == &json!({}) || value == &json!({"completion_window": "soonest"})
}

fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

/// Tells whether the field only says how to cache; prefixes are cached without hints.
fn is_cache_hint(value: &Value) -> bool {
    let is_hint = |(name, value): (&String, &Value)| {
        matches!(name.as_str(), "mode" | "ttl") || value.is_null() || value == &Value::Bool(false)
    };
    value.as_object().is_some_and(|members| members.iter().all(is_hint))
}

fn is_default_tier(value: &Value) -> bool {
    matches!(value.as_str(), Some("auto" | "default"))
}

fn is_disabled(value: &Value) -> bool {
    value == "disabled"
}

/// Asks for a response to a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ResponsesRequest {
    /// The model, or an adapter of it; absent, the served model.
    model: Option<String>,
    /// The conversation, or what is new in it.
    #[schemars(with = "ResponseInput")]
    input: Option<Value>,
    /// What the system says before it.
    instructions: Option<String>,
    /// The response whose conversation this one goes on from.
    previous_response_id: Option<String>,
    /// Keeps the response for later requests; by default where the server keeps any.
    store: Option<bool>,
    /// Goes on without the connection, and answers at once or as a stream; needs `store`.
    background: Option<bool>,
    /// Sends events as they come.
    stream: Option<bool>,
    /// How to stream; needs `stream`.
    stream_options: Option<StreamOptions>,
    /// Most output tokens; the rest of the context by default.
    #[schemars(range(min = 1))]
    max_output_tokens: Option<u32>,
    /// Without effect: it counts calls of tools that a server runs, of which there are none.
    max_tool_calls: Option<u32>,
    /// Pairs of texts that the response repeats.
    #[schemars(with = "Option<ResponseMetadata>")]
    metadata: Option<Value>,
    /// What else the response holds.
    #[schemars(with = "Option<Vec<Includable>>")]
    include: Option<Vec<String>>,
    /// How much the model thinks.
    #[schemars(with = "Option<ReasoningField>")]
    reasoning: Option<Value>,
    /// What the output must be.
    #[schemars(with = "Option<TextField>")]
    text: Option<Value>,
    /// Tools that the model may call.
    #[schemars(with = "Option<Vec<ResponseTool>>", length(max = MAX_TOOLS))]
    tools: Option<Vec<Value>>,
    /// Whether the model may or must call tools, and which.
    #[schemars(with = "Option<ResponseToolChoice>")]
    tool_choice: Option<Value>,
    /// `false`: the answer ends behind its first call.
    parallel_tool_calls: Option<bool>,
    /// Evens out the probabilities of tokens above 1, sharpens them below; 0 takes the likeliest.
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    /// Keeps the likeliest tokens that have this probability together.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    top_p: Option<f64>,
    /// How many of the likeliest tokens to tell in each place; above 0, log probabilities come.
    #[schemars(range(max = SamplingParams::MAX_LOGPROBS))]
    top_logprobs: Option<u32>,
    /// Repeated by the response; without effect.
    prompt_cache_key: Option<String>,
    /// Repeated by the response; without effect.
    safety_identifier: Option<String>,
    /// Repeated by the response; without effect.
    user: Option<String>,
    /// Keeps so many of the likeliest tokens; 0 and -1 keep all.
    #[schemars(range(min = -1, max = u32::MAX))]
    top_k: Option<i64>,
    /// Drops tokens that are less likely than this share of the likeliest one.
    #[schemars(range(min = 0, max = 1))]
    min_p: Option<f64>,
    /// Equal seeds give equal tokens.
    seed: Option<i64>,
    /// Strings that end the output and are not part of it.
    stop: Option<StopField>,
    /// Goes on past the model's own end tokens.
    ignore_eos: Option<bool>,
    /// KV is shared only among requests with the same salt.
    #[schemars(length(min = 1, max = MAX_SALT_BYTES))]
    cache_salt: Option<String>,
    /// `false`: nothing is looked up in the prefix cache nor left in it.
    cache_prompt: Option<bool>,
    #[serde(flatten)]
    #[schemars(schema_with = "extra_schema")]
    extra: BTreeMap<String, Value>,
}

/// Describes the fields that are read out of `extra`.
fn extra_schema(generator: &mut SchemaGenerator) -> Schema {
    let rendering = RenderingFields::json_schema(generator);
    let hints = json!({
        "description": "Accepted where it only says how to cache.",
        "anyOf": [generator.subschema_for::<CacheHints>(), {"type": "null"}],
    });
    let variables = &rendering.as_value()["properties"]["chat_template_kwargs"];
    let own = json_schema!({"properties": {
        "chat_template_kwargs": variables,
        "prompt_cache_options": hints,
    }});
    extra_fields::merged([SamplerFields::json_schema(generator), field_rules::schema(FIELDS), own])
}

/// Whether the server keeps responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storing {
    /// Those that are to be.
    Possible,
    /// None.
    Off,
}

/// What a body asks for.
#[derive(Debug)]
pub(crate) struct AskedResponse {
    /// The request of the chat API that asks for the same.
    pub(crate) chat: ChatRequest,
    /// What the response repeats.
    pub(crate) settings: ResponseSettings,
    /// All that the model is given but for the instructions.
    pub(crate) items: Vec<Arc<Item>>,
}

impl ResponsesRequest {
    /// Returns the response whose conversation this one goes on from.
    pub(crate) fn previous_response_id(&self) -> Option<&str> {
        self.previous_response_id.as_deref()
    }

    /// Returns what is asked for, `previous` being the conversation so far.
    ///
    /// # Errors
    /// Refuses what is not well-formed or not served, naming it.
    pub(crate) fn read(
        mut self,
        previous: Vec<Arc<Item>>,
        ids: &mut ItemIds,
        storing: Storing,
    ) -> Result<AskedResponse, ApiError> {
        let store = self.read_store(storing)?;
        let sampler = sampler_fields::split_off(&mut self.extra);
        let variables = self.extra.remove("chat_template_kwargs");
        field_rules::check("", &self.extra, FIELDS)?;
        let mut items = previous;
        items.extend(read_input(self.input.take(), ids)?);
        if items.is_empty() {
            return Err(ApiError::invalid("input", "must hold at least one item"));
        }
        let reasoning = ReasoningSettings::read(self.reasoning.take())?;
        let (text, response_format) = TextSettings::read(self.text.take())?;
        let mut extra = sampler;
        if let Some(variables) = reasoning.template_variables(variables) {
            extra.insert("chat_template_kwargs".to_owned(), variables);
        }
        extra.extend(self.tool_fields()?);
        let messages = conversation::messages(self.instructions.as_deref(), as_items(&items));
        let chat = ChatRequest {
            messages: Some(messages),
            logprobs: Some(self.reads_logprobs()?),
            response_format,
            extra,
            ..self.take_chat()
        };
        let settings = self.settings(store, reasoning, text)?;
        Ok(AskedResponse { chat, settings, items })
    }

    /// Returns the fields of chat that say what the tools do.
    fn tool_fields(&self) -> Result<BTreeMap<String, Value>, ApiError> {
        let tools = tools::read_tools(self.tools.as_deref().unwrap_or_default())?;
        let mut fields = BTreeMap::from([("tools".to_owned(), Value::from(tools))]);
        if let Some(choice) = self.tool_choice.clone() {
            fields.insert("tool_choice".to_owned(), tools::read_choice(choice)?);
        }
        if let Some(parallel) = self.parallel_tool_calls {
            fields.insert("parallel_tool_calls".to_owned(), Value::from(parallel));
        }
        Ok(fields)
    }

    /// Returns a chat request with the fields that both have.
    fn take_chat(&mut self) -> ChatRequest {
        ChatRequest {
            model: self.model.take(),
            stream: self.stream,
            stream_options: self.stream_options.take(),
            max_tokens: self.max_output_tokens,
            top_logprobs: self.top_logprobs,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            seed: self.seed,
            stop: self.stop.take(),
            ignore_eos: self.ignore_eos,
            cache_salt: self.cache_salt.take(),
            cache_prompt: self.cache_prompt,
            ..ChatRequest::default()
        }
    }

    /// Returns what the response repeats.
    fn settings(
        self,
        store: bool,
        reasoning: ReasoningSettings,
        text: TextSettings,
    ) -> Result<ResponseSettings, ApiError> {
        Ok(ResponseSettings {
            background: self.background.unwrap_or(false),
            instructions: self.instructions,
            max_output_tokens: self.max_output_tokens,
            max_tool_calls: self.max_tool_calls,
            metadata: settings::read_metadata(self.metadata)?,
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            previous_response_id: self.previous_response_id,
            prompt_cache_key: self.prompt_cache_key,
            reasoning,
            safety_identifier: self.safety_identifier,
            service_tier: "default",
            store,
            temperature: self.temperature.unwrap_or(1.0),
            text,
            tool_choice: self.tool_choice.unwrap_or_else(|| Value::from("auto")),
            tools: self.tools.unwrap_or_default(),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.0),
            truncation: "disabled",
            user: self.user,
        })
    }

    /// Tells whether the response is to be kept; what runs in the background has to be.
    fn read_store(&self, storing: Storing) -> Result<bool, ApiError> {
        if self.store == Some(true) && storing == Storing::Off {
            return Err(ApiError::invalid("store", "this server keeps no responses"));
        }
        let store = self.store.unwrap_or(storing == Storing::Possible);
        if self.background == Some(true) && !store {
            return Err(ApiError::invalid("background", "needs a response that is stored"));
        }
        Ok(store)
    }

    /// Tells whether the answer comes with log probabilities.
    fn reads_logprobs(&self) -> Result<bool, ApiError> {
        let include = self.include.as_deref().unwrap_or_default();
        for (i, name) in include.iter().enumerate() {
            if !INCLUDABLE.contains(&name.as_str()) {
                let message = format!("must be one of {INCLUDABLE:?}");
                return Err(ApiError::invalid(format!("include[{i}]"), message));
            }
        }
        let asks = include.iter().any(|name| name == LOGPROBS);
        Ok(asks || self.top_logprobs.is_some_and(|count| count > 0))
    }
}

/// Returns the items behind their pointers.
fn as_items(items: &[Arc<Item>]) -> impl Iterator<Item = &Item> {
    items.iter().map(AsRef::as_ref)
}

/// Names the field of an error as the Responses API does.
pub(crate) fn own_name(error: ApiError) -> ApiError {
    let own = |param: String| {
        let renamed = [
            ("response_format.json_schema", "text.format"),
            ("response_format", "text.format"),
            ("tool_choice.allowed_tools", "tool_choice"),
            ("messages", "input"),
            ("max_tokens", "max_output_tokens"),
        ];
        if param.starts_with("tools[") {
            // The rest is a schema's, whose properties may be called anything.
            return param.replacen(".function", "", 1);
        }
        let found = renamed.iter().find_map(|(chat, own)| Some((own, param.strip_prefix(chat)?)));
        found.map_or_else(|| param.clone(), |(own, rest)| format!("{own}{rest}"))
    };
    let ApiError::InvalidField { param, message } = error else {
        let ApiError::ContextLengthExceeded { limit, num_prompt_tokens, max_tokens, .. } = error
        else {
            return error;
        };
        let param = "input";
        return ApiError::ContextLengthExceeded { param, limit, num_prompt_tokens, max_tokens };
    };
    ApiError::InvalidField { param: own(param), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(param: &str) -> String {
        let error = own_name(ApiError::invalid(param, "x"));
        let ApiError::InvalidField { param, .. } = error else { panic!("{error:?}") };
        param
    }

    #[test]
    fn fields_are_named_as_they_were_sent() {
        assert_eq!(own("messages"), "input");
        assert_eq!(own("max_tokens"), "max_output_tokens");
        assert_eq!(own("temperature"), "temperature");
        assert_eq!(own("tools[1].function.name"), "tools[1].name");
        let property = "tools[0].function.parameters.properties.function.not";
        assert_eq!(own(property), "tools[0].parameters.properties.function.not");
        assert_eq!(own("response_format.json_schema.schema.not"), "text.format.schema.not");
        assert_eq!(own("response_format"), "text.format");
        assert_eq!(own("tool_choice.allowed_tools.tools[2]"), "tool_choice.tools[2]");
    }

    #[test]
    fn the_table_is_sorted_and_free_of_duplicates() {
        assert!(FIELDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
