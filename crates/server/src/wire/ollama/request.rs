//! The bodies of `POST /api/chat` and `POST /api/generate`, and what they ask for in OpenAI's
//! terms.

use super::message::Message;
use super::options::{OptionFields, Sampling};
use crate::served_model::ServedModel;
use crate::validation;
use crate::wire::chat::{ChatContent, ChatMessage, ChatRequest};
use crate::wire::completions::CompletionRequest;
use crate::wire::described::described;
use crate::wire::error::ApiError;
use crate::wire::field_rules::{self, FieldRule};
use crate::wire::tool_schemas::Tool;
use crate::wire::tools::MAX_TOOLS;
use mini_infer_core::SamplingParams;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Fields of both bodies that no type names, sorted.
const FIELDS: &[(&str, FieldRule)] = &[
    ("_debug_render_only", FieldRule::Neutral(is_false)),
    ("height", FieldRule::Neutral(Value::is_null)),
    ("shift", FieldRule::Ignored),
    ("steps", FieldRule::Neutral(Value::is_null)),
    ("truncate", FieldRule::Ignored),
    ("width", FieldRule::Neutral(Value::is_null)),
];

fn is_false(value: &Value) -> bool {
    value.as_bool() == Some(false)
}

/// How much a model may be asked to think.
const THINKING_LEVELS: [&str; 4] = ["low", "medium", "high", "max"];

/// What a body asks for.
#[derive(Debug)]
pub(crate) enum Asked {
    /// That the model be there, which it is; the rest of the body is judged all the same.
    Load(Box<ChatRequest>),
    /// The answer to a conversation.
    Chat(Box<ChatRequest>),
    /// The continuation of a text.
    Text(Box<CompletionRequest>),
}

/// Asks for the next message of a conversation, as Ollama's API does.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaChatRequest", deny_unknown_fields)]
pub(crate) struct ChatBody {
    /// The model, or an adapter of it, with or without `:latest`.
    #[schemars(required, length(min = 1))]
    pub(crate) model: Option<String>,
    /// The conversation; without any, nothing is generated.
    messages: Option<Vec<Message>>,
    /// Tools that the model may call.
    #[schemars(with = "Option<Vec<Tool>>", length(max = MAX_TOOLS))]
    tools: Option<Value>,
    /// `false`: the answer is one object instead of a stream of lines.
    stream: Option<bool>,
    /// What the output must be.
    #[schemars(with = "Option<OllamaFormat>")]
    format: Option<Value>,
    /// Without effect on a model that stays; 0 is refused where nothing is asked.
    keep_alive: Option<Value>,
    /// How tokens are chosen.
    options: Option<OptionFields>,
    /// Whether the model thinks first, and how much.
    #[schemars(with = "Option<OllamaThink>")]
    think: Option<Value>,
    /// Tells the log probability of each token.
    logprobs: Option<bool>,
    /// How many of the likeliest tokens to tell in each place; needs `logprobs`.
    #[schemars(range(max = SamplingParams::MAX_LOGPROBS))]
    top_logprobs: Option<u32>,
    #[serde(flatten)]
    #[schemars(schema_with = "extra_schema")]
    extra: BTreeMap<String, Value>,
}

/// Asks for the answer to a prompt, as Ollama's API does.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaGenerateRequest", deny_unknown_fields)]
pub(crate) struct GenerateBody {
    /// The model, or an adapter of it, with or without `:latest`.
    #[schemars(required, length(min = 1))]
    pub(crate) model: Option<String>,
    /// What the user says; without any, nothing is generated.
    prompt: Option<String>,
    /// The text after the gap that the output is to fill.
    suffix: Option<String>,
    /// What the system says before the prompt.
    system: Option<String>,
    /// Accepted empty: the template is the model's.
    #[schemars(length(max = 0))]
    template: Option<String>,
    /// Accepted empty: a conversation is for `/api/chat`.
    #[schemars(length(max = 0))]
    context: Option<Vec<Value>>,
    /// Accepted empty: the model sees none.
    #[schemars(length(max = 0))]
    images: Option<Vec<Value>>,
    /// The prompt goes to the model without a chat template.
    raw: Option<bool>,
    /// `false`: the answer is one object instead of a stream of lines.
    stream: Option<bool>,
    /// What the output must be.
    #[schemars(with = "Option<OllamaFormat>")]
    format: Option<Value>,
    /// Without effect on a model that stays; 0 is refused where nothing is asked.
    keep_alive: Option<Value>,
    /// How tokens are chosen.
    options: Option<OptionFields>,
    /// Whether the model thinks first, and how much.
    #[schemars(with = "Option<OllamaThink>")]
    think: Option<Value>,
    /// Tells the log probability of each token.
    logprobs: Option<bool>,
    /// How many of the likeliest tokens to tell in each place; needs `logprobs`.
    #[schemars(range(max = SamplingParams::MAX_LOGPROBS))]
    top_logprobs: Option<u32>,
    #[serde(flatten)]
    #[schemars(schema_with = "extra_schema")]
    extra: BTreeMap<String, Value>,
}

/// Describes the fields that are judged out of `extra`.
fn extra_schema(_: &mut SchemaGenerator) -> Schema {
    field_rules::schema(FIELDS)
}

described! {
    /// `json` for any JSON object, or a JSON schema; an empty text for nothing in particular.
    OllamaFormat: json!({"anyOf": [{"enum": ["json", ""]}, {"type": "object"}]});
    /// Whether the model thinks, or how much.
    OllamaThink: json!({"anyOf": [{"type": "boolean"}, {"enum": THINKING_LEVELS}]});
}

impl ChatBody {
    /// Returns what a model of this kind is asked for.
    ///
    /// # Errors
    /// Refuses what is not well-formed or not served, naming it.
    pub(crate) fn into_asked(self, model: &ServedModel) -> Result<Asked, ApiError> {
        field_rules::check("", &self.extra, FIELDS)?;
        let messages = self.messages.unwrap_or_default();
        let is_empty = messages.is_empty();
        let continues = messages.last().is_some_and(Message::is_beginning);
        let numbered = messages.into_iter().enumerate();
        let messages = numbered.map(|(i, message)| message.into_chat(&format!("messages[{i}]")));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let sampling = self.options.unwrap_or_default().into_sampling(model.max_model_len)?;
        let mut extra = thinking(self.think, model)?;
        if let Some(tools) = self.tools {
            extra.insert("tools".to_owned(), tools);
        }
        if continues {
            extra.insert("continue_final_message".to_owned(), Value::from(true));
        }
        let request = Box::new(ChatRequest {
            messages: Some(messages),
            stream: Some(self.stream.unwrap_or(true)),
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs,
            ..chat_request(sampling, extra, Format::read(self.format)?)
        });
        if is_empty {
            check_kept(self.keep_alive)?;
            return Ok(Asked::Load(request));
        }
        Ok(Asked::Chat(request))
    }
}

impl GenerateBody {
    /// Returns what a model of this kind is asked for.
    ///
    /// # Errors
    /// Refuses what is not well-formed or not served, naming it.
    pub(crate) fn into_asked(mut self, model: &ServedModel) -> Result<Asked, ApiError> {
        field_rules::check("", &self.extra, FIELDS)?;
        self.check_unserved()?;
        let prompt = self.prompt.take().unwrap_or_default();
        let suffix = self.suffix.take().filter(|suffix| !suffix.is_empty());
        let is_empty = prompt.is_empty() && suffix.is_none();
        let system = self.system.take().filter(|system| !system.is_empty());
        let sampling = self.options.take().unwrap_or_default();
        let sampling = sampling.into_sampling(model.max_model_len)?;
        let format = Format::read(self.format.take())?;
        let stream = Some(self.stream.unwrap_or(true));
        if !is_empty && (self.raw == Some(true) || suffix.is_some()) {
            let think = self.think.filter(|think| !think.is_null());
            for (field, is_there) in [("system", system.is_some()), ("think", think.is_some())] {
                if is_there {
                    let message = "goes with a chat template, which `raw` and `suffix` leave out";
                    return Err(ApiError::invalid(field, message));
                }
            }
            return Ok(Asked::Text(Box::new(CompletionRequest {
                prompt: Some(Value::from(prompt)),
                suffix,
                stream,
                logprobs: validation::chat_logprobs(self.logprobs, self.top_logprobs)?,
                ..text_request(sampling, format)
            })));
        }
        let system = system.map(|text| text_message("system", text));
        let messages = system.into_iter().chain([text_message("user", prompt)]).collect();
        let extra = thinking(self.think, model)?;
        let request = Box::new(ChatRequest {
            messages: Some(messages),
            stream,
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs,
            ..chat_request(sampling, extra, format)
        });
        if is_empty {
            check_kept(self.keep_alive)?;
            return Ok(Asked::Load(request));
        }
        Ok(Asked::Chat(request))
    }

    fn check_unserved(&self) -> Result<(), ApiError> {
        let has_items = |items: &Option<Vec<Value>>| items.as_ref().is_some_and(|i| !i.is_empty());
        let has_template = self.template.as_ref().is_some_and(|template| !template.is_empty());
        let fields = [
            ("context", has_items(&self.context)),
            ("images", has_items(&self.images)),
            ("template", has_template),
        ];
        match fields.iter().find(|(_, is_there)| *is_there) {
            Some((field, _)) => Err(ApiError::UnsupportedField { param: (*field).to_owned() }),
            None => Ok(()),
        }
    }
}

fn text_message(role: &str, text: String) -> ChatMessage {
    let content = Some(ChatContent::Text(text));
    ChatMessage { role: role.to_owned(), content, extra: BTreeMap::new() }
}

fn chat_request(
    sampling: Sampling,
    mut extra: BTreeMap<String, Value>,
    format: Format,
) -> ChatRequest {
    extra.extend(sampling.extra);
    ChatRequest {
        max_tokens: sampling.max_tokens,
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        seed: sampling.seed,
        stop: sampling.stop,
        response_format: format.response_format,
        guided_json: format.guided_json,
        extra,
        ..ChatRequest::default()
    }
}

fn text_request(sampling: Sampling, format: Format) -> CompletionRequest {
    CompletionRequest {
        max_tokens: sampling.max_tokens,
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        seed: sampling.seed,
        stop: sampling.stop,
        response_format: format.response_format,
        guided_json: format.guided_json,
        extra: sampling.extra,
        ..CompletionRequest::default()
    }
}

/// What the output must be, as the fields of OpenAI's and vLLM's that say it.
#[derive(Debug, Default)]
struct Format {
    response_format: Option<Value>,
    guided_json: Option<Value>,
}

impl Format {
    fn read(field: Option<Value>) -> Result<Self, ApiError> {
        let mut format = Self::default();
        match field.unwrap_or_default() {
            Value::Null => {}
            Value::String(text) if text.is_empty() => {}
            Value::String(text) if text == "json" => {
                format.response_format = Some(json!({"type": "json_object"}));
            }
            schema @ Value::Object(_) => format.guided_json = Some(schema),
            Value::String(_) | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                return Err(ApiError::invalid("format", "must be \"json\" or a JSON schema"));
            }
        }
        Ok(format)
    }
}

/// Returns the template's variables that `think` sets.
fn thinking(
    field: Option<Value>,
    model: &ServedModel,
) -> Result<BTreeMap<String, Value>, ApiError> {
    let mut variables = Map::new();
    match field.unwrap_or_default() {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Bool(thinks) => {
            variables.insert("enable_thinking".to_owned(), Value::from(thinks));
        }
        Value::String(level) if THINKING_LEVELS.contains(&level.as_str()) => {
            variables.insert("enable_thinking".to_owned(), Value::from(true));
            variables.insert("reasoning_effort".to_owned(), Value::from(level));
        }
        Value::String(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            let message = "must be true, false, \"low\", \"medium\", \"high\" or \"max\"";
            return Err(ApiError::invalid("think", message));
        }
    }
    let thinks = variables["enable_thinking"] == true;
    if thinks && model.output_format.reasoning().is_none() {
        let message = "this model does not think in a form that this server knows";
        return Err(ApiError::invalid("think", message));
    }
    Ok(BTreeMap::from([("chat_template_kwargs".to_owned(), Value::Object(variables))]))
}

/// Refuses to unload the model, which is all that an empty request with such a `keep_alive` asks.
fn check_kept(keep_alive: Option<Value>) -> Result<(), ApiError> {
    let is_zero = match keep_alive.unwrap_or_default() {
        Value::Number(seconds) => seconds.as_f64() == Some(0.0),
        // A duration of Go, such as `0s` or `0h0m`.
        Value::String(text) => {
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            !digits.is_empty() && digits.bytes().all(|digit| digit == b'0')
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    };
    if is_zero {
        let message = "this server keeps its model for as long as it runs";
        return Err(ApiError::invalid("keep_alive", message));
    }
    Ok(())
}
