//! What a client submitted, after validation.

use crate::{RequestId, SamplingParams, TokenId};

/// One validated request: a prompt and how to continue it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Unique id, chosen by whoever submits.
    pub id: RequestId,
    /// Prompt tokens, at least one.
    pub prompt: Vec<TokenId>,
    /// How tokens are chosen and when to stop.
    pub sampling: SamplingParams,
    /// Scheduling priority: lower runs first, 0 by default (as in vLLM's API).
    pub priority: i32,
}
