//! What the server tells about the KV memory beyond what the engine knows.
//!
//! The engine counts blocks and knows neither their bytes nor what a tier does with them. Whoever
//! builds the server does, and hands it over as numbers: the server depends on no tier.

use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tells what the tiers hold at this moment, the nearest one first; called on any thread, for
/// each look at `/metrics` and `/v1/kv`, so it must be quick and wait for no device.
pub type TierSource = Arc<dyn Fn() -> Vec<TierReport> + Send + Sync>;

/// The KV memory besides its blocks.
#[derive(Clone, Default)]
pub struct KvDetails {
    /// Bytes of one whole block, all layers together.
    pub block_bytes: Option<u64>,
    /// The tiers that keep evicted blocks, if there are any.
    pub tiers: Option<TierSource>,
}

impl KvDetails {
    /// Returns what the tiers hold; nothing where there are none.
    pub(crate) fn tier_reports(&self) -> Vec<TierReport> {
        self.tiers.as_ref().map(|source| source()).unwrap_or_default()
    }
}

/// What one tier holds, and did since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TierReport {
    /// Short name, such as `host` or `files`.
    pub name: &'static str,
    /// Bytes that it may take.
    pub capacity_bytes: u64,
    /// Bytes that its blocks take.
    pub held_bytes: u64,
    /// Blocks that it holds.
    #[serde(rename = "held_blocks")]
    pub num_held_blocks: u64,
    /// Blocks that wait to be written.
    #[serde(rename = "queued_blocks")]
    pub num_queued_blocks: u64,
    /// Blocks saved.
    #[serde(rename = "saved_blocks")]
    pub num_saved_blocks: u64,
    /// Blocks restored.
    #[serde(rename = "restored_blocks")]
    pub num_restored_blocks: u64,
    /// Blocks evicted for others.
    #[serde(rename = "evicted_blocks")]
    pub num_evicted_blocks: u64,
    /// Blocks offered and not kept, by cause.
    #[serde(rename = "dropped_blocks", serialize_with = "as_object")]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub dropped: Vec<(&'static str, u64)>,
    /// Blocks that it had and would not restore, by cause.
    #[serde(rename = "refused_blocks", serialize_with = "as_object")]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub refused: Vec<(&'static str, u64)>,
    /// Failures of the device, by operation.
    #[serde(serialize_with = "as_object")]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub errors: Vec<(&'static str, u64)>,
    /// Whether it takes no blocks for a while because of failures.
    pub is_paused: bool,
}

fn as_object<S: serde::Serializer>(
    counts: &[(&'static str, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts.iter().copied())
}
