//! What the block pool holds and what may be asked of it, in numbers.

/// Numbers of blocks by state, and of the tokens in active ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Blocks without content.
    pub num_free: u32,
    /// Blocks held by sequences.
    pub num_active: u32,
    /// Evictable blocks with content.
    pub num_cached: u32,
    /// Blocks held by more than one sequence.
    pub num_shared: u32,
    /// Blocks that are not free and have their window part.
    pub num_window_parts: u32,
    /// Those of them whose window part is held.
    pub num_held_window_parts: u32,
    /// Tokens whose KV lies in active blocks, each counted once.
    pub num_live_tokens: u64,
    /// The same tokens counted once for every reference to their block.
    pub num_referenced_tokens: u64,
}

/// Memory by use, in whole blocks, what is in use rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolMemory {
    /// Neither held nor cached.
    pub num_free: u32,
    /// What sequences hold.
    pub num_active: u32,
    /// Evictable content, window parts that no sequence sees included.
    pub num_cached: u32,
}

/// Memory that a sequence needs beside what is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Cached blocks that turn active, and new blocks.
    pub num_blocks: u64,
    /// Window parts that turn held, those of new blocks included. A sequence that grows step by
    /// step holds fewer of them than blocks.
    pub num_window_parts: u64,
    /// Whole blocks that must stay available to others.
    pub num_withheld_blocks: u64,
}
