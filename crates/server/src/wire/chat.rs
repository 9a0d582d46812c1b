//! `POST /v1/chat/completions` on the wire.

use super::extra_fields;
use super::field_rules;
use super::sampler_fields::SamplerFields;
use super::shared::{SamplingFields, StopField, StreamOptions, WireFinishReason};
use super::structured_output::{
    ChoiceList, JsonSchemaField, NonEmptyText, OutputFields, ResponseFormat, StructuredOutputs,
};
use super::tool_schemas;
use super::tools::{ToolCall, ToolCallDelta};
use super::usage::Usage;
use crate::chat_rendering::RenderingFields;
use crate::prefix_sharing::MAX_SALT_BYTES;
use crate::prompt_logprobs::PromptLogprobs;
use crate::validation::ROLES;
use mini_infer_core::SamplingParams;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Asks for the next message of a conversation.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ChatRequest {
    /// The model, or an adapter of it; absent, the served model.
    pub(crate) model: Option<String>,
    /// The conversation.
    #[schemars(required, length(min = 1))]
    pub(crate) messages: Option<Vec<ChatMessage>>,
    /// Sends chunks as server-sent events.
    pub(crate) stream: Option<bool>,
    /// How to stream; needs `stream`.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Most output tokens; the rest of the context by default.
    #[schemars(range(min = 1))]
    pub(crate) max_tokens: Option<u32>,
    /// Another name of `max_tokens`; the smaller one counts where both are given.
    #[schemars(range(min = 1))]
    pub(crate) max_completion_tokens: Option<u32>,
    /// Tells the log probability of each token.
    pub(crate) logprobs: Option<bool>,
    /// How many of the likeliest tokens to tell in each place; needs `logprobs`.
    #[schemars(range(max = SamplingParams::MAX_LOGPROBS))]
    pub(crate) top_logprobs: Option<u32>,
    /// Tells the log probability of each token of the prompt, and of so many of the likeliest in its
    /// place; not with `stream`.
    #[schemars(range(min = 0, max = SamplingParams::MAX_LOGPROBS))]
    pub(crate) prompt_logprobs: Option<i64>,
    /// KV is shared only among requests with the same salt.
    #[schemars(length(min = 1, max = MAX_SALT_BYTES))]
    pub(crate) cache_salt: Option<String>,
    /// `false`: nothing is looked up in the prefix cache nor left in it.
    pub(crate) cache_prompt: Option<bool>,
    /// Choices to make.
    #[schemars(range(min = 1, max = SamplingParams::MAX_N))]
    pub(super) n: Option<u32>,
    /// Evens out the probabilities of tokens above 1, sharpens them below; 0 takes the likeliest.
    #[schemars(range(min = 0, max = 2))]
    pub(super) temperature: Option<f64>,
    /// Keeps the likeliest tokens that have this probability together.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub(super) top_p: Option<f64>,
    /// Keeps so many of the likeliest tokens; 0 and -1 keep all.
    #[schemars(range(min = -1, max = u32::MAX))]
    pub(super) top_k: Option<i64>,
    /// Drops tokens that are less likely than this share of the likeliest one.
    #[schemars(range(min = 0, max = 1))]
    pub(super) min_p: Option<f64>,
    /// Equal seeds give equal tokens.
    pub(super) seed: Option<i64>,
    /// Strings that end the output and are not part of it.
    pub(super) stop: Option<StopField>,
    /// Goes on past the model's own end tokens.
    pub(super) ignore_eos: Option<bool>,
    /// What the output must be.
    #[schemars(with = "Option<ResponseFormat>")]
    pub(super) response_format: Option<Value>,
    /// The output is JSON that this schema allows, given as an object or as text.
    #[schemars(with = "Option<JsonSchemaField>")]
    pub(super) guided_json: Option<Value>,
    /// The output is text that this regular expression matches.
    #[schemars(with = "Option<NonEmptyText>")]
    pub(super) guided_regex: Option<Value>,
    /// The output is one of these strings.
    #[schemars(with = "Option<ChoiceList>")]
    pub(super) guided_choice: Option<Value>,
    /// The output is text of this grammar, in GBNF or Lark.
    #[schemars(with = "Option<NonEmptyText>")]
    pub(super) guided_grammar: Option<Value>,
    /// What the output must be, in one of five ways.
    #[schemars(with = "Option<StructuredOutputs>")]
    pub(super) structured_outputs: Option<Value>,
    /// Another name of `guided_grammar`.
    #[schemars(with = "Option<NonEmptyText>")]
    pub(super) grammar: Option<Value>,
    #[serde(flatten)]
    #[schemars(schema_with = "extra_schema")]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// Describes the fields that are read out of `extra`.
fn extra_schema(generator: &mut SchemaGenerator) -> Schema {
    let groups = [
        SamplerFields::json_schema(generator),
        RenderingFields::json_schema(generator),
        tool_schemas::request_fields(generator),
        field_rules::schema(field_rules::CHAT),
    ];
    extra_fields::merged(groups)
}

impl ChatRequest {
    /// Takes the sampling fields out of the body.
    pub(crate) fn take_sampling(&mut self) -> SamplingFields {
        SamplingFields {
            n: self.n,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            seed: self.seed,
            stop: self.stop.take(),
            ignore_eos: self.ignore_eos,
        }
    }

    /// Takes the fields that constrain the output out of the body.
    pub(crate) fn take_output_fields(&mut self) -> OutputFields {
        OutputFields {
            response_format: self.response_format.take(),
            guided_json: self.guided_json.take(),
            guided_regex: self.guided_regex.take(),
            guided_choice: self.guided_choice.take(),
            guided_grammar: self.guided_grammar.take(),
            structured_outputs: self.structured_outputs.take(),
            grammar: self.grammar.take(),
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ChatMessage {
    /// Who says it.
    #[schemars(extend("enum" = ROLES))]
    pub(crate) role: String,
    /// What is said; `null` only from the assistant.
    pub(crate) content: Option<ChatContent>,
    #[serde(flatten)]
    #[schemars(schema_with = "message_extra_schema")]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// Describes the fields that are read out of a message's `extra`.
fn message_extra_schema(generator: &mut SchemaGenerator) -> Schema {
    let rules = field_rules::schema(field_rules::MESSAGE);
    extra_fields::merged([rules, tool_schemas::message_fields(generator)])
}

/// The content of a message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string or a list of parts with a `type`")]
pub(crate) enum ChatContent {
    /// A text.
    Text(String),
    /// Texts that are joined.
    Parts(Vec<ContentPart>),
}

/// One part of a message's content.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ContentPart {
    /// `text`: no other parts are served.
    #[serde(rename = "type")]
    #[schemars(extend("const" = "text"))]
    pub(crate) kind: String,
    /// The text.
    #[schemars(required)]
    pub(crate) text: Option<String>,
}

/// A whole response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatResponse {
    pub(crate) id: String,
    #[schemars(extend("const" = "chat.completion"))]
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) usage: Usage,
    /// Present where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
}

/// One choice of a whole response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: AssistantMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: WireFinishReason,
}

/// The model's message; `refusal` is required by strict clients.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AssistantMessage {
    #[schemars(extend("const" = "assistant"))]
    pub(crate) role: &'static str,
    /// `null` where reasoning or calls are all there is.
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

/// One chunk of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatChunk<'a> {
    pub(crate) id: &'a str,
    #[schemars(extend("const" = "chat.completion.chunk"))]
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChatChunkChoice>,
    /// Absent without `include_usage`; else `null` in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
}

/// What one chunk adds to a choice.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: ChatDelta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<WireFinishReason>,
}

/// What one chunk adds to a message.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// `null` in the opening of a message that may have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<[ToolCallDelta; 1]>,
}

/// Log probabilities of a choice.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ChatTokenLogprob>,
    pub(crate) refusal: Option<Vec<ChatTokenLogprob>>,
}

/// A token, its log probability and the most likely tokens in its place.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ChatTokenLogprob {
    #[serde(flatten)]
    pub(crate) token: ChatTopLogprob,
    pub(crate) top_logprobs: Vec<ChatTopLogprob>,
}

/// A token and its log probability.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ChatTopLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}
