//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's Messages API.
//!
//! A request is planned as the chat request that asks for the same; only what is told of the
//! generation has a form of its own. Pieces of one kind that follow each other are one block.

use super::chat::{self, ChatPlan};
use crate::choice_text::{Piece, PieceKind};
use crate::generation::{Generation, GenerationEvent};
use crate::json_body::RawBody;
use crate::sse;
use crate::state::{AppState, Serving};
use crate::submission::Arrival;
use crate::validation::Delivery;
use crate::wire::anthropic::request::{MessagesRequest, own_name};
use crate::wire::anthropic::response::{
    BlockDelta, ContentBlock, Ending, Message, MessageEvent, MessageUsage, TokenCount,
};
use crate::wire::error::ApiError;
use crate::wire::shared::WireFinishReason;
use crate::wire::tools::{CallIdStyle, CallIds};
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// The route that answers a conversation.
pub(super) const MESSAGES: &str = "/v1/messages";

/// The route that counts a conversation's tokens.
pub(super) const COUNT_TOKENS: &str = "/v1/messages/count_tokens";

/// Answers a conversation, whole or as a stream.
pub(super) async fn create(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let arrival = Arrival::now(&state)?;
    let seed = state.seeds().next_seed();
    let plan = move |serving: &Serving, body: MessagesRequest| {
        body.check_max_tokens()?;
        chat::plan(serving, body.into_chat()?, seed).map_err(own_name)
    };
    let mut plan = super::read_body(&arrival, headers, body, plan).await?;
    plan.compile_rule(&arrival.serving()).await.map_err(own_name)?;
    let ChatPlan { model, delivery, call_id_style, submission, .. } = plan;
    let num_prompt_tokens = submission.prompts.iter().map(Vec::len).sum::<usize>();
    let stop = submission.stop.clone();
    let generation = Generation::start(arrival, submission).await?;
    let id = state.response_id("msg");
    let call_id_style = match call_id_style {
        CallIdStyle::Prefixed | CallIdStyle::ToolUse => CallIdStyle::ToolUse,
        CallIdStyle::Short => CallIdStyle::Short,
    };
    let answer = Answer {
        call_ids: CallIds::new(&id, call_id_style),
        id: id.replace('-', "_"),
        model,
        stop,
        generation,
    };
    match delivery {
        Delivery::Whole => answer.whole().await,
        Delivery::Stream(_) => {
            let num_prompt_tokens = u32::try_from(num_prompt_tokens).unwrap_or(u32::MAX);
            Ok(answer.stream(num_prompt_tokens, state.config().ping_interval))
        }
    }
}

/// Counts the tokens that a conversation has as a prompt, whether it fits the context or not.
pub(super) async fn count_tokens(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Json<TokenCount>, ApiError> {
    let arrival = Arrival::now(&state)?;
    let count = |serving: &Serving, body: MessagesRequest| {
        chat::count_tokens(serving, body.into_chat()?).map_err(own_name)
    };
    let input_tokens = super::read_body(&arrival, headers, body, count).await?;
    Ok(Json(TokenCount { input_tokens }))
}

/// A running answer and what it is told with.
struct Answer {
    id: String,
    model: String,
    call_ids: CallIds,
    /// The request's stop sequences.
    stop: Vec<String>,
    generation: Generation,
}

impl Answer {
    /// Collects the answer into one message.
    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut drafts: Vec<(PieceKind, String)> = Vec::new();
        let mut reason = WireFinishReason::Length;
        while let Some(event) = self.generation.next().await? {
            match event {
                GenerationEvent::Finished { reason: why, .. } => reason = why,
                GenerationEvent::Text(delta) => {
                    let Piece { kind, text, .. } = delta.piece;
                    match drafts.last_mut() {
                        Some((open, whole)) if kind.continues(open) => whole.push_str(&text),
                        _ => drafts.push((kind, text)),
                    }
                }
            }
        }
        let drafts = drafts.into_iter();
        let content = drafts.map(|(kind, text)| self.block(kind).with_text(text)).collect();
        let (ending, usage) = (self.ending(reason), self.generation.usage().into());
        Ok(Json(self.message(content, ending, usage)).into_response())
    }

    /// Tells the answer as it comes.
    fn stream(self, num_prompt_tokens: u32, ping_interval: Duration) -> Response {
        let usage = MessageUsage { input_tokens: num_prompt_tokens, ..MessageUsage::default() };
        let message = self.message(Vec::new(), Ending::default(), usage);
        let mut told = Telling {
            answer: self,
            pending: VecDeque::new(),
            open: None,
            num_blocks: 0,
            reason: WireFinishReason::Length,
            is_over: false,
        };
        told.tell(&MessageEvent::MessageStart { message });
        let events = stream::unfold(told, |mut told| async move {
            let event = told.next().await?;
            Some((Ok::<_, Infallible>(event), told))
        });
        let ping = event_of(&MessageEvent::Ping);
        sse::stream_of(events, KeepAlive::new().interval(ping_interval).event(ping))
    }

    fn message(&self, content: Vec<ContentBlock>, ending: Ending, usage: MessageUsage) -> Message {
        let (id, model) = (self.id.clone(), self.model.clone());
        Message { id, tag: "message", role: "assistant", model, content, ending, usage }
    }

    fn ending(&self, reason: WireFinishReason) -> Ending {
        let stop = self.generation.stop_string(0);
        Ending::new(reason, stop.and_then(|index| self.stop.get(index).cloned()))
    }

    /// Returns the block, still empty, that a piece of this kind begins.
    fn block(&self, kind: PieceKind) -> ContentBlock {
        match kind {
            PieceKind::Content => ContentBlock::Text { text: String::new() },
            PieceKind::Reasoning => {
                ContentBlock::Thinking { thinking: String::new(), signature: "" }
            }
            PieceKind::CallBegun { index, name } => {
                let input = Value::Object(serde_json::Map::new());
                ContentBlock::ToolUse { id: self.call_ids.id(0, index), name, input }
            }
            PieceKind::Arguments { .. } => unreachable!("a call begins before its arguments"),
        }
    }
}

/// A stream on its way.
struct Telling {
    answer: Answer,
    pending: VecDeque<Event>,
    /// The kind of piece that began the block which is open.
    open: Option<PieceKind>,
    /// Blocks that have begun.
    num_blocks: usize,
    reason: WireFinishReason,
    is_over: bool,
}

impl Telling {
    fn tell(&mut self, event: &MessageEvent) {
        self.pending.push_back(event_of(event));
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            match self.answer.generation.next().await {
                Ok(Some(GenerationEvent::Text(delta))) => self.add(delta.piece),
                Ok(Some(GenerationEvent::Finished { reason, .. })) => self.reason = reason,
                Ok(None) => self.end(),
                Err(error) => {
                    self.is_over = true;
                    self.pending.push_back(sse::error_event(&error));
                }
            }
        }
    }

    fn add(&mut self, piece: Piece) {
        let Piece { kind, text, .. } = piece;
        if !self.open.as_ref().is_some_and(|open| kind.continues(open)) {
            self.end_block();
            let (index, content_block) = (self.num_blocks, self.answer.block(kind.clone()));
            self.tell(&MessageEvent::ContentBlockStart { index, content_block });
            self.num_blocks += 1;
            self.open = Some(kind.clone());
        }
        let delta = match kind {
            PieceKind::Content => BlockDelta::Text { text },
            PieceKind::Reasoning => BlockDelta::Thinking { thinking: text },
            PieceKind::Arguments { .. } => BlockDelta::InputJson { partial_json: text },
            PieceKind::CallBegun { .. } => return,
        };
        self.tell(&MessageEvent::ContentBlockDelta { index: self.num_blocks - 1, delta });
    }

    fn end_block(&mut self) {
        if self.open.take().is_some() {
            self.tell(&MessageEvent::ContentBlockStop { index: self.num_blocks - 1 });
        }
    }

    fn end(&mut self) {
        self.end_block();
        let (delta, usage) =
            (self.answer.ending(self.reason), self.answer.generation.usage().into());
        self.tell(&MessageEvent::MessageDelta { delta, usage });
        self.tell(&MessageEvent::MessageStop);
        self.is_over = true;
    }
}

fn event_of(event: &MessageEvent) -> Event {
    sse::named_event(event.name(), event)
}
