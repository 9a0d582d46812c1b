//! Fields of both routes that say how tokens are chosen and written, beyond OpenAI's oldest ones.
//!
//! They are read out of the fields that no request type names, so that both request types have them
//! from one place. Numbers are checked in `sampler_options`.

use super::error::ApiError;
use super::extra_fields;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Fields of a request; absent and `null` mean the same.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SamplerFields {
    /// By token ids in decimal digits.
    pub(crate) logit_bias: Option<BTreeMap<String, f64>>,
    pub(crate) presence_penalty: Option<f64>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) typical_p: Option<f64>,
    pub(crate) xtc_probability: Option<f64>,
    pub(crate) xtc_threshold: Option<f64>,
    pub(crate) dry_multiplier: Option<f64>,
    pub(crate) dry_base: Option<f64>,
    pub(crate) dry_allowed_length: Option<u32>,
    pub(crate) dry_range: Option<i64>,
    pub(crate) dry_penalty_last_n: Option<i64>,
    pub(crate) dry_sequence_breakers: Option<Vec<String>>,
    pub(crate) min_tokens: Option<u32>,
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    pub(crate) include_stop_str_in_output: Option<bool>,
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
