//! The states and reference counts of all KV blocks.
//!
//! A block is *free* (no content), *active* (ref count > 0) or *cached* (ref count 0, content
//! kept, evictable), and `active + cached + free = total` at all times. Allocation takes free
//! blocks first, most recently freed first so that resident memory stays small, then evicts the
//! cached block that was released longest ago. Whoever releases a sequence's blocks tail first
//! therefore has tails evicted before heads.
//!
//! `allocate`, `touch` and `release` are O(1) and allocate no memory. The pool knows how many
//! tokens of each block hold KV, for the accounting, but not which: that is the prefix index.

use crate::free_list::FreeList;
use mini_infer_core::BlockId;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// No content.
    Free,
    /// Held by at least one sequence.
    Active,
    /// Held by none, content kept until the block is evicted.
    Cached,
}

/// What becomes of the content of a block that nobody holds any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// The block turns cached.
    Keep,
    /// The block turns free.
    Drop,
}

/// A block that [`BlockPool::allocate`] handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The block, active with ref count 1.
    pub block: BlockId,
    /// What the block was before; when cached, its content was evicted.
    pub previous: BlockState,
}

/// Numbers of blocks by state, and of the tokens in active ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Blocks without content.
    pub num_free: u32,
    /// Blocks held by sequences.
    pub num_active: u32,
    /// Evictable blocks with content.
    pub num_cached: u32,
    /// Tokens whose KV lies in active blocks, each counted once.
    pub num_live_tokens: u64,
    /// The same tokens counted once for every reference to their block.
    pub num_referenced_tokens: u64,
    /// Blocks held by more than one sequence.
    pub num_shared: u32,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    state: BlockState,
    ref_count: u32,
    num_tokens: u32,
    /// Whether the memory may be committed: handed out since it was last given back.
    is_committed: bool,
}

/// All blocks of the KV pool.
#[derive(Clone, Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    reusable: FreeList,
    counts: PoolCounts,
}

impl BlockPool {
    /// Creates a pool of `num_blocks` free blocks.
    #[must_use]
    pub fn new(num_blocks: u32) -> Self {
        let block =
            Block { state: BlockState::Free, ref_count: 0, num_tokens: 0, is_committed: false };
        Self {
            blocks: vec![block; num_blocks as usize],
            reusable: FreeList::full(num_blocks),
            counts: PoolCounts { num_free: num_blocks, ..PoolCounts::default() },
        }
    }

    /// Hands out a block with ref count 1, evicting a cached one when none is free; `None` when
    /// every block is active.
    pub fn allocate(&mut self) -> Option<Allocation> {
        let block = self.reusable.pop_free().or_else(|| self.reusable.pop_cached())?;
        let entry = &mut self.blocks[block.index()];
        let previous = entry.state;
        *entry =
            Block { state: BlockState::Active, ref_count: 1, num_tokens: 0, is_committed: true };
        match previous {
            BlockState::Free => self.counts.num_free -= 1,
            BlockState::Cached => self.counts.num_cached -= 1,
            BlockState::Active => unreachable!("active blocks are not in the free list"),
        }
        self.counts.num_active += 1;
        Some(Allocation { block, previous })
    }

    /// Adds a reference to an active or cached block.
    ///
    /// # Panics
    /// When the block is free: its content is gone.
    pub fn touch(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        match entry.state {
            BlockState::Active => {}
            BlockState::Cached => {
                self.reusable.remove(block);
                entry.state = BlockState::Active;
                self.counts.num_cached -= 1;
                self.counts.num_active += 1;
                self.counts.num_live_tokens += u64::from(entry.num_tokens);
            }
            BlockState::Free => panic!("block {} is free and cannot be shared", block.0),
        }
        entry.ref_count += 1;
        self.counts.num_shared += u32::from(entry.ref_count == 2);
        self.counts.num_referenced_tokens += u64::from(entry.num_tokens);
    }

    /// Drops one reference; with the last one, the block turns cached or free as `retention` says.
    ///
    /// # Panics
    /// When nobody holds the block.
    pub fn release(&mut self, block: BlockId, retention: Retention) {
        let entry = &mut self.blocks[block.index()];
        assert!(entry.ref_count > 0, "block {} is released once too often", block.0);
        entry.ref_count -= 1;
        self.counts.num_shared -= u32::from(entry.ref_count == 1);
        self.counts.num_referenced_tokens -= u64::from(entry.num_tokens);
        if entry.ref_count > 0 {
            return;
        }
        self.counts.num_active -= 1;
        self.counts.num_live_tokens -= u64::from(entry.num_tokens);
        match retention {
            Retention::Keep => {
                entry.state = BlockState::Cached;
                self.counts.num_cached += 1;
                self.reusable.push_cached(block);
            }
            Retention::Drop => {
                entry.state = BlockState::Free;
                entry.num_tokens = 0;
                self.counts.num_free += 1;
                self.reusable.push_free(block);
            }
        }
    }

    /// Records that the first `num_tokens` slots of a privately held block hold KV.
    ///
    /// # Panics
    /// When the block is not held by exactly one sequence: shared content never changes.
    pub fn set_num_tokens(&mut self, block: BlockId, num_tokens: u32) {
        let entry = &mut self.blocks[block.index()];
        assert_eq!(entry.ref_count, 1, "block {} is written while shared or unused", block.0);
        assert!(num_tokens >= entry.num_tokens, "block {} loses tokens", block.0);
        let added = u64::from(num_tokens - entry.num_tokens);
        entry.num_tokens = num_tokens;
        self.counts.num_live_tokens += added;
        self.counts.num_referenced_tokens += added;
    }

    /// Frees the cached block that was released longest ago; its content is evicted.
    pub fn evict(&mut self) -> Option<BlockId> {
        let block = self.reusable.pop_cached()?;
        let entry = &mut self.blocks[block.index()];
        entry.state = BlockState::Free;
        entry.num_tokens = 0;
        self.counts.num_cached -= 1;
        self.counts.num_free += 1;
        self.reusable.push_free(block);
        Some(block)
    }

    /// Tells `discard` every free block that was handed out since it was last told: what may still
    /// have memory. Costs the number of free blocks.
    pub fn discard_free(&mut self, mut discard: impl FnMut(BlockId)) {
        for block in self.reusable.free() {
            if std::mem::take(&mut self.blocks[block.index()].is_committed) {
                discard(block);
            }
        }
    }

    /// Returns the state of a block.
    #[must_use]
    pub fn state(&self, block: BlockId) -> BlockState {
        self.blocks[block.index()].state
    }

    /// Returns how many sequences hold a block.
    #[must_use]
    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].ref_count
    }

    /// Returns how many slots of a block hold KV.
    #[must_use]
    pub fn num_tokens(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].num_tokens
    }

    /// Returns the numbers of blocks by state and of tokens in them.
    #[must_use]
    pub fn counts(&self) -> PoolCounts {
        self.counts
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.counts.num_free + self.counts.num_active + self.counts.num_cached
    }

    /// Checks the invariants in the module header; costs the size of the pool.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate.
    pub fn check_invariants(&self) {
        let mut counts = PoolCounts::default();
        for (i, block) in self.blocks.iter().enumerate() {
            let tokens = u64::from(block.num_tokens);
            match block.state {
                BlockState::Free => counts.num_free += 1,
                BlockState::Cached => counts.num_cached += 1,
                BlockState::Active => {
                    counts.num_active += 1;
                    counts.num_live_tokens += tokens;
                    counts.num_shared += u32::from(block.ref_count > 1);
                    counts.num_referenced_tokens += tokens * u64::from(block.ref_count);
                }
            }
            let held = block.ref_count > 0;
            assert_eq!(held, block.state == BlockState::Active, "state of block {i}");
            let empty = block.num_tokens == 0;
            assert!(empty || block.state != BlockState::Free, "free block {i} has content");
        }
        assert_eq!(counts, self.counts);
        assert_eq!(self.num_blocks() as usize, self.blocks.len(), "active + cached + free = total");
        let free: Vec<BlockId> = self.reusable.free().collect();
        let cached: Vec<BlockId> = self.reusable.cached().collect();
        assert_eq!(
            (free.len(), cached.len()),
            (counts.num_free as usize, counts.num_cached as usize)
        );
        assert!(free.iter().all(|&block| self.state(block) == BlockState::Free));
        assert!(cached.iter().all(|&block| self.state(block) == BlockState::Cached));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pool: &mut BlockPool) -> BlockId {
        pool.allocate().unwrap().block
    }

    #[test]
    fn free_blocks_are_used_before_cached_ones_are_evicted() {
        let mut pool = BlockPool::new(3);
        let [a, b, c] = [take(&mut pool), take(&mut pool), take(&mut pool)];
        assert_eq!(pool.allocate(), None);
        pool.release(a, Retention::Keep);
        pool.release(b, Retention::Keep);
        pool.release(c, Retention::Drop);
        pool.check_invariants();
        assert_eq!(
            pool.allocate(),
            Some(Allocation { block: c, previous: BlockState::Free }),
            "the free block first"
        );
        assert_eq!(
            pool.allocate(),
            Some(Allocation { block: a, previous: BlockState::Cached }),
            "then the cached block released first"
        );
    }

    #[test]
    fn a_touched_block_is_not_evicted_and_is_the_youngest_after_its_release() {
        let mut pool = BlockPool::new(2);
        let [a, b] = [take(&mut pool), take(&mut pool)];
        pool.release(a, Retention::Keep);
        pool.release(b, Retention::Keep);
        pool.touch(a);
        assert_eq!(take(&mut pool), b);
        pool.release(b, Retention::Keep);
        pool.release(a, Retention::Keep);
        assert_eq!(take(&mut pool), b);
        pool.check_invariants();
    }

    #[test]
    fn shared_tokens_are_counted_once_as_live_and_once_per_reference() {
        let mut pool = BlockPool::new(1);
        let block = take(&mut pool);
        pool.set_num_tokens(block, 16);
        pool.touch(block);
        let counts = pool.counts();
        assert_eq!((counts.num_live_tokens, counts.num_referenced_tokens), (16, 32));
        pool.release(block, Retention::Keep);
        pool.release(block, Retention::Keep);
        assert_eq!(pool.counts().num_live_tokens, 0);
        pool.check_invariants();
    }

    #[test]
    #[should_panic(expected = "released once too often")]
    fn a_block_that_nobody_holds_cannot_be_released() {
        let mut pool = BlockPool::new(1);
        let block = take(&mut pool);
        pool.release(block, Retention::Drop);
        pool.release(block, Retention::Drop);
    }
}
