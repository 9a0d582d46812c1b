//! What the engine tells about a request.

use crate::{SequenceId, TokenId};

/// Something that happened to a sequence; events of one sequence come in order and end with
/// exactly one `Finished`.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// All of the prompt is computed; comes once where it was asked for, before the first token, for
    /// the first sequence of a request.
    PromptLogprobs {
        /// The sequence whose prompt it is.
        sequence: SequenceId,
        /// Those of the prompt's tokens from the second on.
        logprobs: Vec<RankedLogprobs>,
    },
    /// All of the prompt is computed; comes once where it was asked for, before the first token, for
    /// the first sequence of a request.
    Embedding {
        /// The sequence whose prompt it is.
        sequence: SequenceId,
        /// What the prompt's hidden states were pooled to, finite, `[hidden_size]`.
        values: Vec<f32>,
    },
    /// A token was generated, a stop token included. Never repeated, also not after preemption.
    Token {
        /// The sequence that grew.
        sequence: SequenceId,
        /// The chosen token.
        token: TokenId,
        /// Log probabilities, when the request asked for them.
        logprobs: Option<TokenLogprobs>,
    },
    /// The sequence ended and its blocks are released.
    Finished {
        /// The sequence that ended.
        sequence: SequenceId,
        /// Why it ended.
        reason: FinishReason,
        /// What it used.
        usage: SequenceUsage,
    },
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was generated, or `finish` was called for the sequence (a stop string).
    Stop,
    /// `max_tokens` or the context limit was reached.
    Length,
    /// The client went away or asked to stop.
    Abort,
    /// The device failed; the message says how.
    Error(String),
}

/// Tokens that one sequence used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceUsage {
    /// Tokens in the prompt.
    pub num_prompt_tokens: u32,
    /// Tokens generated, the stop token included.
    pub num_output_tokens: u32,
    /// Prompt tokens whose KV came from the prefix cache or a tier at first admission.
    pub num_hit_tokens: u32,
}

/// Natural-log probabilities of a prompt's token, from the unscaled logits.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedLogprobs {
    /// How many tokens are more likely, and 1; of equally likely ones, the lower id counts as more.
    pub rank: u32,
    /// Log probability of the token.
    pub chosen: f32,
    /// The most likely tokens, most likely first; ties go to the lower id.
    pub top: Vec<(TokenId, f32)>,
}

/// Natural-log probabilities of one token, from the unscaled logits.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Log probability of the token that was chosen.
    pub chosen: f32,
    /// The most likely tokens, most likely first; ties go to the lower id.
    pub top: Vec<(TokenId, f32)>,
}
