//! Server-sent events: a generation as a stream of chunks.
//!
//! Order on the wire: the opening chunks, text and finish chunks as they come, the usage chunk
//! if asked for, `[DONE]`. A failure ends the stream with an `error` event instead, without a
//! finish reason and without `[DONE]`. Comments keep silent streams open.

use crate::generation::{Generation, GenerationEvent, ScoredPrompt, TextDelta};
use crate::validation::StreamUsage;
use crate::wire::error::ApiError;
use crate::wire::shared::WireFinishReason;
use crate::wire::usage::Usage;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// How a generation's events become chunks of one API.
pub(crate) trait ChunkFormat: Send + 'static {
    /// Returns the chunk that comes before the first text of `choice`, if the API has one.
    fn opening(&self, choice: usize) -> Option<Event>;
    /// Returns the chunks that tell the log probabilities of a prompt's tokens, before anything else
    /// of its choices, if the API has any.
    fn prompt(&self, scored: &ScoredPrompt) -> Vec<Event> {
        let _ = scored;
        Vec::new()
    }
    /// Returns the chunk that adds text to a choice.
    fn text(&self, delta: TextDelta) -> Event;
    /// Returns the chunk that ends a choice.
    fn finish(&self, choice: usize, reason: WireFinishReason) -> Event;
    /// Returns the chunk that carries the usage and no choice.
    fn usage(&self, usage: Usage) -> Event;
}

/// Returns the value of a chunk's `usage` field before the last chunk: `null` when a usage chunk
/// will come, else absent.
pub(crate) fn usage_placeholder(stream_usage: StreamUsage) -> Option<Option<Usage>> {
    match stream_usage {
        StreamUsage::Included => Some(None),
        StreamUsage::Absent => None,
    }
}

/// Returns an event that carries `chunk`.
pub(crate) fn chunk_event(chunk: &impl Serialize) -> Event {
    Event::default().data(json(chunk))
}

/// Returns an event with a name that carries `chunk`.
pub(crate) fn named_event(name: &str, chunk: &impl Serialize) -> Event {
    json_event(name, &json(chunk))
}

/// Returns an event with a name whose data is this JSON.
pub(crate) fn json_event(name: &str, json: &str) -> Event {
    Event::default().event(name).data(json)
}

/// Returns what an event's data says.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("wire types have string keys only")
}

/// Answers with `generation` as a stream; dropping the response drops the generation, which
/// aborts its requests.
pub(crate) fn response<F: ChunkFormat>(
    generation: Generation,
    format: F,
    stream_usage: StreamUsage,
    ping_interval: Duration,
) -> Response {
    let opening = (0..generation.num_choices()).filter_map(|choice| format.opening(choice));
    let pending = opening.collect();
    let chunks = Chunks { generation, format, stream_usage, pending, is_over: false };
    let events = stream::unfold(chunks, |mut chunks| async move {
        let event = chunks.next().await?;
        Some((Ok::<_, Infallible>(event), chunks))
    });
    stream_of(events, KeepAlive::new().interval(ping_interval).text("ping"))
}

/// Answers with `events`, and with what `keep_alive` says while there are none.
pub(crate) fn stream_of(
    events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static,
    keep_alive: KeepAlive,
) -> Response {
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // Asks nginx, and what understands its header, not to hold chunks back.
    let name = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(name, HeaderValue::from_static("no"));
    response
}

struct Chunks<F> {
    generation: Generation,
    format: F,
    stream_usage: StreamUsage,
    pending: VecDeque<Event>,
    is_over: bool,
}

impl<F: ChunkFormat> Chunks<F> {
    async fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.pending.pop_front() {
            return Some(event);
        }
        if self.is_over {
            return None;
        }
        match self.generation.next().await {
            Ok(Some(event)) => {
                while let Some(scored) = self.generation.take_scored_prompt() {
                    self.pending.extend(self.format.prompt(&scored));
                }
                self.pending.push_back(match event {
                    GenerationEvent::Text(delta) => self.format.text(delta),
                    GenerationEvent::Finished { choice, reason } => {
                        self.format.finish(choice, reason)
                    }
                });
                self.pending.pop_front()
            }
            Ok(None) => {
                self.is_over = true;
                let done = Event::default().data("[DONE]");
                if self.stream_usage == StreamUsage::Absent {
                    return Some(done);
                }
                self.pending.push_back(done);
                Some(self.format.usage(self.generation.usage()))
            }
            Err(error) => {
                self.is_over = true;
                Some(error_event(&error))
            }
        }
    }
}

/// Returns the event that ends a stream which failed.
pub(crate) fn error_event(error: &ApiError) -> Event {
    named_event("error", &error.body())
}
