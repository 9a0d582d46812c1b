//! What one request is sent, and when.
//!
//! Deadlines are absolute: the piece that follows `sent` tokens is due at `begin + (ttft + sent *
//! itl) * factor`, whatever became of the pieces before it.

use super::config::MockConfig;
use super::wire::{Format, Part};
use axum::body::Bytes;
use rand::RngExt;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a request asks for.
#[derive(Clone, Debug)]
pub(super) struct MockRequest {
    /// How its answer is written.
    pub(super) format: Format,
    /// Words of its prompt.
    pub(super) num_prompt_tokens: u64,
    /// Tokens of its output.
    pub(super) num_output_tokens: u32,
    /// Whether it asks for `usage` at the end of the stream.
    pub(super) wants_usage: bool,
}

/// A part of an answer that is due.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// When.
    pub(super) due: Instant,
    /// What.
    pub(super) content: Content,
    /// Tokens in it.
    pub(super) num_tokens: u32,
}

/// What to do with a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Send these bytes.
    Bytes(Bytes),
    /// Break it off.
    Break,
}

/// What one request is sent, piece by piece.
#[derive(Debug)]
pub(super) struct Script {
    config: Arc<MockConfig>,
    request: MockRequest,
    begin: Instant,
    factor: f64,
    num_sent: u32,
    /// Whether the piece that is no JSON is out.
    was_malformed: bool,
    random: StdRng,
    /// A piece of the usual size, made once.
    usual: Bytes,
}

impl Script {
    /// Starts an answer at `begin`, with `active` requests being served, this one among them.
    pub(super) fn new(
        config: Arc<MockConfig>,
        request: MockRequest,
        begin: Instant,
        active: usize,
        random: StdRng,
    ) -> Self {
        let factor = 1.0 + config.slowdown * (active.saturating_sub(1)) as f64;
        let usual = request.format.chunk(&config.model, Part::Text(config.tokens_per_chunk), None);
        let usual = Bytes::from(usual);
        Self { config, request, begin, factor, num_sent: 0, was_malformed: false, random, usual }
    }

    /// Returns when the next piece is due; `None` when there is none.
    pub(super) fn next_due(&mut self) -> Option<Instant> {
        let (config, sent) = (&self.config, self.num_sent);
        let is_over = sent >= self.request.num_output_tokens;
        if is_over || config.stall_after.is_some_and(|after| sent >= after) {
            return None;
        }
        let prefill = config.prefill_ms_per_token * self.request.num_prompt_tokens as f64;
        let moved = if config.jitter > 0.0 {
            config.jitter * self.random.random_range(-1.0..=1.0)
        } else {
            0.0
        };
        let gap = config.itl_ms * f64::from(config.tokens_per_chunk);
        let ms = config.ttft_ms + prefill + config.itl_ms * f64::from(sent) + gap * moved;
        // A day times the largest factor is far from what a duration can hold.
        Some(self.begin + Duration::from_secs_f64((ms * self.factor).max(0.0) / 1e3))
    }

    /// Tells whether everything is out. One that stalls never is.
    pub(super) fn is_over(&self) -> bool {
        self.num_sent >= self.request.num_output_tokens
    }

    /// Returns the piece that is due.
    pub(super) fn next_piece(&mut self, due: Instant) -> Piece {
        let config = Arc::clone(&self.config);
        let sent = self.num_sent;
        if config.drop_after.is_some_and(|after| sent >= after) {
            self.num_sent = self.request.num_output_tokens;
            return Piece { due, content: Content::Break, num_tokens: 0 };
        }
        let mut num_tokens = config.tokens_per_chunk.min(self.request.num_output_tokens - sent);
        let num_reasoning = if self.request.format.is_chat() { config.reasoning_tokens } else { 0 };
        let reasons = sent < num_reasoning;
        if reasons {
            num_tokens = num_tokens.min(num_reasoning - sent);
        }
        self.num_sent += num_tokens;
        let part = if reasons { Part::Reasoning(num_tokens) } else { Part::Text(num_tokens) };
        let is_last = self.is_over();
        let is_malformed =
            !self.was_malformed && config.malformed_after.is_some_and(|after| sent >= after);
        let bytes = if is_last || is_malformed || part != Part::Text(config.tokens_per_chunk) {
            let mut text = String::new();
            if is_malformed {
                self.was_malformed = true;
                text.push_str(self.request.format.malformed());
            }
            text.push_str(&self.written(part, is_last));
            Bytes::from(text)
        } else {
            self.usual.clone()
        };
        Piece { due, content: Content::Bytes(bytes), num_tokens }
    }

    /// Writes a piece, with all that follows the last one.
    fn written(&self, part: Part, is_last: bool) -> String {
        let (config, request) = (&self.config, &self.request);
        let ends = is_last && !config.no_done;
        let mut text = request.format.chunk(&config.model, part, ends.then_some("length"));
        if ends && request.wants_usage && config.send_usage {
            text.push_str(&request.format.usage_chunk(config, request));
        }
        if ends {
            text.push_str(request.format.done());
        }
        text
    }
}
