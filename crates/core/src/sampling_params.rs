//! How a request's tokens are chosen.

use crate::TokenId;
use std::fmt;

/// Sampling parameters of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Number of sequences to generate from the prompt, at least 1.
    pub n: u32,
    /// Divides the logits; 0 chooses the most likely token. Range `0..=2`.
    pub temperature: f32,
    /// Keeps the smallest set of most likely tokens whose probability reaches this. Range `(0, 1]`.
    pub top_p: f32,
    /// Keeps at most this many most likely tokens; `None` keeps all.
    pub top_k: Option<u32>,
    /// Drops tokens less likely than this share of the most likely one. Range `[0, 1]`.
    pub min_p: f32,
    /// Start of the request's own random stream; equal seeds give equal tokens.
    pub seed: u64,
    /// Output tokens after which a sequence finishes with `Length`, at least 1.
    pub max_tokens: u32,
    /// Tokens that finish a sequence with `Stop`; empty under `ignore_eos`.
    pub stop_token_ids: Vec<TokenId>,
    /// Reports the log probability of each token and of this many most likely ones, `0..=20`.
    pub logprobs: Option<u32>,
    /// Searches for the likeliest sequences instead of sampling.
    pub beam: Option<BeamParams>,
}

/// How a beam search goes; it reports its `n` best sequences when it has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamParams {
    /// Sequences that are extended side by side, at least `n`. Range `1..=16`.
    pub width: u32,
    /// A sequence's score is its log probability divided by its number of output tokens to this
    /// power: above 0 favours long sequences, below 0 short ones. Finite.
    pub length_penalty: f32,
}

impl BeamParams {
    /// Most sequences side by side.
    pub const MAX_WIDTH: u32 = 16;
}

impl SamplingParams {
    /// Most alternatives that `logprobs` can ask for, OpenAI's limit.
    pub const MAX_LOGPROBS: u32 = 20;
    /// Most sequences that one request can ask for, OpenAI's limit.
    pub const MAX_N: u32 = 128;

    /// Returns parameters that choose the most likely token, `max_tokens` times.
    #[must_use]
    pub fn greedy(max_tokens: u32) -> Self {
        Self {
            n: 1,
            temperature: 0.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            seed: 0,
            max_tokens,
            stop_token_ids: Vec::new(),
            logprobs: None,
            beam: None,
        }
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// Returns the first field that is out of range; NaN never passes.
    pub fn validate(&self) -> Result<(), ParamError> {
        let check = |ok: bool, field: &'static str, got: String, expected: &'static str| {
            if ok { Ok(()) } else { Err(ParamError { field, got, expected }) }
        };
        let t = self.temperature;
        check((0.0..=2.0).contains(&t), "temperature", t.to_string(), "between 0 and 2")?;
        let p = self.top_p;
        check(p > 0.0 && p <= 1.0, "top_p", p.to_string(), "above 0 and at most 1")?;
        let p = self.min_p;
        check((0.0..=1.0).contains(&p), "min_p", p.to_string(), "between 0 and 1")?;
        check(self.top_k != Some(0), "top_k", "0".to_owned(), "at least 1, or absent")?;
        let n = self.n;
        check((1..=Self::MAX_N).contains(&n), "n", n.to_string(), "between 1 and 128")?;
        check(self.max_tokens > 0, "max_tokens", "0".to_owned(), "at least 1")?;
        let l = self.logprobs.unwrap_or(0);
        check(l <= Self::MAX_LOGPROBS, "logprobs", l.to_string(), "between 0 and 20")?;
        let Some(BeamParams { width, length_penalty }) = self.beam else { return Ok(()) };
        let range = n..=BeamParams::MAX_WIDTH;
        check(range.contains(&width), "best_of", width.to_string(), "between n and 16 for beams")?;
        let finite = length_penalty.is_finite();
        check(finite, "length_penalty", length_penalty.to_string(), "a finite number")
    }
}

/// A sampling parameter out of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamError {
    /// Name of the field in the request.
    pub field: &'static str,
    /// The value that was given.
    pub got: String,
    /// What the field accepts.
    pub expected: &'static str,
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}, got {}", self.field, self.expected, self.got)
    }
}

impl std::error::Error for ParamError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn field_refused(change: impl FnOnce(&mut SamplingParams)) -> Option<&'static str> {
        let mut params = SamplingParams::greedy(1);
        change(&mut params);
        params.validate().err().map(|error| error.field)
    }

    #[test]
    fn numbers_outside_their_range_name_their_field() {
        assert_eq!(field_refused(|_| {}), None);
        assert_eq!(field_refused(|p| p.temperature = f32::NAN), Some("temperature"));
        assert_eq!(field_refused(|p| p.temperature = f32::INFINITY), Some("temperature"));
        assert_eq!(field_refused(|p| p.temperature = -0.1), Some("temperature"));
        assert_eq!(field_refused(|p| p.top_p = 0.0), Some("top_p"));
        assert_eq!(field_refused(|p| p.top_p = f32::NAN), Some("top_p"));
        assert_eq!(field_refused(|p| p.min_p = 1.5), Some("min_p"));
        assert_eq!(field_refused(|p| p.top_k = Some(0)), Some("top_k"));
        assert_eq!(field_refused(|p| p.n = 0), Some("n"));
        assert_eq!(field_refused(|p| p.max_tokens = 0), Some("max_tokens"));
        assert_eq!(field_refused(|p| p.logprobs = Some(21)), Some("logprobs"));
    }
}
