//! What clients are told of the served model and its adapters.

use crate::model_details::ModelDetails;
use crate::wire::error::ApiError;
use crate::wire::field_rules::{self, FieldRule};
use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// The version of Ollama whose API is served: clients refuse to talk to older ones. Log
/// probabilities came with it.
pub(crate) const VERSION: &str = "0.12.11";

/// When a model is unloaded that stays: as late as clients can read.
pub(crate) const NEVER: &str = "9999-12-31T23:59:59Z";

/// Fields of `POST /api/show` that change nothing, or must not ask for anything; sorted.
const SHOW_FIELDS: &[(&str, FieldRule)] = &[
    ("options", FieldRule::Neutral(is_empty)),
    ("system", FieldRule::Neutral(is_empty)),
    ("template", FieldRule::Neutral(is_empty)),
    ("verbose", FieldRule::Ignored),
];

fn is_empty(value: &Value) -> bool {
    value.as_str().is_some_and(str::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// Asks what a model is.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaShowRequest", deny_unknown_fields)]
pub(crate) struct ShowBody {
    /// The model, or an adapter of it, with or without `:latest`; required but for `name`.
    model: Option<String>,
    /// What `model` was called first.
    name: Option<String>,
    #[serde(flatten)]
    #[schemars(schema_with = "show_extra_schema")]
    extra: BTreeMap<String, Value>,
}

/// Describes the fields that are judged out of `extra`.
fn show_extra_schema(_: &mut SchemaGenerator) -> Schema {
    field_rules::schema(SHOW_FIELDS)
}

impl ShowBody {
    /// Returns the name of the model that is asked about.
    ///
    /// # Errors
    /// Refuses what is not served, naming the field.
    pub(crate) fn into_name(self) -> Result<Option<String>, ApiError> {
        field_rules::check("", &self.extra, SHOW_FIELDS)?;
        Ok(self.model.filter(|name| !name.is_empty()).or(self.name))
    }
}

/// The answer to `GET /api/tags` and `GET /api/ps`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModelList")]
pub(crate) struct ModelList {
    pub(crate) models: Vec<ListedModel>,
}

/// One name of the model, or one adapter.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModel")]
pub(crate) struct ListedModel {
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) modified_at: String,
    pub(crate) size: u64,
    pub(crate) digest: String,
    pub(crate) details: Details,
    #[serde(flatten)]
    pub(crate) running: Option<Running>,
}

/// What `GET /api/ps` tells besides.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Running {
    pub(crate) expires_at: &'static str,
    /// Bytes on a graphics card.
    pub(crate) size_vram: u64,
    pub(crate) context_length: u32,
}

/// What kind of model it is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModelDetails")]
pub(crate) struct Details {
    /// The model that an adapter changes.
    parent_model: String,
    format: String,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
}

impl Details {
    /// Describes a model, or the adapter of `parent`.
    pub(crate) fn new(model: &ModelDetails, parent: Option<&str>) -> Self {
        Self {
            parent_model: parent.unwrap_or_default().to_owned(),
            format: model.format.clone(),
            family: model.architecture.clone(),
            families: vec![model.architecture.clone()],
            parameter_size: rounded(model.num_parameters),
            quantization_level: model.weight_type.clone(),
        }
    }
}

/// The answer to `POST /api/show`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaShownModel")]
pub(crate) struct ShownModel {
    pub(crate) template: String,
    pub(crate) details: Details,
    /// In the names of GGUF's metadata.
    pub(crate) model_info: Map<String, Value>,
    pub(crate) capabilities: Vec<&'static str>,
    pub(crate) modified_at: String,
}

/// Returns a time as Ollama writes it; 1970 where it is not known.
pub(crate) fn timestamp(time: Option<SystemTime>) -> String {
    let time = time.unwrap_or(SystemTime::UNIX_EPOCH);
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// Returns a number of weights as people write it.
fn rounded(num_parameters: u64) -> String {
    // Far below 2^52, so nothing is lost that is shown.
    let count = num_parameters as f64;
    match num_parameters {
        1_000_000_000.. => format!("{:.1}B", count / 1e9),
        1_000_000.. => format!("{:.2}M", count / 1e6),
        1_000.. => format!("{:.2}K", count / 1e3),
        _ => num_parameters.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn numbers_of_weights_are_rounded() {
        let sizes = [(134_515_008, "134.52M"), (7_241_732_096, "7.2B"), (999, "999"), (0, "0")];
        for (count, expected) in sizes {
            assert_eq!(rounded(count), expected);
        }
    }

    #[test]
    fn times_are_written_as_rfc_3339_says() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        assert_eq!(timestamp(Some(time)), "2023-11-14T22:13:20.25Z");
        assert_eq!(timestamp(None), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn the_table_is_sorted_and_free_of_duplicates() {
        assert!(SHOW_FIELDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
