//! `GET /v1/kv` on the wire.

use crate::ratio::Ratio;
use crate::tiers::TierReport;
use schemars::JsonSchema;
use serde::Serialize;

/// The KV memory at one moment, between two steps.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KvMap {
    pub(crate) object: &'static str,
    /// Tokens per block.
    pub(crate) block_size: u32,
    /// Bytes of a whole block, where the server knows them.
    pub(crate) block_bytes: Option<u64>,
    /// Bytes of the pool when it is full.
    pub(crate) capacity_bytes: Option<u64>,
    pub(crate) blocks: BlockCounts,
    /// Slots in active blocks.
    pub(crate) allocated_slots: u64,
    /// Tokens in active blocks, each counted once.
    pub(crate) live_tokens: u64,
    /// Slots saved by sharing.
    pub(crate) shared_tokens: u64,
    pub(crate) waste: Waste,
    pub(crate) sequences: Vec<KvSequence>,
    /// Active blocks that more than one sequence holds, by id.
    pub(crate) shared_blocks: Vec<SharedBlock>,
    pub(crate) prefix_cache: PrefixCache,
    pub(crate) forks: u64,
    pub(crate) preemptions: u64,
    pub(crate) tiers: Vec<TierReport>,
}

/// Blocks by state; the states sum to the total.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BlockCounts {
    pub(crate) total: u32,
    pub(crate) free: u32,
    pub(crate) active: u32,
    pub(crate) cached: u32,
    /// Active blocks that more than one sequence holds.
    pub(crate) shared: u32,
    /// Blocks whose part of the sliding-window layers is there.
    pub(crate) window_parts: u32,
}

/// Allocated slots that hold no token, by cause.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Waste {
    pub(crate) reserved: WastedSlots,
    pub(crate) internal: WastedSlots,
    pub(crate) external: WastedSlots,
    /// All causes together.
    pub(crate) total: WastedSlots,
}

/// Slots that hold no token.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WastedSlots {
    pub(crate) slots: u64,
    /// Part of the allocated slots, `0..=1`.
    pub(crate) share: f64,
}

impl WastedSlots {
    /// Returns `ratio.part` slots of `ratio.whole` allocated ones.
    pub(crate) fn new(ratio: Ratio) -> Self {
        Self { slots: ratio.part, share: ratio.value() }
    }
}

/// One sequence and its blocks.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KvSequence {
    pub(crate) id: String,
    /// `running` or `waiting`.
    pub(crate) state: &'static str,
    /// Tokens of the prompt and of the output so far.
    pub(crate) known_tokens: u32,
    /// Tokens whose KV exists.
    pub(crate) computed_tokens: u32,
    /// Prompt tokens that came from the prefix cache; `null` before the first admission.
    pub(crate) hit_tokens: Option<u32>,
    pub(crate) block_table: Vec<u32>,
}

/// A block that more than one sequence holds.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SharedBlock {
    pub(crate) block: u32,
    pub(crate) ref_count: u32,
    /// Tokens in it.
    pub(crate) tokens: u32,
}

/// Totals of the prefix cache since the start.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PrefixCache {
    pub(crate) queried_tokens: u64,
    pub(crate) hit_tokens: u64,
    /// Part of the queried tokens that was found, `0..=1`.
    pub(crate) hit_rate: f64,
    /// Tokens that a tier gave back instead of being computed.
    pub(crate) restored_tokens: u64,
    pub(crate) copied_blocks: u64,
    pub(crate) evicted_blocks: u64,
}
