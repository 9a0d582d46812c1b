//! One request and its answer, with the moment of every part.

use super::chunk::{Chunk, PieceKind, Usage};
use super::connections::Connections;
use super::event_stream::{EventStream, StreamLine};
use super::failure::{self, Phase};
use crate::results::{RequestResult, TokenSource};
use reqwest::header::{CONTENT_TYPE, LOCATION};
use reqwest::{Response, StatusCode};
use serde_json::Value;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take to end the body after `[DONE]`; its connection is closed then.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes of an answer that is an error or no stream.
const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// From when the times of a request count.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeClock {
    /// Start of the level.
    pub origin: Instant,
    /// When the request was due; `None` where it is due whenever it is sent.
    pub due: Option<Instant>,
}

impl ExchangeClock {
    /// Returns a clock for a request that stands alone.
    #[must_use]
    pub fn alone() -> Self {
        Self { origin: Instant::now(), due: None }
    }
}

/// A request that has ended, well or not.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Its timings. Numbers of tokens are those of `usage`, or else the pieces of text.
    pub result: RequestResult,
    /// The answer.
    pub answer: String,
    /// What the model thought before it.
    pub reasoning: String,
    /// When it ended.
    pub ended: Instant,
}

/// Sends a request and reads its answer to the end. Adds each piece of text that arrives to
/// `num_pieces`, for those who watch.
pub async fn send(
    connections: &Connections,
    body: Vec<u8>,
    clock: ExchangeClock,
    num_pieces: &AtomicU64,
) -> Exchange {
    let sent = Instant::now();
    let due = clock.due.unwrap_or(sent);
    let mut reader = AnswerReader::new(due, num_pieces);
    let outcome = reader.exchange(connections, body, sent).await;
    let ended = reader.done.unwrap_or_else(Instant::now);
    let send_delay = clock.due.map(|due| seconds_between(due, sent));
    let mut exchange = reader.into_exchange(outcome, ended);
    exchange.result.start = seconds_between(clock.origin, due);
    exchange.result.send_delay = send_delay;
    exchange
}

/// Returns the seconds from one moment to a later one, in whole microseconds: more digits would
/// make files longer, not truer.
fn seconds_between(from: Instant, to: Instant) -> f64 {
    (to.saturating_duration_since(from).as_secs_f64() * 1e6).round() / 1e6
}

/// What is known of an answer so far.
struct AnswerReader<'a> {
    due: Instant,
    num_pieces: &'a AtomicU64,
    result: RequestResult,
    answer: String,
    reasoning: String,
    usage: Option<Usage>,
    /// When `[DONE]` arrived.
    done: Option<Instant>,
    /// Why the answer cannot be used.
    failure: Option<String>,
}

impl<'a> AnswerReader<'a> {
    fn new(due: Instant, num_pieces: &'a AtomicU64) -> Self {
        Self {
            due,
            num_pieces,
            result: RequestResult::default(),
            answer: String::new(),
            reasoning: String::new(),
            usage: None,
            done: None,
            failure: None,
        }
    }

    /// Sends the request and reads the answer.
    async fn exchange(
        &mut self,
        connections: &Connections,
        body: Vec<u8>,
        sent: Instant,
    ) -> Result<(), String> {
        let timeout = connections.read_timeout();
        let answer = connections.post(body).send();
        let deadline = tokio::time::Instant::from_std(sent) + timeout;
        let mut response = match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(failure::transport(&error, Phase::Sending)),
            Err(_) => return Err(failure::timeout(timeout.as_secs_f64(), Phase::Sending)),
        };
        let is_document = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
        if response.status() != StatusCode::OK || is_document {
            return Err(read_document(&mut response, timeout).await);
        }
        self.read_stream(&mut response, timeout).await
    }

    /// Reads the body to its end even after `[DONE]`: a connection left early cannot be used
    /// again, so every request would pay for a new one.
    async fn read_stream(
        &mut self,
        response: &mut Response,
        timeout: Duration,
    ) -> Result<(), String> {
        let mut stream = EventStream::default();
        let mut last_arrival = Instant::now();
        // One timer for the whole answer, set anew only when it fires, not for each chunk.
        let mut watchdog = pin!(tokio::time::sleep(timeout));
        loop {
            let limit = if self.done.is_some() { DRAIN_TIMEOUT.min(timeout) } else { timeout };
            let bytes = tokio::select! {
                biased;
                bytes = response.chunk() => bytes,
                () = &mut watchdog => {
                    if last_arrival.elapsed() < limit {
                        watchdog.as_mut().reset((last_arrival + limit).into());
                        continue;
                    }
                    if self.done.is_some() {
                        return Ok(());
                    }
                    return Err(failure::timeout(timeout.as_secs_f64(), Phase::Streaming));
                }
            };
            let arrived = Instant::now();
            last_arrival = arrived;
            match bytes {
                Ok(Some(bytes)) => stream.feed(&bytes, |line| self.read_line(line, arrived)),
                Ok(None) => break,
                // All of the answer has arrived; that the connection is lost costs nothing.
                Err(_) if self.done.is_some() => break,
                Err(error) => return Err(failure::transport(&error, Phase::Streaming)),
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if self.done == Some(arrived) {
                watchdog.as_mut().reset((arrived + DRAIN_TIMEOUT).into());
            }
        }
        let ended = Instant::now();
        stream.finish(|line| self.read_line(line, ended));
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Reads one line; false when the rest of the answer does not matter.
    fn read_line(&mut self, line: StreamLine<'_>, arrived: Instant) -> bool {
        if self.done.is_some() {
            return true;
        }
        match line {
            StreamLine::Data(b"[DONE]") => self.done = Some(arrived),
            StreamLine::Data(b"") => {}
            StreamLine::Data(data) => self.read_chunk(data, arrived),
            StreamLine::Error(data) => {
                let text = || Value::String(String::from_utf8_lossy(data).into_owned());
                let error = serde_json::from_slice(data).unwrap_or_else(|_| text());
                self.failure = Some(failure::in_stream(&error));
            }
        }
        self.failure.is_none()
    }

    fn read_chunk(&mut self, data: &[u8], arrived: Instant) {
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else {
            // A chunk that is lost may be lost tokens: better no figure than one too low.
            self.failure = Some(failure::malformed(data));
            return;
        };
        if let Some(error) = &chunk.error {
            self.failure = Some(failure::in_stream(error));
            return;
        }
        let result = &mut self.result;
        result.server_prefill_ms = chunk.server_prefill_ms().or(result.server_prefill_ms);
        result.server_decode_ms = chunk.server_decode_ms().or(result.server_decode_ms);
        self.usage = chunk.usage.or(self.usage);
        if let Some(reason) = chunk.finish_reason() {
            result.finish_reason = Some(reason.to_owned());
        }
        // Chunks with only a role or nothing are no tokens, so they do not end the TTFT.
        if let Some((text, kind)) = chunk.piece() {
            let time = seconds_between(self.due, arrived);
            result.chunk_times.push(time);
            self.num_pieces.fetch_add(1, Ordering::Relaxed);
            match kind {
                PieceKind::Reasoning => {
                    result.reasoning_chunks += 1;
                    self.reasoning.push_str(text);
                }
                PieceKind::Answer => {
                    result.answer_start.get_or_insert(time);
                    self.answer.push_str(text);
                }
            }
        }
    }

    fn into_exchange(mut self, outcome: Result<(), String>, ended: Instant) -> Exchange {
        let error = outcome.err().or_else(|| self.unfinished());
        let result = &mut self.result;
        result.ok = error.is_none();
        result.error = error;
        result.ttft = result.chunk_times.first().copied();
        result.output_tokens = result.chunk_times.len() as u64;
        result.token_source = TokenSource::Chunks;
        if result.ok {
            result.e2e = Some(seconds_between(self.due, ended));
        }
        if let Some(usage) = self.usage {
            result.prompt_tokens = usage.prompt_tokens();
            result.cached_tokens = usage.cached_tokens();
            if let Some(output_tokens) = usage.output_tokens() {
                result.output_tokens = output_tokens;
                result.token_source = TokenSource::Usage;
            }
        }
        if let (Some(ttft), Some(prefill_ms)) = (result.ttft, result.server_prefill_ms) {
            result.queue_network_overhead_ms = Some((ttft * 1e3 - prefill_ms).max(0.0));
        }
        Exchange { result: self.result, answer: self.answer, reasoning: self.reasoning, ended }
    }

    /// Returns why an answer that was read to its end is not whole. A body that just stops may
    /// have lost tokens.
    fn unfinished(&self) -> Option<String> {
        if self.done.is_none() && self.result.finish_reason.is_none() {
            return Some("incomplete stream: ended without [DONE] or a finish_reason".to_owned());
        }
        self.result
            .chunk_times
            .is_empty()
            .then(|| "empty response: the stream ended without any text".to_owned())
    }
}

/// Reads an answer that is no stream and returns what it says is wrong.
async fn read_document(response: &mut Response, timeout: Duration) -> String {
    let mut body = Vec::new();
    while body.len() < MAX_DOCUMENT_BYTES {
        match tokio::time::timeout(timeout, response.chunk()).await {
            Ok(Ok(Some(bytes))) => body.extend_from_slice(&bytes),
            // What has arrived says more than that the rest has not.
            Ok(Ok(None) | Err(_)) | Err(_) => break,
        }
    }
    let status = response.status();
    if status != StatusCode::OK {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.filter(|_| status.is_redirection());
        return failure::status(status.as_u16(), location, &body);
    }
    match serde_json::from_slice::<Value>(&body) {
        Ok(document) if document.get("error").is_some_and(|error| !error.is_null()) => {
            failure::in_stream(&document)
        }
        Ok(_) | Err(_) => {
            "not a stream: the server sent one JSON document; it may not support streaming"
                .to_owned()
        }
    }
}
