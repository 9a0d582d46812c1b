//! `GET /v1/models` in Anthropic's form.

use schemars::JsonSchema;
use serde::Serialize;

/// The served models, all of them at once: `limit` and the like cut no list of so few.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnthropicModelList {
    pub(crate) data: Vec<AnthropicModel>,
    /// Always false.
    pub(crate) has_more: bool,
    pub(crate) first_id: Option<String>,
    pub(crate) last_id: Option<String>,
}

impl AnthropicModelList {
    /// Makes the list of these models.
    pub(crate) fn new(data: Vec<AnthropicModel>) -> Self {
        let id = |model: &AnthropicModel| model.id.clone();
        let (first_id, last_id) = (data.first().map(id), data.last().map(id));
        Self { data, has_more: false, first_id, last_id }
    }
}

/// One served model.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnthropicModel {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "model"))]
    pub(crate) tag: &'static str,
    pub(crate) id: String,
    pub(crate) display_name: String,
    /// In the form of RFC 3339.
    pub(crate) created_at: String,
    pub(crate) lifecycle: &'static str,
    /// Longest prompt and output together, in tokens.
    pub(crate) max_input_tokens: u32,
    /// The same: an output may fill what the prompt leaves.
    pub(crate) max_tokens: u32,
}
