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

/// Keys whose features are not implemented, and the values by which an adapter does not use them
/// besides `null`, `false`, and what is empty.
const UNSUPPORTED: &[(&str, Option<&str>)] = &[
    ("alora_invocation_tokens", None),
    ("alpha_pattern", None),
    ("arrow_config", None),
    ("bias", Some("none")),
    ("eva_config", None),
    ("exclude_modules", None),
    ("fan_in_fan_out", None),
    ("kasa_config", None),
    ("layer_replication", None),
    ("lora_bias", None),
    ("modules_to_save", None),
    ("monteclora_config", None),
    ("target_parameters", None),
    ("trainable_token_indices", None),
    ("use_bdlora", None),
    ("use_dora", None),
    ("use_qalora", None),
    ("velora_config", None),
];

#[derive(Deserialize)]
struct AdapterConfigJson {
    peft_type: String,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: Option<bool>,
    /// Which tensors there are says more than the keys that name modules and ranks.
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
        for (key, unused) in UNSUPPORTED {
            if let Some(value) = json.others.get(*key)
                && !says_unused(value, *unused)
            {
                let supported = unused.unwrap_or("false, null or nothing");
                return Err(unsupported(key, &value.to_string(), supported));
            }
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

fn says_unused(value: &Value, unused: Option<&str>) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_used) => !is_used,
        Value::String(text) => Some(text.as_str()) == unused,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Number(_) => false,
    }
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

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (more, key) in [
            (r#", "use_dora": true"#, "use_dora"),
            (r#", "bias": "all""#, "bias"),
            (r#", "modules_to_save": ["lm_head"]"#, "modules_to_save"),
            (r#", "alpha_pattern": {"q_proj": 3}"#, "alpha_pattern"),
            (r#", "fan_in_fan_out": true"#, "fan_in_fan_out"),
        ] {
            assert!(parse(more).unwrap_err().contains(key), "{more}");
        }
        let other = AdapterConfig::parse(br#"{"peft_type": "IA3", "lora_alpha": 1}"#).unwrap_err();
        assert!(other.to_string().contains("IA3"));
        assert!(AdapterConfig::parse(br#"{"peft_type": "LORA"}"#).is_err());
        assert!(AdapterConfig::parse(b"[").is_err());
    }
}
