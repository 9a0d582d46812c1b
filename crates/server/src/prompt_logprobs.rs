//! Log probabilities of prompts in vLLM's form: for each token a map from the ids of likely tokens, and
//! its own, to what is known of them.

use crate::token_text::floored;
use crate::validation::Delivery;
use crate::wire::error::ApiError;
use mini_infer_core::{PromptReport, RankedLogprobs, SamplingParams, TokenId};
use mini_infer_text::Tokenizer;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is told about one of the tokens in a place of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct PromptLogprob {
    pub(crate) logprob: f32,
    /// 1 for the most likely token.
    pub(crate) rank: u32,
    pub(crate) decoded_token: String,
}

/// What is told about a prompt: `null` for its first token, before which nothing is.
pub(crate) type PromptLogprobs = Vec<Option<BTreeMap<TokenId, PromptLogprob>>>;

/// Prompts whose tokens' log probabilities are wanted.
#[derive(Debug)]
pub(crate) struct RankedPrompts {
    tokenizer: Arc<Tokenizer>,
    prompts: Vec<Vec<TokenId>>,
    num_top: u32,
}

/// Reads `prompt_logprobs`: how many of the most likely tokens are told in each place.
///
/// # Errors
/// Refuses counts out of range, and streams, whose chunks have no place for them.
pub(crate) fn read(field: Option<i64>, delivery: Delivery) -> Result<Option<u32>, ApiError> {
    const PARAM: &str = "prompt_logprobs";
    let Some(count) = field else { return Ok(None) };
    let num_top = u32::try_from(count).ok().filter(|&it| it <= SamplingParams::MAX_LOGPROBS);
    match (num_top, delivery) {
        (None, _) => {
            let message =
                format!("must be between 0 and {}, got {count}", SamplingParams::MAX_LOGPROBS);
            Err(ApiError::invalid(PARAM, message))
        }
        (Some(_), Delivery::Stream(_)) => {
            Err(ApiError::invalid(PARAM, "is not told in streams: `stream` must be false"))
        }
        (Some(num_top), Delivery::Whole) => Ok(Some(num_top)),
    }
}

/// Returns what has to be found out about prompts of which so many tokens are wanted in each place.
pub(crate) fn report(num_top: Option<u32>) -> PromptReport {
    num_top.map_or(PromptReport::Nothing, |num_top| PromptReport::Logprobs { num_top })
}

impl RankedPrompts {
    /// Keeps the tokens of prompts of which `num_top` likely ones are wanted in each place.
    pub(crate) fn new(tokenizer: &Arc<Tokenizer>, prompts: &[Vec<TokenId>], num_top: u32) -> Self {
        Self { tokenizer: Arc::clone(tokenizer), prompts: prompts.to_vec(), num_top }
    }

    /// Returns what is told about a prompt, of which `found` is known from its second token on.
    pub(crate) fn tell(&self, prompt: usize, found: &[RankedLogprobs]) -> PromptLogprobs {
        let rest = self.prompts[prompt].iter().skip(1).zip(found);
        std::iter::once(None)
            .chain(rest.map(|(&token, found)| Some(self.map(token, found))))
            .collect()
    }

    fn map(&self, token: TokenId, found: &RankedLogprobs) -> BTreeMap<TokenId, PromptLogprob> {
        let told = |token, rank, logprob| {
            let bytes = self.tokenizer.token_bytes(token).unwrap_or_default();
            let decoded_token = String::from_utf8_lossy(bytes).into_owned();
            (token, PromptLogprob { logprob: floored(logprob), rank, decoded_token })
        };
        let top = (1..=self.num_top).zip(&found.top);
        let top = top.map(|(rank, &(token, logprob))| told(token, rank, logprob));
        top.chain([told(token, found.rank, found.chosen)]).collect()
    }
}
