//! What PEFT's `adapter_config.json` says about how an adapter is applied.

use crate::error::ModelError;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// What decides an adapter's numbers besides its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AdapterConfig {
    alpha: f64,
    divisor: Divisor,
}

/// What the scale is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Divisor {
    /// The rank.
    Rank,
    /// Its square root (rank-stabilised LoRA).
    RootOfRank,
}

/// Keys that change no number: which modules have tensors and of what rank shows in the tensors,
/// and how they were trained is over. Any other key has to say that its feature is not used.
const INFORMATIVE: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "target_modules",
    "task_type",
];

/// Keys and values by which a feature is not used, besides `null`, `false` and what is empty.
/// Trainings that begin with other matrices than these also change the model's own weights.
const UNUSED: &[(&str, &[&str])] =
    &[("bias", &["none"]), ("init_lora_weights", &["true", "eva", "gaussian", "orthogonal"])];

#[derive(Deserialize)]
struct AdapterConfigJson {
    peft_type: String,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: Option<bool>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

impl AdapterConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// When it is no JSON of that form, or the adapter uses what is not implemented; the error
    /// names the key.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ModelError> {
        let json: AdapterConfigJson = serde_json::from_slice(bytes)
            .map_err(|source| ModelError::Json { what: "the adapter's configuration", source })?;
        if json.peft_type != "LORA" {
            return Err(unsupported("peft_type", &json.peft_type, "LORA"));
        }
        for (key, value) in &json.others {
            check(key, value)?;
        }
        if !json.lora_alpha.is_finite() {
            return Err(ModelError::MetadataValue {
                key: "lora_alpha".to_owned(),
                got: json.lora_alpha.to_string(),
                expected: "a finite number".to_owned(),
            });
        }
        let divisor = match json.use_rslora {
            Some(true) => Divisor::RootOfRank,
            Some(false) | None => Divisor::Rank,
        };
        Ok(Self { alpha: json.lora_alpha, divisor })
    }

    /// Returns the factor on the product of an adapter's two matrices.
    pub(super) fn scale(&self, rank: usize) -> f64 {
        match self.divisor {
            Divisor::Rank => self.alpha / rank as f64,
            Divisor::RootOfRank => self.alpha / (rank as f64).sqrt(),
        }
    }
}

/// Checks that a key changes no number.
fn check(key: &str, value: &Value) -> Result<(), ModelError> {
    let known = UNUSED.iter().find(|(known, _)| *known == key);
    let unused = known.map_or(&[][..], |(_, values)| values);
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let is_empty = matches!(text.as_str(), "null" | "false" | "" | "[]" | "{}");
    if is_empty || INFORMATIVE.contains(&key) || unused.contains(&text.as_str()) {
        return Ok(());
    }
    let supported = [unused, &["false", "null or nothing"]].concat().join(", ");
    Err(unsupported(key, &text, &supported))
}

fn unsupported(key: &str, got: &str, supported: &str) -> ModelError {
    ModelError::Unsupported {
        what: format!("`{key}` of an adapter"),
        got: got.to_owned(),
        supported: supported.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &str) -> Result<AdapterConfig, String> {
        let json = format!(r#"{{"peft_type": "LORA", "r": 8, "lora_alpha": 32{more}}}"#);
        AdapterConfig::parse(json.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_scale_is_alpha_by_rank_or_by_its_root() {
        let usual = parse(r#", "bias": "none", "use_dora": false, "modules_to_save": null"#);
        assert_eq!(usual.unwrap().scale(8), 4.0);
        assert_eq!(parse(r#", "use_rslora": true"#).unwrap().scale(16), 8.0);
    }

    /// PEFT divides by the rank that the matrices have, whatever `r` says.
    #[test]
    fn keys_that_the_tensors_answer_change_nothing() {
        let plain = parse("").unwrap();
        for more in [
            r#", "rank_pattern": {"q_proj": 2}, "r": 8, "layers_to_transform": [0, 1]"#,
            r#", "target_modules": ["qkv_proj"], "exclude_modules": ["v_proj"]"#,
            r#", "init_lora_weights": true, "lora_bias": false, "alpha_pattern": {}"#,
            r#", "init_lora_weights": "gaussian", "trainable_token_indices": null"#,
            r#", "lora_dropout": 0.1, "auto_mapping": {"base_model_class": "Phi3ForCausalLM"}"#,
        ] {
            assert_eq!(parse(more).unwrap(), plain, "{more}");
        }
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (more, key) in [
            (r#", "use_dora": true"#, "use_dora"),
            (r#", "bias": "all""#, "bias"),
            (r#", "bias": "lora_only""#, "bias"),
            (r#", "lora_bias": true"#, "lora_bias"),
            (r#", "modules_to_save": ["lm_head"]"#, "modules_to_save"),
            (r#", "alpha_pattern": {"q_proj": 3}"#, "alpha_pattern"),
            (r#", "fan_in_fan_out": true"#, "fan_in_fan_out"),
            (r#", "trainable_token_indices": [3]"#, "trainable_token_indices"),
            (r#", "layer_replication": [[0, 2]]"#, "layer_replication"),
            (r#", "target_parameters": ["experts.gate_up_proj"]"#, "target_parameters"),
            (r#", "init_lora_weights": "pissa_niter_4""#, "init_lora_weights"),
            (r#", "use_what_comes_next": 1"#, "use_what_comes_next"),
        ] {
            let error = parse(more).unwrap_err();
            assert!(error.contains(&format!("`{key}`")) && error.contains("null"), "{error}");
        }
        let error = parse(r#", "bias": "all""#).unwrap_err();
        assert_eq!(
            error,
            "`bias` of an adapter `all` is not supported; supported: none, false, null or nothing"
        );
        let other = AdapterConfig::parse(br#"{"peft_type": "IA3", "lora_alpha": 1}"#).unwrap_err();
        assert!(other.to_string().contains("IA3"));
        assert!(AdapterConfig::parse(br#"{"peft_type": "LORA"}"#).is_err());
        assert!(AdapterConfig::parse(b"[").is_err());
    }
}
