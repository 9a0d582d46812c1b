//! Sends spans to an OpenTelemetry collector, from a thread of its own.
//!
//! Requests never wait for it: what does not fit its queue is left out and counted in the log.
//! Spans go in batches, at most a second after the first of them came; a batch that the collector
//! does not take is lost, since tracing is not worth memory without a bound.

use crate::access_log::AccessLine;
use crate::request_trace::{Span, export_body, spans};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use ureq::Agent;

/// Requests whose spans wait to be sent at most.
const MAX_WAITING_REQUESTS: usize = 2048;
/// Requests whose spans are sent together at most.
const MAX_BATCH_REQUESTS: usize = 256;
/// How long spans wait for others.
const BATCH_TIME: Duration = Duration::from_secs(1);
/// How long the collector may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes finished requests for a thread that sends their spans.
#[derive(Debug)]
pub(crate) struct TraceExporter {
    queue: SyncSender<Message>,
    num_left_out: Arc<AtomicU64>,
}

enum Message {
    /// Spans of one request.
    Spans(Vec<Span>),
    /// Sends what waits, then answers.
    Flush(oneshot::Sender<()>),
}

impl TraceExporter {
    /// Starts the thread, which ends when this is dropped. `endpoint` is the collector's base
    /// address, such as `http://localhost:4318`.
    ///
    /// # Errors
    /// Returns the system's error when the thread cannot be started.
    pub(crate) fn start(endpoint: &str) -> io::Result<Self> {
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let (queue, messages) = sync_channel(MAX_WAITING_REQUESTS);
        let num_left_out = Arc::<AtomicU64>::default();
        let left_out = Arc::clone(&num_left_out);
        let config = Agent::config_builder().timeout_global(Some(SEND_TIMEOUT)).build();
        let collector = Collector { agent: config.into(), url, is_failing: false };
        let run = move || send_batches(&messages, &left_out, collector);
        thread::Builder::new().name("traces".to_owned()).spawn(run)?;
        Ok(Self { queue, num_left_out })
    }

    /// Hands over the spans of a request that ended now, if there is room.
    pub(crate) fn note(&self, line: &AccessLine<'_>) {
        let spans = spans(line);
        if !spans.is_empty() && self.queue.try_send(Message::Spans(spans)).is_err() {
            self.num_left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until what was handed over has been sent, or cannot be.
    pub(crate) async fn flush(&self) {
        let (answer, flushed) = oneshot::channel();
        if self.queue.try_send(Message::Flush(answer)).is_ok() {
            // An answer that is dropped means the same as one that is sent.
            let _ = flushed.await;
        }
    }
}

/// Where spans go.
struct Collector {
    agent: Agent,
    url: String,
    /// Whether the last batch was lost, so that an outage is told once.
    is_failing: bool,
}

impl Collector {
    fn send(&mut self, spans: &[Span]) {
        let body = export_body(spans).to_string();
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        match request.send(body) {
            Ok(_) => self.is_failing = false,
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                tracing::warn!(%error, url = self.url, "traces are lost: the collector does not take them");
            }
            Err(error) => tracing::debug!(%error, "traces are lost"),
        }
    }
}

/// Sends batches until the last sender is gone.
fn send_batches(messages: &Receiver<Message>, left_out: &AtomicU64, mut collector: Collector) {
    while let Ok(first) = messages.recv() {
        let mut batch = Vec::new();
        let mut flushed = Vec::new();
        let deadline = Instant::now() + BATCH_TIME;
        let mut next = Some(first);
        let mut num_requests = 0;
        while let Some(message) = next.take() {
            match message {
                Message::Spans(spans) => {
                    batch.extend(spans);
                    num_requests += 1;
                }
                Message::Flush(answer) => flushed.push(answer),
            }
            if num_requests < MAX_BATCH_REQUESTS && flushed.is_empty() {
                let rest = deadline.saturating_duration_since(Instant::now());
                // Either nothing came, or nothing can come any more.
                next = messages.recv_timeout(rest).ok();
            }
        }
        if !batch.is_empty() {
            collector.send(&batch);
        }
        let num_left_out = left_out.swap(0, Ordering::Relaxed);
        if num_left_out > 0 {
            tracing::warn!(num_left_out, "requests came faster than their traces could be sent");
        }
        // Who asked may not have waited.
        for answer in flushed {
            let _ = answer.send(());
        }
    }
}
