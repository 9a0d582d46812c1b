//! Loading and unloading adapters on the wire.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Asks for an adapter to be loaded.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct LoadAdapterRequest {
    /// Name that requests ask for as their model.
    pub(crate) lora_name: String,
    /// Folder of the adapter, inside the one that the server allows.
    pub(crate) lora_path: String,
    #[serde(flatten)]
    #[schemars(skip)]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// Asks for an adapter to be forgotten.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct UnloadAdapterRequest {
    /// Its name.
    pub(crate) lora_name: String,
    #[serde(flatten)]
    #[schemars(skip)]
    pub(crate) extra: BTreeMap<String, Value>,
}
