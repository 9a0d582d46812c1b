//! What the engine tells about a request.

use crate::{SequenceId, TokenId};

/// Something that happened to a sequence; events of one sequence come in order and end with
/// exactly one `Finished`.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
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

/// Natural-log probabilities of one generated token, from the unscaled logits.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Log probability of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, most likely first; ties go to the lower id.
    pub top: Vec<(TokenId, f32)>,
}
