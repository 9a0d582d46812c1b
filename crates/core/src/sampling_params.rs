//! How a request's tokens are chosen.

use crate::{DryParams, Penalties, TokenId, XtcParams};
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
    /// Keeps the smallest set of tokens closest to the entropy whose probability reaches this.
    /// Range `(0, 1]`.
    pub typical_p: f32,
    /// Excludes top choices now and then.
    pub xtc: XtcParams,
    /// Start of the request's own random stream; equal seeds give equal tokens.
    pub seed: u64,
    /// Output tokens after which a sequence finishes with `Length`; 0 only where a report on the
    /// prompt is all that is wanted.
    pub max_tokens: u32,
    /// Tokens that finish a sequence with `Stop`; empty under `ignore_eos`.
    pub stop_token_ids: Vec<TokenId>,
    /// Reports the log probability of each token and of this many most likely ones, `0..=20`.
    pub logprobs: Option<u32>,
    /// Added to the logits of tokens, each of them once and known to the model. Range
    /// `-100..=100`, at most [`Self::MAX_LOGIT_BIASES`] of them.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// What tokens cost that occurred already.
    pub penalties: Penalties,
    /// What repetitions cost.
    pub dry: Option<DryParams>,
    /// Output tokens before which no stop token is chosen, at most `max_tokens`.
    pub min_tokens: u32,
    /// Searches for the likeliest sequences instead of sampling. Goes with the logits as they are.
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
    /// Most tokens that `logit_bias` can name: a copy of the list goes with every request.
    pub const MAX_LOGIT_BIASES: usize = 512;

    /// Returns parameters that choose the most likely token, `max_tokens` times.
    #[must_use]
    pub fn greedy(max_tokens: u32) -> Self {
        Self {
            n: 1,
            temperature: 0.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            typical_p: 1.0,
            xtc: XtcParams::OFF,
            seed: 0,
            max_tokens,
            stop_token_ids: Vec::new(),
            logprobs: None,
            logit_bias: Vec::new(),
            penalties: Penalties::NONE,
            dry: None,
            min_tokens: 0,
            beam: None,
        }
    }

    /// Tells whether logits are changed before a token is chosen.
    #[must_use]
    pub fn changes_logits(&self) -> bool {
        !self.logit_bias.is_empty()
            || self.penalties != Penalties::NONE
            || self.dry.is_some()
            || self.min_tokens > 0
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// Returns the first field that is out of range; NaN never passes.
    pub fn validate(&self) -> Result<(), ParamError> {
        let t = self.temperature;
        ParamError::unless((0.0..=2.0).contains(&t), "temperature", t, "between 0 and 2")?;
        let p = self.top_p;
        ParamError::unless(p > 0.0 && p <= 1.0, "top_p", p, "above 0 and at most 1")?;
        let p = self.min_p;
        ParamError::unless((0.0..=1.0).contains(&p), "min_p", p, "between 0 and 1")?;
        ParamError::unless(self.top_k != Some(0), "top_k", 0, "at least 1, or absent")?;
        let n = self.n;
        ParamError::unless((1..=Self::MAX_N).contains(&n), "n", n, "between 1 and 128")?;
        let l = self.logprobs.unwrap_or(0);
        ParamError::unless(l <= Self::MAX_LOGPROBS, "logprobs", l, "between 0 and 20")?;
        let l = self.min_tokens;
        ParamError::unless(
            l <= self.max_tokens,
            "min_tokens",
            l,
            "at most the number of output tokens",
        )?;
        let p = self.typical_p;
        ParamError::unless(p > 0.0 && p <= 1.0, "typical_p", p, "above 0 and at most 1")?;
        self.xtc.validate()?;
        self.penalties.validate()?;
        self.dry.as_ref().map_or(Ok(()), DryParams::validate)?;
        self.validate_bias()?;
        let Some(BeamParams { width, length_penalty }) = self.beam else { return Ok(()) };
        let range = n..=BeamParams::MAX_WIDTH;
        ParamError::unless(range.contains(&width), "best_of", width, "between n and 16 for beams")?;
        let finite = length_penalty.is_finite();
        ParamError::unless(finite, "length_penalty", length_penalty, "a finite number")?;
        let as_they_are = !self.changes_logits();
        ParamError::unless(as_they_are, "use_beam_search", true, "false where logits are changed")
    }

    fn validate_bias(&self) -> Result<(), ParamError> {
        let (field, num) = ("logit_bias", self.logit_bias.len());
        let is_short = num <= Self::MAX_LOGIT_BIASES;
        ParamError::unless(is_short, field, num, "for at most 512 tokens")?;
        for &(_, bias) in &self.logit_bias {
            let fits = (-100.0..=100.0).contains(&bias);
            ParamError::unless(fits, field, bias, "between -100 and 100")?;
        }
        Ok(())
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

impl ParamError {
    /// Returns the error of a field that is not `ok`.
    pub(crate) fn unless(
        ok: bool,
        field: &'static str,
        got: impl fmt::Display,
        expected: &'static str,
    ) -> Result<(), Self> {
        if ok { Ok(()) } else { Err(Self { field, got: got.to_string(), expected }) }
    }
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
        assert_eq!(field_refused(|p| p.logprobs = Some(21)), Some("logprobs"));
        assert_eq!(field_refused(|p| p.min_tokens = 2), Some("min_tokens"));
        assert_eq!(field_refused(|p| p.min_tokens = 1), None);
        assert_eq!(field_refused(|p| p.typical_p = 0.0), Some("typical_p"));
        assert_eq!(field_refused(|p| p.typical_p = f32::NAN), Some("typical_p"));
        assert_eq!(field_refused(|p| p.xtc.probability = 1.5), Some("xtc_probability"));
        assert_eq!(field_refused(|p| p.xtc.threshold = f32::NAN), Some("xtc_threshold"));
    }

    #[test]
    fn what_changes_logits_has_its_ranges_and_is_not_for_beams() {
        type Change = fn(&mut SamplingParams, f32);
        let fields: [(Change, [f32; 2], [f32; 2], &str); 4] = [
            (|p, x| p.penalties.repetition = x, [0.1, 10.0], [0.0, 10.5], "repetition_penalty"),
            (|p, x| p.penalties.presence = x, [-2.0, 2.0], [-2.1, 2.1], "presence_penalty"),
            (|p, x| p.penalties.frequency = x, [-2.0, 2.0], [-2.1, 2.1], "frequency_penalty"),
            (|p, x| p.logit_bias = vec![(1, x)], [-100.0, 100.0], [-100.5, 100.5], "logit_bias"),
        ];
        for (change, good, bad, field) in fields {
            for value in good {
                assert_eq!(field_refused(|p| change(p, value)), None, "{field} {value}");
                let with_beams = |p: &mut SamplingParams| {
                    change(p, value);
                    p.beam = Some(BeamParams { width: 1, length_penalty: 1.0 });
                };
                assert_eq!(field_refused(with_beams), Some("use_beam_search"));
            }
            for value in bad.into_iter().chain([f32::NAN, f32::INFINITY]) {
                assert_eq!(field_refused(|p| change(p, value)), Some(field), "{value}");
            }
        }
        let dry = DryParams {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            num_last_tokens: 1,
            breakers: Default::default(),
        };
        let with_dry = |dry: DryParams| field_refused(|p| p.dry = Some(dry));
        assert_eq!(with_dry(dry.clone()), None);
        for (bad, field) in [
            (DryParams { multiplier: f32::NAN, ..dry.clone() }, "dry_multiplier"),
            (DryParams { base: 0.5, ..dry.clone() }, "dry_base"),
            (DryParams { allowed_length: 0, ..dry.clone() }, "dry_allowed_length"),
            (DryParams { num_last_tokens: 0, ..dry }, "dry_penalty_last_n"),
        ] {
            assert_eq!(with_dry(bad), Some(field));
        }
        let many = |num| move |p: &mut SamplingParams| p.logit_bias = vec![(0, 1.0); num];
        assert_eq!(field_refused(many(512)), None);
        assert_eq!(field_refused(many(513)), Some("logit_bias"));
    }
}
