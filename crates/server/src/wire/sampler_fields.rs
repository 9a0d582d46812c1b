//! Fields of both routes that say how tokens are chosen and written, beyond OpenAI's oldest ones.
//!
//! They are read out of the fields that no request type names, so that both request types have them
//! from one place. Numbers are checked in `sampler_options`.

use super::error::ApiError;
use super::extra_fields;
use crate::dry_options::{MAX_BREAKER_BYTES, MAX_BREAKERS};
use crate::sampler_options::MAX_STOP_TOKEN_IDS;
use mini_infer_core::SamplingParams;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Fields of a request; absent and `null` mean the same.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SamplerFields {
    /// What is added to the logits of tokens, by token ids in decimal digits.
    #[schemars(extend(
        "maxProperties" = SamplingParams::MAX_LOGIT_BIASES,
        "propertyNames" = {"pattern": "^(0|[1-9][0-9]*)$"},
        "additionalProperties" = {"type": "number", "minimum": -100, "maximum": 100}
    ))]
    pub(crate) logit_bias: Option<BTreeMap<String, f64>>,
    /// Subtracted from the logit of every token that occurred in the output.
    #[schemars(range(min = -2, max = 2))]
    pub(crate) presence_penalty: Option<f64>,
    /// Subtracted from the logit of every output token as often as it occurred.
    #[schemars(range(min = -2, max = 2))]
    pub(crate) frequency_penalty: Option<f64>,
    /// Divides the logits above 0 of all tokens in prompt and output, and multiplies those below.
    #[schemars(range(max = 10), extend("exclusiveMinimum" = 0))]
    pub(crate) repetition_penalty: Option<f64>,
    /// Keeps the tokens whose information is closest to the entropy, up to this probability.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub(crate) typical_p: Option<f64>,
    /// With this probability, the likeliest tokens are dropped (XTC).
    #[schemars(range(min = 0, max = 1))]
    pub(crate) xtc_probability: Option<f64>,
    /// XTC drops all tokens at least as likely, but for the least likely of them; 0.1 by default.
    #[schemars(range(min = 0, max = 1))]
    pub(crate) xtc_threshold: Option<f64>,
    /// How strongly repetitions are kept from going on (DRY); 0 for not at all.
    #[schemars(range(min = 0, max = 100))]
    pub(crate) dry_multiplier: Option<f64>,
    /// What each token of a repetition multiplies the penalty by; 1.75 by default.
    #[schemars(range(min = 1, max = 16))]
    pub(crate) dry_base: Option<f64>,
    /// Tokens from which on a repetition counts; 2 by default.
    #[schemars(range(min = 1))]
    pub(crate) dry_allowed_length: Option<u32>,
    /// Tokens at the end in which repetitions are looked for; 0 for all, which is the default.
    #[schemars(range(min = 0, max = u32::MAX))]
    pub(crate) dry_range: Option<i64>,
    /// The same, but -1 for all and 0 for none.
    #[schemars(range(min = -1, max = u32::MAX))]
    pub(crate) dry_penalty_last_n: Option<i64>,
    /// No repetition is counted across these.
    #[schemars(length(max = MAX_BREAKERS), inner(length(min = 1, max = MAX_BREAKER_BYTES)))]
    pub(crate) dry_sequence_breakers: Option<Vec<String>>,
    /// Output tokens before which no stop token is chosen.
    pub(crate) min_tokens: Option<u32>,
    /// Tokens that end the output, besides the model's own.
    #[schemars(length(max = MAX_STOP_TOKEN_IDS))]
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    /// Makes what ends the output a part of it.
    pub(crate) include_stop_str_in_output: Option<bool>,
    /// `false`: special tokens of the output are written out.
    pub(crate) skip_special_tokens: Option<bool>,
}

/// Names of all fields of [`SamplerFields`].
const NAMES: [&str; 17] = [
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_range",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "min_tokens",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
];

impl SamplerFields {
    /// Takes the fields out of those that no request type names.
    ///
    /// # Errors
    /// Refuses a field of a wrong type, naming the path to it.
    pub(crate) fn take(extra: &mut BTreeMap<String, Value>) -> Result<Self, ApiError> {
        extra_fields::take(extra, &NAMES)
    }
}

/// Takes the fields out of those of a body, unread.
pub(crate) fn split_off(extra: &mut BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    NAMES.iter().filter_map(|name| extra.remove_entry(*name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn take(value: Value) -> Result<(SamplerFields, BTreeMap<String, Value>), String> {
        let mut extra = serde_json::from_value(value).unwrap();
        match SamplerFields::take(&mut extra) {
            Ok(fields) => Ok((fields, extra)),
            Err(ApiError::InvalidField { param, .. }) => Err(param),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_name_is_that_of_a_field_and_null_is_absent() {
        for name in NAMES {
            let (_, rest) = take(json!({name: null, "user": "me"})).unwrap();
            assert_eq!(rest.keys().collect::<Vec<_>>(), ["user"]);
        }
    }

    #[test]
    fn wrong_types_name_the_path_to_the_field() {
        let refused = |value| take(value).unwrap_err();
        assert_eq!(refused(json!({"logit_bias": {"5": "x"}})), "logit_bias.5");
        assert_eq!(refused(json!({"logit_bias": [5]})), "logit_bias");
        assert_eq!(refused(json!({"presence_penalty": "0"})), "presence_penalty");
        assert_eq!(refused(json!({"dry_sequence_breakers": ["a", 5]})), "dry_sequence_breakers[1]");
        assert_eq!(refused(json!({"min_tokens": -1})), "min_tokens");
        assert_eq!(refused(json!({"stop_token_ids": [1, -1]})), "stop_token_ids[1]");
        assert_eq!(refused(json!({"stop_token_ids": 5})), "stop_token_ids");
        assert_eq!(refused(json!({"skip_special_tokens": 1})), "skip_special_tokens");
    }
}
