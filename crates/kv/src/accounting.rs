//! What the KV memory is used for, in numbers.
//!
//! All counts are taken between steps and cost O(1) to read. Where layers have a window, block ids
//! outnumber the blocks that the memory suffices for, and counts by state are memory in whole blocks,
//! rounded up for what is in use. The words for waste follow the
//! PagedAttention paper (Kwon et al., SOSP 2023, section 3.1), so that allocators of other kinds
//! can be compared with the paged pool.

use crate::block_pool::BlockState;

/// Use of the KV memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStats {
    /// Whole blocks that the memory suffices for:
    /// `num_free_blocks + num_active_blocks + num_cached_blocks`.
    pub num_blocks: u32,
    /// Blocks without content.
    pub num_free_blocks: u32,
    /// Blocks held by sequences.
    pub num_active_blocks: u32,
    /// Blocks held by none whose content a later request may hit.
    pub num_cached_blocks: u32,
    /// Slots in active blocks.
    pub num_allocated_slots: u64,
    /// Tokens whose KV lies in active blocks, each counted once.
    pub num_live_tokens: u64,
    /// Slots saved by sharing: live tokens counted once for every sequence beyond the first.
    pub num_shared_tokens: u64,
    /// Blocks held by more than one sequence.
    pub num_shared_blocks: u32,
    /// Blocks whose sliding-window part is there; 0 where no layer has a window.
    pub num_window_parts: u32,
    /// Cached blocks that lost their content to others, since the start.
    pub num_evicted_blocks: u64,
    /// Blocks copied so that they could be written to, since the start.
    pub num_copied_blocks: u64,
    /// Allocated slots that hold no token.
    pub waste: KvWaste,
}

/// One block at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Whether the block holds content, and for whom.
    pub state: BlockState,
    /// Sequences that hold the block.
    pub ref_count: u32,
    /// Slots that hold KV.
    pub num_tokens: u32,
}

/// Slots of KV memory that hold no token, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvWaste {
    /// Slots set aside for tokens a sequence may still generate; none in a paged pool.
    pub reserved_slots: u64,
    /// Allocated slots behind the last token of a sequence: less than a block each.
    pub internal_slots: u64,
    /// Slots too scattered to be allocated; none in a paged pool.
    pub external_slots: u64,
}
