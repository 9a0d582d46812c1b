//! One request: when its parts arrived, and how many tokens it had.

use serde::{Deserialize, Serialize};

/// Where a number of tokens comes from, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenSource {
    /// The server's `usage`.
    Usage,
    /// A tokenizer that the user named, over the text that arrived.
    Tokenizer,
    /// Pieces of text that arrived, each taken for one token.
    #[default]
    Chunks,
}

/// Timings of one request, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestResult {
    /// Number of the request in its level, from 0.
    pub index: usize,
    /// When it was due, since the start of the level. In a closed loop, when it was sent. All other
    /// times count from here, so that a client or a server that falls behind cannot hide it.
    pub start: f64,
    /// Whether it ended as it should.
    pub ok: bool,
    /// Why not. What comes before the first colon is the kind.
    pub error: Option<String>,
    /// Until the first piece of text that is not empty.
    pub ttft: Option<f64>,
    /// Until the end of the stream.
    pub e2e: Option<f64>,
    /// Until each piece of text.
    pub chunk_times: Vec<f64>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the output.
    pub output_tokens: u64,
    /// Where the numbers of tokens come from.
    pub token_source: TokenSource,
    /// Pieces of text that were reasoning, not answer.
    pub reasoning_chunks: usize,
    /// Until the first piece of the answer; later than `ttft` when the model reasons first.
    pub answer_start: Option<f64>,
    /// What the server says it took for the prompt, in milliseconds.
    pub server_prefill_ms: Option<f64>,
    /// What the server says it took for the output, in milliseconds.
    pub server_decode_ms: Option<f64>,
    /// TTFT less `server_prefill_ms`: waiting and network, in milliseconds.
    pub queue_network_overhead_ms: Option<f64>,
    /// From when it was due until it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_delay: Option<f64>,
    /// Prompt tokens that the server found in its cache, from `usage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Why the output ended, as the server says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Number of the conversation that it belongs to, where there are conversations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<usize>,
    /// Number of the turn in its conversation, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<usize>,
}

impl RequestResult {
    /// Returns the time per output token after the first one, in seconds.
    #[must_use]
    pub fn tpot(&self) -> Option<f64> {
        let (true, Some(ttft), Some(e2e)) =
            (self.ok && self.output_tokens >= 2, self.ttft, self.e2e)
        else {
            return None;
        };
        #[expect(clippy::cast_precision_loss, reason = "a number of tokens is far below 2^52")]
        let num_gaps = (self.output_tokens - 1) as f64;
        Some((e2e - ttft) / num_gaps)
    }

    /// Returns the end-to-end time per output token, in seconds.
    #[must_use]
    pub fn normalised_latency(&self) -> Option<f64> {
        if !self.ok || self.output_tokens == 0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of tokens is far below 2^52")]
        self.e2e.map(|e2e| e2e / self.output_tokens as f64)
    }

    /// Returns the gaps between pieces of text, in seconds. One piece may hold several tokens.
    pub fn inter_token_latencies(&self) -> impl Iterator<Item = f64> {
        self.chunk_times.windows(2).map(|pair| pair[1] - pair[0])
    }
}
