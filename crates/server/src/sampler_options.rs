//! From the sampler's fields to what the engine and the text of the output make of them.
//!
//! Ranges live in [`SamplingParams::validate`]; here are the rules that only the API has: token ids
//! written as strings, ids that the model must know, and limits of lists.

use crate::dry_options;
use crate::validation::{check_again, narrow};
use crate::wire::error::ApiError;
use crate::wire::sampler_fields::SamplerFields;
use mini_infer_core::{Penalties, SamplingParams, TokenId, XtcParams};
use mini_infer_text::{ControlTokens, StopText, Tokenizer};
use std::collections::BTreeMap;

/// Most stop tokens that one request may name; every generated token is compared with each.
pub(crate) const MAX_STOP_TOKEN_IDS: usize = 64;

/// The tokens that a request can name.
#[derive(Clone, Copy)]
pub(crate) struct ModelTokens<'a> {
    /// How many tokens the model knows.
    pub(crate) vocab_size: usize,
    /// Their texts.
    pub(crate) tokenizer: &'a Tokenizer,
}

/// How the tokens of an output are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextOptions {
    /// Whether control tokens are.
    pub(crate) control_tokens: ControlTokens,
    /// Whether what ends an output is: a stop string, or the text of a stop token.
    pub(crate) stop_text: StopText,
}

impl SamplerFields {
    /// Makes `sampling`, which is validated, follow the fields.
    ///
    /// # Errors
    /// Refuses values out of range and tokens that the model does not know, naming the field.
    pub(crate) fn apply(
        &self,
        sampling: &mut SamplingParams,
        model: ModelTokens<'_>,
    ) -> Result<TextOptions, ApiError> {
        let ModelTokens { vocab_size, tokenizer } = model;
        if let Some(biases) = &self.logit_bias {
            sampling.logit_bias = logit_bias(biases, vocab_size)?;
        }
        sampling.penalties = Penalties {
            repetition: narrow(self.repetition_penalty.unwrap_or(1.0)),
            presence: narrow(self.presence_penalty.unwrap_or(0.0)),
            frequency: narrow(self.frequency_penalty.unwrap_or(0.0)),
        };
        sampling.typical_p = narrow(self.typical_p.unwrap_or(1.0));
        sampling.xtc = XtcParams {
            probability: narrow(self.xtc_probability.unwrap_or(XtcParams::OFF.probability.into())),
            threshold: narrow(self.xtc_threshold.unwrap_or(XtcParams::OFF.threshold.into())),
        };
        sampling.dry = dry_options::read(self, tokenizer)?;
        sampling.min_tokens = self.min_tokens.unwrap_or(0);
        if let Some(ids) = &self.stop_token_ids {
            sampling.stop_token_ids.extend(stop_token_ids(ids, vocab_size)?);
        }
        check_again(sampling)?;
        Ok(TextOptions {
            control_tokens: match self.skip_special_tokens {
                None | Some(true) => ControlTokens::Skipped,
                Some(false) => ControlTokens::Written,
            },
            stop_text: match self.include_stop_str_in_output {
                None | Some(false) => StopText::Dropped,
                Some(true) => StopText::Kept,
            },
        })
    }
}

/// Reads biases by token ids, which are written as JSON writes the keys of objects.
fn logit_bias(
    field: &BTreeMap<String, f64>,
    vocab_size: usize,
) -> Result<Vec<(TokenId, f32)>, ApiError> {
    if field.len() > SamplingParams::MAX_LOGIT_BIASES {
        let message = format!(
            "takes at most {} tokens, got {}",
            SamplingParams::MAX_LOGIT_BIASES,
            field.len()
        );
        return Err(ApiError::invalid("logit_bias", message));
    }
    let entry = |(key, &bias): (&String, &f64)| {
        let refuse = |message| Err(ApiError::invalid(format!("logit_bias.{key}"), message));
        // "+5" and "05" would name a token twice.
        let id = key.parse::<TokenId>().ok().filter(|id| id.to_string() == *key);
        let Some(id) = id.filter(|&id| (id as usize) < vocab_size) else {
            return refuse(format!("keys are token ids, whole numbers below {vocab_size}"));
        };
        if !(-100.0..=100.0).contains(&bias) {
            return refuse(format!("must be between -100 and 100, got {bias}"));
        }
        Ok((id, narrow(bias)))
    };
    field.iter().map(entry).collect()
}

fn stop_token_ids(field: &[TokenId], vocab_size: usize) -> Result<Vec<TokenId>, ApiError> {
    let refuse = |message| Err(ApiError::invalid("stop_token_ids", message));
    if field.len() > MAX_STOP_TOKEN_IDS {
        return refuse(format!("takes at most {MAX_STOP_TOKEN_IDS} ids, got {}", field.len()));
    }
    match field.iter().find(|&&id| id as usize >= vocab_size) {
        Some(id) => refuse(format!("token ids are whole numbers below {vocab_size}, got {id}")),
        None => Ok(field.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dry_options::tests::tokenizer;
    use serde_json::{Value, json};

    fn apply(fields: Value) -> Result<(SamplingParams, TextOptions), String> {
        let fields: SamplerFields = serde_json::from_value(fields).unwrap();
        let mut sampling = SamplingParams { stop_token_ids: vec![7], ..SamplingParams::greedy(10) };
        let model = ModelTokens { vocab_size: 100, tokenizer: &tokenizer() };
        match fields.apply(&mut sampling, model) {
            Ok(text) => Ok((sampling, text)),
            Err(ApiError::InvalidField { param, .. }) => Err(param),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn absent_fields_change_nothing() {
        let (sampling, text) = apply(json!({})).unwrap();
        assert!(!sampling.changes_logits());
        assert_eq!((sampling.stop_token_ids, text), (vec![7], TextOptions::default()));
    }

    #[test]
    fn fields_reach_the_engine() {
        let fields = json!({
            "logit_bias": {"99": -100, "5": 1.5}, "presence_penalty": 1, "frequency_penalty": -2,
            "repetition_penalty": 1.25, "typical_p": 0.5, "xtc_probability": 0.25,
            "dry_multiplier": 1, "min_tokens": 10, "stop_token_ids": [3, 4],
            "include_stop_str_in_output": true, "skip_special_tokens": false,
        });
        let (sampling, text) = apply(fields).unwrap();
        assert_eq!(sampling.logit_bias, [(5, 1.5), (99, -100.0)]);
        let penalties = Penalties { repetition: 1.25, presence: 1.0, frequency: -2.0 };
        assert_eq!(sampling.penalties, penalties);
        let xtc = XtcParams { probability: 0.25, threshold: 0.1 };
        assert_eq!((sampling.typical_p, sampling.xtc), (0.5, xtc));
        assert_eq!(sampling.dry.unwrap().multiplier, 1.0);
        assert_eq!((sampling.min_tokens, sampling.stop_token_ids), (10, vec![7, 3, 4]));
        let expected =
            TextOptions { control_tokens: ControlTokens::Written, stop_text: StopText::Kept };
        assert_eq!(text, expected);
    }

    #[test]
    fn biases_name_the_key_that_is_wrong() {
        for key in ["100", "191222", "-1", "05", "+5", "abc", "", "5.0", "18446744073709551616"] {
            let refused = apply(json!({"logit_bias": {key: 1}})).unwrap_err();
            assert_eq!(refused, format!("logit_bias.{key}"));
        }
        for bias in [-100.5, 1000.0, 1e300] {
            assert_eq!(apply(json!({"logit_bias": {"5": bias}})).unwrap_err(), "logit_bias.5");
        }
        let many: BTreeMap<String, f64> = (0..513).map(|id| (id.to_string(), 0.0)).collect();
        assert_eq!(apply(json!({"logit_bias": many})).unwrap_err(), "logit_bias");
    }

    #[test]
    fn numbers_out_of_range_name_their_field() {
        for (field, value) in [
            ("presence_penalty", json!(2.5)),
            ("frequency_penalty", json!(-1e39)),
            ("repetition_penalty", json!(0)),
            ("typical_p", json!(0)),
            ("xtc_probability", json!(1.5)),
            ("xtc_threshold", json!(-0.5)),
            ("dry_multiplier", json!(-1)),
            ("dry_range", json!(-1)),
            ("min_tokens", json!(11)),
            ("stop_token_ids", json!([100])),
            ("stop_token_ids", json!(vec![1; 65])),
        ] {
            assert_eq!(apply(json!({field: value})).unwrap_err(), field);
        }
    }
}
