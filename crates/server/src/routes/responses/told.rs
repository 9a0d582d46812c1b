//! Streams of responses in the background, which read what was told and go on until the end.
//!
//! Leaving such a stream ends nothing but the stream.

use crate::request_record::RequestRecord;
use crate::response_events::EventReader;
use crate::sse;
use axum::response::Response;
use axum::response::sse::{Event, KeepAlive};
use futures_util::stream;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// The events that a client is told.
pub(super) struct ToldEvents {
    pub(super) events: EventReader,
    /// The request whose time limit holds for the stream; `None` where it holds for the response,
    /// whose end then ends the stream.
    pub(super) record: Option<Arc<RequestRecord>>,
}

/// Answers with events as they come.
pub(super) fn response(told: ToldEvents, ping_interval: Duration) -> Response {
    let events = stream::unfold(Some(told), |told| async move {
        let mut told = told?;
        let (event, has_more) = told.next().await?;
        Some((Ok::<_, Infallible>(event), has_more.then_some(told)))
    });
    sse::stream_of(events, KeepAlive::new().interval(ping_interval).text("ping"))
}

impl ToldEvents {
    /// Waits for the next event; also tells whether others may follow.
    async fn next(&mut self) -> Option<(Event, bool)> {
        let next = self.events.next();
        let event = match &self.record {
            Some(record) => record.in_time(next).await,
            None => Ok(next.await),
        };
        match event {
            Ok(event) => event.map(|event| (sse::json_event(event.name, &event.data), true)),
            Err(late) => Some((sse::error_event(&late), false)),
        }
    }
}
