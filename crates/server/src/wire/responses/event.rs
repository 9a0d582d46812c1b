//! Events of a response's stream.
//!
//! Each has its name as `type` and its place in the stream as `sequence_number`, from 0 on.

use super::item::{Item, Part};
use super::response::ResponseObject;
use crate::wire::chat::ChatTokenLogprob;
use schemars::JsonSchema;
use serde::Serialize;

/// One event.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseEvent {
    #[serde(rename = "type")]
    pub(crate) name: &'static str,
    pub(crate) sequence_number: u64,
    #[serde(flatten)]
    pub(crate) body: EventBody,
}

/// What an event tells.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum EventBody {
    /// How far the response has come.
    Response { response: Box<ResponseObject> },
    /// An item that begins or ends.
    Item { output_index: usize, item: Item },
    /// A part that begins or ends.
    Part { item_id: String, output_index: usize, content_index: usize, part: Part },
    /// What a text grew by; log probabilities belong to answers only.
    TextDelta {
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<ChatTokenLogprob>>,
    },
    /// A whole text.
    TextDone {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<ChatTokenLogprob>>,
    },
    /// What a call's arguments grew by.
    ArgumentsDelta { item_id: String, output_index: usize, delta: String },
    /// A call's whole arguments.
    ArgumentsDone { item_id: String, output_index: usize, name: String, arguments: String },
}
