//! A running answer, told whole or as a stream.

use super::draft::Draft;
use crate::client::Client;
use crate::generation::{Generation, GenerationEvent};
use crate::request_record::RequestRecord;
use crate::response_store::EndedResponse;
use crate::sse;
use crate::state::AppState;
use crate::wire::error::ApiError;
use crate::wire::responses::event::ResponseEvent;
use crate::wire::responses::item::Item;
use crate::wire::responses::response::ResponseObject;
use crate::wire::shared::WireFinishReason;
use axum::body::Bytes;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Where a response is kept when it has ended.
pub(super) struct Keeping {
    pub(super) state: AppState,
    /// Whose it is.
    pub(super) client: Client,
    /// What the model was given but for the instructions.
    pub(super) input: Vec<Arc<Item>>,
}

impl Keeping {
    /// Keeps the response, whose JSON is `body`.
    fn keep(self, response: &ResponseObject, body: &Bytes) {
        let ended = ended(response, body);
        self.state.responses().keep(self.client, &response.id, self.input, ended);
    }
}

/// Returns a response that has ended, as it is kept.
pub(super) fn ended(response: &ResponseObject, body: &Bytes) -> EndedResponse {
    let output = response.output.iter().cloned().map(Item::without_logprobs).map(Arc::new);
    EndedResponse { body: body.clone(), output: output.collect() }
}

/// Returns a response's JSON.
pub(super) fn json(response: &ResponseObject) -> Bytes {
    serde_json::to_vec(response).expect("wire types have string keys only").into()
}

/// Answers with JSON.
pub(super) fn json_answer(body: Bytes) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(CONTENT_TYPE, json)], body).into_response()
}

/// Whether an answer goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerStatus {
    /// More may come.
    Going,
    /// It is whole, or as long as it may be.
    Ended,
}

/// A running answer.
pub(super) struct Answer {
    generation: Generation,
    draft: Draft,
    reason: WireFinishReason,
}

impl Answer {
    /// Begins to tell of a generation.
    pub(super) fn new(generation: Generation, draft: Draft) -> Self {
        Self { generation, draft, reason: WireFinishReason::Length }
    }

    /// Returns what there is of the answer.
    pub(super) fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }

    /// Ends the generation, if it runs, and returns what there is of the answer.
    pub(super) fn into_draft(self) -> Draft {
        self.draft
    }

    /// Waits for the next piece.
    ///
    /// # Errors
    /// Returns what ended the generation early; nothing follows it.
    pub(super) async fn advance(&mut self) -> Result<AnswerStatus, ApiError> {
        let event = self.generation.next().await?;
        Ok(self.take(event))
    }

    fn take(&mut self, event: Option<GenerationEvent>) -> AnswerStatus {
        match event {
            Some(GenerationEvent::Text(delta)) => self.draft.add(delta.piece),
            Some(GenerationEvent::Finished { reason, .. }) => self.reason = reason,
            None => {
                self.draft.end(self.reason, self.generation.usage());
                return AnswerStatus::Ended;
            }
        }
        AnswerStatus::Going
    }

    /// Waits for the end of a response that may be queued, and hands on all events but those of the
    /// end.
    ///
    /// # Errors
    /// Returns what ended the generation early.
    pub(super) async fn run(
        &mut self,
        record: &RequestRecord,
        mut tell: impl FnMut(Vec<ResponseEvent>),
    ) -> Result<(), ApiError> {
        let first = {
            let mut next = pin!(self.generation.next());
            tokio::select! {
                biased;
                () = record.admitted() => {
                    self.draft.begin_progress();
                    tell(self.draft.take_events());
                    next.as_mut().await
                }
                first = next.as_mut() => first,
            }
        };
        let mut status = self.take(first?);
        while status == AnswerStatus::Going {
            tell(self.draft.take_events());
            status = self.advance().await?;
        }
        Ok(())
    }

    /// Waits for the end, telling nothing before.
    ///
    /// # Errors
    /// Returns what ended the generation early.
    pub(super) async fn finish(&mut self) -> Result<(), ApiError> {
        while self.advance().await? == AnswerStatus::Going {
            drop(self.draft.take_events());
        }
        Ok(())
    }

    /// Answers with the whole response.
    pub(super) async fn whole(mut self, keeping: Option<Keeping>) -> Result<Response, ApiError> {
        self.finish().await?;
        let response = self.draft.response();
        let body = json(response);
        if let Some(keeping) = keeping {
            keeping.keep(response, &body);
        }
        Ok(json_answer(body))
    }

    /// Tells the answer as it comes.
    pub(super) fn stream(self, keeping: Option<Keeping>, ping_interval: Duration) -> Response {
        let telling = Telling { answer: self, keeping, pending: VecDeque::new(), is_over: false };
        let events = stream::unfold(telling, |mut telling| async move {
            let event = telling.next().await?;
            Some((Ok::<_, Infallible>(event), telling))
        });
        sse::stream_of(events, KeepAlive::new().interval(ping_interval).text("ping"))
    }
}

/// A stream on its way.
struct Telling {
    answer: Answer,
    keeping: Option<Keeping>,
    pending: VecDeque<Event>,
    is_over: bool,
}

impl Telling {
    async fn next(&mut self) -> Option<Event> {
        loop {
            let events = self.answer.draft.take_events();
            let events = events.iter().map(|event| sse::named_event(event.name, event));
            self.pending.extend(events);
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            match self.answer.advance().await {
                Ok(AnswerStatus::Going) => continue,
                Ok(AnswerStatus::Ended) => {}
                Err(error) => self.answer.draft.fail(&error),
            }
            self.is_over = true;
            // Before its client is told of the end, so that the next request finds it.
            if let Some(keeping) = self.keeping.take() {
                let response = self.answer.draft.response();
                keeping.keep(response, &json(response));
            }
        }
    }
}
