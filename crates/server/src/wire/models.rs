//! `GET /v1/models` on the wire.

use schemars::JsonSchema;
use serde::Serialize;

/// The list of served models.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelList {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<ModelCard>,
}

/// One served model.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelCard {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
    /// Longest prompt and output together, in tokens (vLLM's name for it).
    pub(crate) max_model_len: u32,
    /// The model that an adapter changes (vLLM's name for it).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
}
