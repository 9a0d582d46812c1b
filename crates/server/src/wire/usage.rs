//! Token counts of a response.

use serde::Serialize;

/// Token counts of a response: each prompt counted once, outputs summed over the choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
    pub(crate) total_tokens: u32,
    pub(crate) prompt_tokens_details: PromptTokensDetails,
}

/// Where the prompt's tokens came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PromptTokensDetails {
    /// Prompt tokens that the prefix cache held.
    pub(crate) cached_tokens: u32,
}

impl Usage {
    /// Returns the usage of `prompt_tokens` tokens in, `completion_tokens` tokens out.
    pub(crate) fn new(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}
