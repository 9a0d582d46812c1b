//! One token stream being extended.
//!
//! A sequence knows its tokens, prompt and output in one row, and which of them have their KV in
//! its block table. Between steps a running sequence always knows more tokens than are computed;
//! scheduling is letting the second number catch up with the first. A waiting sequence has an
//! empty block table.

use crate::random::RandomStream;
use mini_infer_core::{
    FinishReason, Namespace, RequestId, SamplingParams, SequenceId, SequenceUsage, TokenId,
};
use mini_infer_kv::{BlockTable, SequenceShape, SequenceStart};
use std::sync::Arc;

/// The order in which sequences get memory: less is first.
///
/// The due time is the arrival moved back or forth by the priority. Every waiting sequence ages at
/// the same rate, so their order never changes and a queue sorted once stays sorted; and only the
/// finitely many requests that arrive before it is due can pass one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Arrival plus priority times the ageing interval, in nanoseconds of the engine's clock.
    pub(crate) due_ns: i128,
    /// Number of the request, in the order of submission.
    pub(crate) arrival: u64,
    /// Index of the sequence in its request.
    pub(crate) index: u32,
}

/// What the sequences of one request share.
#[derive(Debug)]
pub(crate) struct SequenceSource {
    pub(crate) request: RequestId,
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) sampling: Arc<SamplingParams>,
    pub(crate) first_rank: Rank,
}

/// One token stream being extended.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) rank: Rank,
    pub(crate) sampling: Arc<SamplingParams>,
    pub(crate) random: RandomStream,
    /// Prompt, then output.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) num_prompt_tokens: u32,
    pub(crate) table: BlockTable,
    /// Prompt tokens found in the prefix cache at first admission; `None` before it.
    pub(crate) num_hit_tokens: Option<u32>,
    /// Tokens that the step being planned computes.
    pub(crate) num_scheduled_tokens: u32,
    /// Set by the step that ends the sequence.
    pub(crate) finish: Option<FinishReason>,
}

/// The namespace of everything this engine computes: one model, one KV type, no adapters.
pub(crate) const NAMESPACE: Namespace = Namespace([0; 32]);

impl Sequence {
    /// Creates the sequence with this index in its request.
    pub(crate) fn new(source: &SequenceSource, index: u32) -> Self {
        Self {
            id: SequenceId { request: source.request, index },
            rank: Rank { index, ..source.first_rank },
            sampling: Arc::clone(&source.sampling),
            random: RandomStream::new(source.sampling.seed, index),
            tokens: source.prompt.clone(),
            num_prompt_tokens: count(&source.prompt),
            table: BlockTable::new(SequenceStart::default()),
            num_hit_tokens: None,
            num_scheduled_tokens: 0,
            finish: None,
        }
    }

    /// Returns what KV memory needs to know of the sequence.
    pub(crate) fn start(&self, max_model_len: u32) -> SequenceStart {
        let longest = self.num_prompt_tokens.saturating_add(self.sampling.max_tokens);
        SequenceStart {
            namespace: NAMESPACE,
            shape: SequenceShape {
                num_prompt_tokens: self.num_prompt_tokens,
                max_num_tokens: longest.min(max_model_len),
            },
            ..SequenceStart::default()
        }
    }

    /// Returns how many tokens are known.
    pub(crate) fn num_known_tokens(&self) -> u32 {
        count(&self.tokens)
    }

    /// Returns how many known tokens are not computed: 1 in decode, more in prefill.
    pub(crate) fn num_pending_tokens(&self) -> u32 {
        self.num_known_tokens() - self.table.num_computed_tokens()
    }

    /// Returns how many tokens were generated.
    pub(crate) fn num_output_tokens(&self) -> u32 {
        self.num_known_tokens() - self.num_prompt_tokens
    }

    /// Appends a generated token and decides whether it was the last.
    pub(crate) fn extend(&mut self, token: TokenId, max_model_len: u32) {
        self.tokens.push(token);
        let full = self.num_known_tokens() >= max_model_len;
        if self.sampling.stop_token_ids.contains(&token) {
            self.finish = Some(FinishReason::Stop);
        } else if full || self.num_output_tokens() >= self.sampling.max_tokens {
            self.finish = Some(FinishReason::Length);
        }
    }

    /// Returns what the sequence used so far.
    pub(crate) fn usage(&self) -> SequenceUsage {
        SequenceUsage {
            num_prompt_tokens: self.num_prompt_tokens,
            num_output_tokens: self.num_output_tokens(),
            num_hit_tokens: self.num_hit_tokens.unwrap_or(0),
        }
    }
}

fn count(tokens: &[TokenId]) -> u32 {
    u32::try_from(tokens.len()).expect("a sequence is bounded by max_model_len")
}
