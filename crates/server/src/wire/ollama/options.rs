//! `options`: how tokens are chosen, in Ollama's names and with Ollama's defaults.
//!
//! Source: `Options` and `DefaultOptions` of Ollama's Go package `api`, and llama.cpp's meaning of
//! them. Options that only say how a model is loaded have no effect: it is loaded.

use crate::wire::error::ApiError;
use crate::wire::field_rules::{self, FieldRule};
use crate::wire::shared::StopField;
use FieldRule::{Ignored, Neutral};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

const DEFAULT_TEMPERATURE: f64 = 0.8;
const DEFAULT_TOP_K: i64 = 40;
const DEFAULT_TOP_P: f64 = 0.9;

/// Options that change nothing, or must not ask for anything; sorted.
const FIELDS: &[(&str, FieldRule)] = &[
    ("draft_num_predict", Ignored),
    ("embedding_only", Neutral(is_false)),
    ("f16_kv", Ignored),
    ("logits_all", Ignored),
    ("low_vram", Ignored),
    ("main_gpu", Ignored),
    ("mirostat", Neutral(is_zero)),
    ("mirostat_eta", Ignored),
    ("mirostat_tau", Ignored),
    ("num_batch", Ignored),
    ("num_gpu", Ignored),
    ("num_keep", Ignored),
    ("num_thread", Ignored),
    ("numa", Ignored),
    ("penalize_newline", Neutral(is_true)),
    ("tfs_z", Neutral(is_one)),
    ("use_mlock", Ignored),
    ("use_mmap", Ignored),
    ("vocab_only", Neutral(is_false)),
];

fn is_false(value: &Value) -> bool {
    value.as_bool() == Some(false)
}

fn is_true(value: &Value) -> bool {
    value.as_bool() == Some(true)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

/// The options of a request; absent and `null` mean the same.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaOptions", deny_unknown_fields)]
pub(crate) struct OptionFields {
    /// Most output tokens; below 0 and absent, the rest of the context.
    #[schemars(extend("not" = {"const": 0}))]
    num_predict: Option<i64>,
    /// Tokens of the context that are needed; refused above those that there are.
    num_ctx: Option<i64>,
    /// Evens out the probabilities of tokens above 1, sharpens them below; 0.8 by default.
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    /// Keeps so many of the likeliest tokens; 0 and -1 keep all; 40 by default.
    #[schemars(range(min = -1, max = u32::MAX))]
    top_k: Option<i64>,
    /// Keeps the likeliest tokens that have this probability together; 0.9 by default.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    top_p: Option<f64>,
    /// Drops tokens that are less likely than this share of the likeliest one.
    #[schemars(range(min = 0, max = 1))]
    min_p: Option<f64>,
    /// Keeps the tokens whose information is closest to the entropy, up to this probability.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    typical_p: Option<f64>,
    /// Divides logits of tokens in prompt and output: above 0 and at most 10, where it acts.
    repeat_penalty: Option<f64>,
    /// -1: the penalties count every token; 0: there are none, and their values do not matter.
    repeat_last_n: Option<i64>,
    /// Subtracted from the logit of tokens that occurred: from -2 to 2, where it acts.
    presence_penalty: Option<f64>,
    /// Subtracted as often as they occurred: from -2 to 2, where it acts.
    frequency_penalty: Option<f64>,
    /// Equal seeds give equal tokens; below 0 as if absent.
    seed: Option<i64>,
    /// Strings that end the output and are not part of it.
    stop: Option<StopField>,
    #[serde(flatten)]
    #[schemars(schema_with = "extra_schema")]
    extra: BTreeMap<String, Value>,
}

/// Describes the options that are judged out of `extra`.
fn extra_schema(_: &mut SchemaGenerator) -> Schema {
    field_rules::schema(FIELDS)
}

/// The options in the fields of OpenAI's API and their extensions.
#[derive(Debug)]
pub(crate) struct Sampling {
    /// `None` where the output may fill the context.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<StopField>,
    /// Fields that no request type names.
    pub(crate) extra: BTreeMap<String, Value>,
}

impl OptionFields {
    /// Reads the options for a model whose context has `max_model_len` tokens.
    ///
    /// # Errors
    /// Refuses what is not served, naming the option.
    pub(crate) fn into_sampling(self, max_model_len: u32) -> Result<Sampling, ApiError> {
        field_rules::check("options.", &self.extra, FIELDS)?;
        if self.num_ctx.is_some_and(|num_tokens| num_tokens > max_model_len.into()) {
            let message = format!("this server's context has {max_model_len} tokens");
            return Err(ApiError::invalid("options.num_ctx", message));
        }
        Ok(Sampling {
            max_tokens: self.max_tokens()?,
            temperature: Some(self.temperature.unwrap_or(DEFAULT_TEMPERATURE)),
            top_k: Some(self.top_k.unwrap_or(DEFAULT_TOP_K)),
            top_p: Some(self.top_p.unwrap_or(DEFAULT_TOP_P)),
            min_p: self.min_p,
            extra: self.other_fields(max_model_len)?,
            // A negative one asks for a seed that nobody knows.
            seed: self.seed.filter(|&seed| seed >= 0),
            stop: self.stop,
        })
    }

    fn max_tokens(&self) -> Result<Option<u32>, ApiError> {
        match self.num_predict {
            None | Some(..0) => Ok(None),
            Some(0) => Err(ApiError::invalid(
                "options.num_predict",
                "must be at least 1, or -1 for no limit",
            )),
            Some(limit) => Ok(Some(u32::try_from(limit).unwrap_or(u32::MAX))),
        }
    }

    /// Returns the penalties, and what else has a field of its own in both APIs' extensions.
    fn other_fields(&self, max_model_len: u32) -> Result<BTreeMap<String, Value>, ApiError> {
        let penalties = [
            ("repetition_penalty", self.repeat_penalty, 1.0),
            ("presence_penalty", self.presence_penalty, 0.0),
            ("frequency_penalty", self.frequency_penalty, 0.0),
        ];
        let penalizes = penalties.iter().any(|(_, value, off)| value.is_some_and(|v| v != *off));
        let fits_all = |num_tokens: i64| num_tokens == -1 || num_tokens >= max_model_len.into();
        let is_off = match self.repeat_last_n {
            Some(0) => true,
            Some(num_tokens) if penalizes && !fits_all(num_tokens) => {
                let message = "must be -1, as penalties count every token, or 0 for no penalties";
                return Err(ApiError::invalid("options.repeat_last_n", message));
            }
            None | Some(_) => false,
        };
        let mut fields = BTreeMap::new();
        for (name, value, _) in penalties.into_iter().filter(|_| !is_off) {
            fields.extend(value.map(|value| (name.to_owned(), Value::from(value))));
        }
        let typical_p = self.typical_p.map(|value| ("typical_p".to_owned(), Value::from(value)));
        fields.extend(typical_p);
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(options: Value) -> Result<Sampling, String> {
        let fields: OptionFields = serde_json::from_value(options).unwrap();
        fields.into_sampling(100).map_err(|error| {
            let (ApiError::InvalidField { param, .. }
            | ApiError::UnknownField { param }
            | ApiError::UnsupportedField { param }) = error
            else {
                panic!("{error:?}")
            };
            param
        })
    }

    #[test]
    fn absent_options_have_ollamas_defaults() {
        let sampling = read(json!({})).unwrap();
        assert_eq!((sampling.temperature, sampling.top_p), (Some(0.8), Some(0.9)));
        assert_eq!((sampling.top_k, sampling.min_p), (Some(40), None));
        assert_eq!((sampling.max_tokens, sampling.seed), (None, None));
        assert!(sampling.extra.is_empty() && sampling.stop.is_none());
    }

    #[test]
    fn options_keep_their_meaning() {
        let options = json!({
            "num_predict": 7, "num_ctx": 100, "temperature": 0, "typical_p": 0.5, "seed": 3,
            "repeat_penalty": 1.1, "repeat_last_n": -1, "presence_penalty": 1, "stop": ["a"],
            "num_gpu": 99, "mirostat": 0, "penalize_newline": true, "tfs_z": 1,
        });
        let sampling = read(options).unwrap();
        assert_eq!((sampling.max_tokens, sampling.seed), (Some(7), Some(3)));
        assert_eq!(sampling.temperature, Some(0.0));
        let extra = json!({"typical_p": 0.5, "repetition_penalty": 1.1, "presence_penalty": 1.0});
        assert_eq!(json!(sampling.extra), extra);
        let any = read(json!({"num_predict": -1, "seed": -1, "num_keep": 4})).unwrap();
        assert_eq!((any.max_tokens, any.seed), (None, None));
        assert_eq!(read(json!({"num_predict": -2})).unwrap().max_tokens, None);
    }

    #[test]
    fn penalties_count_every_token_or_none() {
        let extra = |options| read(options).map(|sampling| json!(sampling.extra));
        let penalty = |last_n: i64| json!({"repeat_penalty": 1.5, "repeat_last_n": last_n});
        assert_eq!(extra(penalty(0)), Ok(json!({})));
        assert_eq!(extra(penalty(100)), Ok(json!({"repetition_penalty": 1.5})));
        assert_eq!(extra(penalty(64)), Err("options.repeat_last_n".to_owned()));
        let none = json!({"repeat_penalty": 1.0, "repeat_last_n": 64});
        assert_eq!(extra(none), Ok(json!({"repetition_penalty": 1.0})));
    }

    #[test]
    fn what_is_not_served_is_named() {
        for (option, value) in [
            ("num_ctx", json!(101)),
            ("num_predict", json!(0)),
            ("mirostat", json!(2)),
            ("tfs_z", json!(0.5)),
            ("penalize_newline", json!(false)),
            ("vocab_only", json!(true)),
            ("draft", json!(1)),
        ] {
            assert_eq!(read(json!({option: value})).unwrap_err(), format!("options.{option}"));
        }
        assert!(FIELDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
