//! The map of the KV memory at one moment, for people who want to see it.

use crate::stats::EngineStats;
use mini_infer_core::{BlockId, SequenceId};

/// All sequences of an engine and their blocks at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSnapshot {
    /// The engine in numbers.
    pub stats: EngineStats,
    /// Tokens per block.
    pub block_size: u32,
    /// The blocks that more than one sequence holds, by id.
    pub shared_blocks: Vec<SharedBlock>,
    /// Every sequence, the running ones first, each kind in the order in which it gets memory.
    pub sequences: Vec<SequenceSnapshot>,
}

/// A block that several sequences hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBlock {
    /// The block.
    pub block: BlockId,
    /// Sequences that hold it.
    pub ref_count: u32,
    /// Tokens whose KV it holds.
    pub num_tokens: u32,
}

/// One sequence at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceSnapshot {
    /// The sequence; the index of a beam is its place among the beams of its request.
    pub id: SequenceId,
    /// Whether it takes part in steps.
    pub state: SequenceState,
    /// Tokens of prompt and output.
    pub num_known_tokens: u32,
    /// Tokens whose KV lies in the blocks.
    pub num_computed_tokens: u32,
    /// Prompt tokens that were not computed at first admission; `None` before it.
    pub num_hit_tokens: Option<u32>,
    /// The blocks in order.
    pub block_table: Vec<BlockId>,
}

/// Whether a sequence takes part in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceState {
    /// It holds blocks.
    Running,
    /// It waits to be admitted, for the first time or again.
    Waiting,
}
