//! `POST /v1/embeddings` on the wire.

use super::completions::schema_of_prompts;
use super::described::described;
use super::error::ApiError;
use super::field_rules;
use crate::validation::MAX_INPUTS;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Asks for the embeddings of texts. `input` has four forms and is read by `validation`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, description = "Asks for the embeddings of texts.")]
pub(crate) struct EmbeddingRequest {
    /// The model, or an adapter of it; absent, the served model.
    pub(crate) model: Option<String>,
    /// A text, texts, the tokens of an input, or of inputs.
    #[schemars(with = "InputField")]
    pub(crate) input: Option<Value>,
    /// How a vector is written; `float` by default.
    pub(crate) encoding_format: Option<EncodingFormat>,
    /// Keeps so many dimensions of each vector; all by default.
    #[schemars(range(min = 1))]
    dimensions: Option<u32>,
    #[serde(flatten)]
    #[schemars(schema_with = "extra_schema")]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// Describes the fields that are judged out of `extra`.
fn extra_schema(_: &mut SchemaGenerator) -> Schema {
    field_rules::schema(field_rules::EMBEDDINGS)
}

described! {
    /// A text, texts, the tokens of an input, or of inputs.
    InputField: schema_of_prompts(MAX_INPUTS);
}

/// How a vector is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// Base64 of its little-endian `f32`s.
    Base64,
}

impl EmbeddingRequest {
    /// Returns how many dimensions of the model's `hidden_size` are wanted.
    ///
    /// # Errors
    /// Refuses none, and more than there are.
    pub(crate) fn num_dimensions(&self, hidden_size: usize) -> Result<usize, ApiError> {
        let Some(asked) = self.dimensions else { return Ok(hidden_size) };
        let dimensions = usize::try_from(asked).ok().filter(|num| (1..=hidden_size).contains(num));
        dimensions.ok_or_else(|| {
            let message = format!("must be between 1 and {hidden_size} here, got {asked}");
            ApiError::invalid("dimensions", message)
        })
    }
}

/// A response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EmbeddingResponse {
    object: &'static str,
    data: Vec<EmbeddingObject>,
    model: String,
    usage: EmbeddingUsage,
}

/// The embedding of one input.
#[derive(Debug, Serialize, JsonSchema)]
struct EmbeddingObject {
    object: &'static str,
    index: usize,
    embedding: WireVector,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum WireVector {
    Numbers(Vec<f32>),
    Base64(String),
}

/// Token counts: embeddings have no output.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct EmbeddingUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl EmbeddingResponse {
    /// Returns the response with the vectors of all inputs, in their order.
    pub(crate) fn new(
        model: String,
        vectors: Vec<Vec<f32>>,
        format: EncodingFormat,
        num_prompt_tokens: u64,
    ) -> Self {
        let data = vectors.into_iter().enumerate().map(|(index, vector)| EmbeddingObject {
            object: "embedding",
            index,
            embedding: WireVector::new(vector, format),
        });
        Self {
            object: "list",
            data: data.collect(),
            model,
            usage: EmbeddingUsage {
                prompt_tokens: num_prompt_tokens,
                total_tokens: num_prompt_tokens,
            },
        }
    }
}

impl WireVector {
    fn new(vector: Vec<f32>, format: EncodingFormat) -> Self {
        match format {
            EncodingFormat::Float => Self::Numbers(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn vectors_are_written_in_both_formats() {
        let written = |format| serde_json::to_value(WireVector::new(vec![1.0, -0.25], format));
        assert_eq!(written(EncodingFormat::Float).unwrap(), json!([1.0, -0.25]));
        // 00 00 80 3f 00 00 80 be
        assert_eq!(written(EncodingFormat::Base64).unwrap(), json!("AACAPwAAgL4="));
    }

    #[test]
    fn dimensions_are_among_those_of_the_model() {
        let read = |dimensions: Value| {
            let body: EmbeddingRequest =
                serde_json::from_value(json!({"dimensions": dimensions})).unwrap();
            body.num_dimensions(576).ok()
        };
        assert_eq!(read(json!(null)), Some(576));
        assert_eq!(read(json!(1)), Some(1));
        assert_eq!(read(json!(576)), Some(576));
        assert_eq!((read(json!(0)), read(json!(577))), (None, None));
    }
}
