//! Token counts of a response.

use schemars::JsonSchema;
use serde::Serialize;

/// Token counts of a response: each prompt counted once, outputs summed over the choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
    pub(crate) total_tokens: u32,
    pub(crate) prompt_tokens_details: PromptTokensDetails,
    /// Absent where reasoning is not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completion_tokens_details: Option<CompletionTokensDetails>,
}

/// What the output's tokens are part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct CompletionTokensDetails {
    /// Output tokens inside reasoning, its markers included.
    pub(crate) reasoning_tokens: u32,
}

/// Where the prompt's tokens came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
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
            completion_tokens_details: None,
        }
    }

    /// Tells how many of the output tokens are reasoning, where that is looked for.
    pub(crate) fn with_reasoning(self, reasoning_tokens: Option<u32>) -> Self {
        let details = |reasoning_tokens| CompletionTokensDetails { reasoning_tokens };
        Self { completion_tokens_details: reasoning_tokens.map(details), ..self }
    }
}
