//! Numbers of tokens for the requests for which the server told none.
//!
//! Counted after a level, not during it: a tokenizer at work would delay what arrives.

use super::conversation::FinishedRequest;
use crate::prompts::TokenCounter;
use crate::results::{RequestResult, TokenSource};

/// Returns the results of a level by when they started, with numbers from 0 and the best numbers
/// of tokens that are to be had.
pub(super) fn results_with_tokens(
    finished: Vec<FinishedRequest>,
    tokens: Option<&TokenCounter>,
) -> Vec<RequestResult> {
    let mut results: Vec<RequestResult> =
        finished.into_iter().map(|request| with_tokens(request, tokens)).collect();
    results.sort_by(|a, b| a.start.total_cmp(&b.start).then(a.index.cmp(&b.index)));
    for (index, result) in results.iter_mut().enumerate() {
        result.index = index;
    }
    results
}

fn with_tokens(request: FinishedRequest, tokens: Option<&TokenCounter>) -> RequestResult {
    let FinishedRequest { exchange, prompt_text } = request;
    let mut result = exchange.result;
    let Some(tokens) = tokens else { return result };
    if !result.ok {
        return result;
    }
    let count = |text: &str| tokens.count(text) as u64;
    if result.token_source == TokenSource::Chunks {
        result.output_tokens = count(&exchange.reasoning) + count(&exchange.answer);
        result.token_source = TokenSource::Tokenizer;
    }
    result.prompt_tokens = result.prompt_tokens.or_else(|| prompt_text.as_deref().map(count));
    result
}
