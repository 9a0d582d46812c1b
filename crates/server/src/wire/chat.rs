//! `POST /v1/chat/completions` on the wire.

use super::shared::{SamplingFields, StopField, StreamOptions, WireFinishReason};
use super::structured_output::OutputFields;
use super::tools::{ToolCall, ToolCallDelta};
use super::usage::Usage;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A request body.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ChatRequest {
    pub(crate) model: Option<String>,
    pub(crate) messages: Option<Vec<ChatMessage>>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) max_completion_tokens: Option<u32>,
    pub(crate) logprobs: Option<bool>,
    pub(crate) top_logprobs: Option<u32>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) cache_prompt: Option<bool>,
    pub(super) n: Option<u32>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) top_k: Option<i64>,
    pub(super) min_p: Option<f64>,
    pub(super) seed: Option<i64>,
    pub(super) stop: Option<StopField>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) response_format: Option<Value>,
    pub(super) guided_json: Option<Value>,
    pub(super) guided_regex: Option<Value>,
    pub(super) guided_choice: Option<Value>,
    pub(super) guided_grammar: Option<Value>,
    pub(super) structured_outputs: Option<Value>,
    pub(super) grammar: Option<Value>,
    #[serde(flatten)]
    pub(crate) extra: BTreeMap<String, Value>,
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

/// One message of the conversation.
#[derive(Debug, Deserialize)]
pub(crate) struct ChatMessage {
    pub(crate) role: String,
    pub(crate) content: Option<ChatContent>,
    #[serde(flatten)]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// The content of a message.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of parts with a `type`")]
pub(crate) enum ChatContent {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// One part of a message's content.
#[derive(Debug, Deserialize)]
pub(crate) struct ContentPart {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
}

/// A whole response.
#[derive(Debug, Serialize)]
pub(crate) struct ChatResponse {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) usage: Usage,
}

/// One choice of a whole response.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: AssistantMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: WireFinishReason,
}

/// The model's message; `refusal` is required by strict clients.
#[derive(Debug, Serialize)]
pub(crate) struct AssistantMessage {
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
#[derive(Debug, Serialize)]
pub(crate) struct ChatChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChatChunkChoice>,
    /// Absent without `include_usage`; else `null` in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
}

/// What one chunk adds to a choice.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: ChatDelta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<WireFinishReason>,
}

/// What one chunk adds to a message.
#[derive(Debug, Default, Serialize)]
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
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ChatTokenLogprob>,
    pub(crate) refusal: Option<Vec<ChatTokenLogprob>>,
}

/// A token, its log probability and the most likely tokens in its place.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChatTokenLogprob {
    #[serde(flatten)]
    pub(crate) token: ChatTopLogprob,
    pub(crate) top_logprobs: Vec<ChatTopLogprob>,
}

/// A token and its log probability.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChatTopLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}
