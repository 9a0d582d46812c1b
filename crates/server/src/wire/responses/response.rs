//! Responses, and what the routes about stored ones give.

use super::item::Item;
use super::settings::ResponseSettings;
use crate::wire::usage::Usage;
use schemars::JsonSchema;
use serde::Serialize;

/// A response: whole, on its way, or broken off.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseObject {
    pub(crate) id: String,
    #[schemars(extend("const" = "response"))]
    pub(crate) object: &'static str,
    pub(crate) created_at: u64,
    pub(crate) status: ResponseStatus,
    pub(crate) completed_at: Option<u64>,
    pub(crate) error: Option<ResponseError>,
    pub(crate) incomplete_details: Option<IncompleteDetails>,
    pub(crate) model: String,
    pub(crate) output: Vec<Item>,
    /// `null` until the end, and where there was none.
    pub(crate) usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub(crate) settings: ResponseSettings,
}

/// How far a response has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseStatus {
    /// It waits for its turn.
    Queued,
    /// The model writes it.
    InProgress,
    /// It is whole.
    Completed,
    /// The token limit or the end of the context cut it short.
    Incomplete,
    /// The server failed.
    Failed,
    /// Its client ended it.
    Cancelled,
}

/// Why a response is incomplete.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct IncompleteDetails {
    pub(crate) reason: &'static str,
}

/// Why a response failed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseError {
    /// One of the few that clients know.
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// Token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ResponseUsage {
    pub(crate) input_tokens: u32,
    pub(crate) input_tokens_details: InputTokensDetails,
    pub(crate) output_tokens: u32,
    pub(crate) output_tokens_details: OutputTokensDetails,
    pub(crate) total_tokens: u32,
}

/// Where the input's tokens came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct InputTokensDetails {
    /// Input tokens that the prefix cache held.
    pub(crate) cached_tokens: u32,
    /// Always 0: nothing is charged for what stays in the cache.
    pub(crate) cache_write_tokens: u32,
}

/// What the output's tokens are part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct OutputTokensDetails {
    /// Output tokens inside reasoning, 0 where that is not looked for.
    pub(crate) reasoning_tokens: u32,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        let details = usage.completion_tokens_details.unwrap_or_default();
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: usage.prompt_tokens_details.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails {
                reasoning_tokens: details.reasoning_tokens,
            },
            total_tokens: usage.total_tokens,
        }
    }
}

/// Tells that a response is gone.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DeletedResponse {
    pub(crate) id: String,
    #[schemars(extend("const" = "response"))]
    pub(crate) object: &'static str,
    pub(crate) deleted: bool,
}

/// Some of the items that a response was given.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ItemList<'a> {
    #[schemars(extend("const" = "list"))]
    pub(crate) object: &'static str,
    pub(crate) data: Vec<&'a Item>,
    pub(crate) first_id: Option<&'a str>,
    pub(crate) last_id: Option<&'a str>,
    pub(crate) has_more: bool,
}

/// How many tokens a response would be given.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InputTokens {
    #[schemars(extend("const" = "response.input_tokens"))]
    pub(crate) object: &'static str,
    pub(crate) input_tokens: usize,
}
