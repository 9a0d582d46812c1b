//! A generated token with its log probabilities, as text.

use mini_infer_core::{TokenId, TokenLogprobs};
use mini_infer_text::Tokenizer;

/// OpenAI's stand-in for the log probability of what cannot happen; JSON has no infinity.
const LOGPROB_FLOOR: f32 = -9999.0;

/// A generated token as clients see it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenText {
    /// The token's bytes, which need not be whole characters.
    pub(crate) bytes: Vec<u8>,
    /// Log probability of the token, at least [`LOGPROB_FLOOR`].
    pub(crate) logprob: f32,
    /// The most likely tokens in its place, most likely first.
    pub(crate) top: Vec<(Vec<u8>, f32)>,
    /// Characters of the choice's text before the token.
    pub(crate) text_offset: usize,
}

impl TokenText {
    /// Looks up the texts of `token` and of the tokens in `logprobs`.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        token: TokenId,
        logprobs: &TokenLogprobs,
        text_offset: usize,
    ) -> Self {
        let bytes = |token| tokenizer.token_bytes(token).unwrap_or_default().to_vec();
        let top = logprobs.top.iter().map(|&(token, logprob)| (bytes(token), floored(logprob)));
        Self {
            bytes: bytes(token),
            logprob: floored(logprobs.chosen),
            top: top.collect(),
            text_offset,
        }
    }
}

/// Returns `logprob`, or the floor where it is lower or not a number.
pub(crate) fn floored(logprob: f32) -> f32 {
    logprob.max(LOGPROB_FLOOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_that_json_cannot_hold_get_the_floor() {
        assert_eq!(floored(f32::NEG_INFINITY), LOGPROB_FLOOR);
        assert_eq!(floored(f32::NAN), LOGPROB_FLOOR);
        assert_eq!(floored(-0.5), -0.5);
    }
}
