//! Messages and the events of their streams.

use crate::wire::shared::WireFinishReason;
use crate::wire::tools::arguments_object;
use crate::wire::usage::Usage;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// A whole message, or the beginning of a streamed one.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Message {
    pub(crate) id: String,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "message"))]
    pub(crate) tag: &'static str,
    #[schemars(extend("const" = "assistant"))]
    pub(crate) role: &'static str,
    pub(crate) model: String,
    pub(crate) content: Vec<ContentBlock>,
    #[serde(flatten)]
    pub(crate) ending: Ending,
    pub(crate) usage: MessageUsage,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentBlock {
    /// The answer.
    Text { text: String },
    /// The reasoning; nothing is signed, but clients require the field.
    Thinking { thinking: String, signature: &'static str },
    /// A call of a tool.
    ToolUse { id: String, name: String, input: Value },
}

impl ContentBlock {
    /// Returns the block with `whole` as what it holds.
    pub(crate) fn with_text(self, whole: String) -> Self {
        match self {
            Self::Text { .. } => Self::Text { text: whole },
            Self::Thinking { signature, .. } => Self::Thinking { thinking: whole, signature },
            Self::ToolUse { id, name, .. } => {
                Self::ToolUse { id, name, input: arguments_object(&whole) }
            }
        }
    }
}

/// Why a message ended; all `null` in the beginning of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Ending {
    pub(crate) stop_reason: Option<StopReason>,
    /// The stop sequence that ended it.
    pub(crate) stop_sequence: Option<String>,
}

impl Ending {
    /// Returns the ending of an output; a stop sequence outweighs calls that it ends.
    pub(crate) fn new(reason: WireFinishReason, stop_sequence: Option<String>) -> Self {
        let stop_reason = match (reason, &stop_sequence) {
            (WireFinishReason::Length, _) => StopReason::MaxTokens,
            (_, Some(_)) => StopReason::StopSequence,
            (WireFinishReason::Stop, None) => StopReason::EndTurn,
            (WireFinishReason::ToolCalls, None) => StopReason::ToolUse,
        };
        Self { stop_reason: Some(stop_reason), stop_sequence }
    }
}

/// Why a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StopReason {
    /// The model ended its turn.
    EndTurn,
    /// The token limit or the end of the context.
    MaxTokens,
    /// One of the request's stop sequences.
    StopSequence,
    /// The model called tools and awaits what they give.
    ToolUse,
}

/// Token counts: the prompt's tokens are the sum of all three kinds of input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct MessageUsage {
    /// Prompt tokens that were computed.
    pub(crate) input_tokens: u32,
    /// Always 0: nothing is charged for what stays in the cache.
    pub(crate) cache_creation_input_tokens: u32,
    /// Prompt tokens that the prefix cache held.
    pub(crate) cache_read_input_tokens: u32,
    pub(crate) output_tokens: u32,
}

impl From<Usage> for MessageUsage {
    fn from(usage: Usage) -> Self {
        let cached_tokens = usage.prompt_tokens_details.cached_tokens;
        Self {
            input_tokens: usage.prompt_tokens - cached_tokens,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached_tokens,
            output_tokens: usage.completion_tokens,
        }
    }
}

/// An event of a stream; its name is its `type`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum MessageEvent {
    MessageStart { message: Message },
    ContentBlockStart { index: usize, content_block: ContentBlock },
    ContentBlockDelta { index: usize, delta: BlockDelta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: Ending, usage: MessageUsage },
    MessageStop,
    Ping,
}

impl MessageEvent {
    /// Returns the event's name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
        }
    }
}

/// What a block grew by.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(crate) enum BlockDelta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// The answer to a request to count.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}
