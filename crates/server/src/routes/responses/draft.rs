//! A response that grows piece by piece, and the events that tell of it.
//!
//! Whole responses and streams come from the same draft, so that a stream put together is the
//! response. Pieces of one kind that follow each other are one item; the item that is open is the
//! last of the output.

use crate::choice_text::{Piece, PieceKind};
use crate::routes::chat::chat_logprob;
use crate::state::unix_time;
use crate::wire::error::ApiError;
use crate::wire::responses::event::{EventBody, ResponseEvent};
use crate::wire::responses::item::{
    CallItem, Item, ItemIds, ItemRole, ItemStatus, MessageItem, Part, ReasoningItem,
};
use crate::wire::responses::response::{
    IncompleteDetails, ResponseError, ResponseObject, ResponseStatus,
};
use crate::wire::shared::WireFinishReason;
use crate::wire::tools::CallIds;
use crate::wire::usage::Usage;
use std::mem;

/// A response on its way.
pub(super) struct Draft {
    response: ResponseObject,
    ids: ItemIds,
    call_ids: CallIds,
    /// The kind of piece that began the item which is open.
    open: Option<PieceKind>,
    /// Events that were not taken yet.
    events: Vec<ResponseEvent>,
    num_events: u64,
}

impl Draft {
    /// Begins a response, which may be queued, whose items get their ids from `ids` and whose calls
    /// from `call_ids`.
    pub(super) fn new(response: ResponseObject, ids: ItemIds, call_ids: CallIds) -> Self {
        let mut draft =
            Self { response, ids, call_ids, open: None, events: Vec::new(), num_events: 0 };
        draft.tell_response("response.created");
        let is_queued = draft.response.status == ResponseStatus::Queued;
        draft.tell_response(if is_queued { "response.queued" } else { "response.in_progress" });
        draft
    }

    /// Notes that the model writes the response.
    pub(super) fn begin_progress(&mut self) {
        if self.response.status == ResponseStatus::Queued {
            self.response.status = ResponseStatus::InProgress;
            self.tell_response("response.in_progress");
        }
    }

    /// Returns the response as it is.
    pub(super) fn response(&self) -> &ResponseObject {
        &self.response
    }

    /// Takes the events since the last time.
    pub(super) fn take_events(&mut self) -> Vec<ResponseEvent> {
        mem::take(&mut self.events)
    }

    /// Adds a piece of the output.
    pub(super) fn add(&mut self, piece: Piece) {
        let Piece { kind, text, tokens } = piece;
        if !self.open.as_ref().is_some_and(|open| kind.continues(open)) {
            if text.is_empty() && !matches!(kind, PieceKind::CallBegun { .. }) {
                // Markup that ended the output: its tokens belong to no text.
                return;
            }
            self.close(ItemStatus::Completed);
            self.begin(kind.clone());
        }
        let logprobs: Vec<_> = tokens.into_iter().map(chat_logprob).collect();
        let output_index = self.response.output.len() - 1;
        let item = &mut self.response.output[output_index];
        item.grow(&text, &logprobs);
        let (item_id, content_index, delta) = (item.id().to_owned(), 0, text);
        let (name, logprobs) = match kind {
            PieceKind::Content => ("response.output_text.delta", Some(logprobs)),
            PieceKind::Reasoning => ("response.reasoning_text.delta", None),
            PieceKind::CallBegun { .. } => return,
            PieceKind::Arguments { .. } => {
                let body = EventBody::ArgumentsDelta { item_id, output_index, delta };
                return self.tell("response.function_call_arguments.delta", body);
            }
        };
        self.tell(
            name,
            EventBody::TextDelta { item_id, output_index, content_index, delta, logprobs },
        );
    }

    /// Ends a response whose output is whole, or as long as it may be.
    pub(super) fn end(&mut self, reason: WireFinishReason, usage: Usage) {
        let (item, status, name) = match reason {
            WireFinishReason::Stop | WireFinishReason::ToolCalls => {
                (ItemStatus::Completed, ResponseStatus::Completed, "response.completed")
            }
            WireFinishReason::Length => {
                (ItemStatus::Incomplete, ResponseStatus::Incomplete, "response.incomplete")
            }
        };
        if self.response.output.is_empty() {
            // Clients look for a message in every answer.
            self.begin(PieceKind::Content);
        }
        self.close(item);
        self.response.status = status;
        if status == ResponseStatus::Completed {
            self.response.completed_at = Some(unix_time());
        } else {
            let reason = "max_output_tokens";
            self.response.incomplete_details = Some(IncompleteDetails { reason });
        }
        self.response.usage = Some(usage.into());
        self.tell_response(name);
    }

    /// Ends a response that the server could not finish.
    pub(super) fn fail(&mut self, error: &ApiError) {
        self.close(ItemStatus::Incomplete);
        self.response.status = ResponseStatus::Failed;
        let message = error.message();
        self.response.error = Some(ResponseError { code: "server_error", message });
        self.tell_response("response.failed");
    }

    /// Ends a response that its client does not want any more.
    pub(super) fn cancel(&mut self) {
        self.close(ItemStatus::Incomplete);
        self.response.status = ResponseStatus::Cancelled;
        self.tell_response("response.cancelled");
    }

    /// Begins the item that a piece of this kind belongs to.
    fn begin(&mut self, kind: PieceKind) {
        let status = ItemStatus::InProgress;
        let (item, part) = match &kind {
            PieceKind::Content => {
                let (id, role) = (self.ids.next("msg"), ItemRole::Assistant);
                let message = MessageItem { id, status, role, content: Vec::new() };
                (Item::Message(message), Some(Part::output(String::new())))
            }
            PieceKind::Reasoning => {
                let id = self.ids.next("rs");
                let reasoning = ReasoningItem { id, status, summary: [], content: Vec::new() };
                (Item::Reasoning(reasoning), Some(Part::ReasoningText { text: String::new() }))
            }
            PieceKind::CallBegun { index, name } => {
                let (id, call_id) = (self.ids.next("fc"), self.call_ids.id(0, *index));
                let arguments = String::new();
                let call = CallItem { id, status, call_id, name: name.clone(), arguments };
                (Item::FunctionCall(call), None)
            }
            PieceKind::Arguments { .. } => unreachable!("a call begins before its arguments"),
        };
        let output_index = self.response.output.len();
        let body = EventBody::Item { output_index, item: item.clone() };
        self.tell("response.output_item.added", body);
        let item_id = item.id().to_owned();
        self.response.output.push(item);
        self.open = Some(kind);
        if let Some(part) = part {
            self.response.output[output_index].push_part(part.clone());
            let body = EventBody::Part { item_id, output_index, content_index: 0, part };
            self.tell("response.content_part.added", body);
        }
    }

    /// Ends the item that is open.
    fn close(&mut self, status: ItemStatus) {
        if self.open.take().is_none() {
            return;
        }
        let output_index = self.response.output.len() - 1;
        let item = &mut self.response.output[output_index];
        item.set_status(status);
        let item = item.clone();
        let item_id = item.id().to_owned();
        let content_index = 0;
        let done = match &item {
            Item::Message(message) => message.content.last().map(|part| {
                let logprobs = Some(part.logprobs().to_vec());
                ("response.output_text.done", part, logprobs)
            }),
            Item::Reasoning(reasoning) => {
                reasoning.content.last().map(|part| ("response.reasoning_text.done", part, None))
            }
            Item::FunctionCall(call) => {
                let (name, arguments) = (call.name.clone(), call.arguments.clone());
                let item_id = item_id.clone();
                let body = EventBody::ArgumentsDone { item_id, output_index, name, arguments };
                self.tell("response.function_call_arguments.done", body);
                None
            }
            Item::FunctionCallOutput(_) => None,
        };
        if let Some((name, part, logprobs)) = done {
            let (item_id, text) = (item_id.clone(), part.text().to_owned());
            let part = part.clone();
            let body = EventBody::TextDone {
                item_id: item_id.clone(),
                output_index,
                content_index,
                text,
                logprobs,
            };
            self.tell(name, body);
            let body = EventBody::Part { item_id, output_index, content_index, part };
            self.tell("response.content_part.done", body);
        }
        self.tell("response.output_item.done", EventBody::Item { output_index, item });
    }

    fn tell_response(&mut self, name: &'static str) {
        let response = Box::new(self.response.clone());
        self.tell(name, EventBody::Response { response });
    }

    fn tell(&mut self, name: &'static str, body: EventBody) {
        self.events.push(ResponseEvent { name, sequence_number: self.num_events, body });
        self.num_events += 1;
    }
}
