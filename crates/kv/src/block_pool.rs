//! The states, reference counts and memory of all KV blocks.
//!
//! A block is *free* (no content), *active* (ref count > 0) or *cached* (ref count 0, content
//! kept, evictable), and `active + cached + free = total` at all times. Allocation takes free
//! blocks first, most recently freed first so that resident memory stays small, then evicts
//! whatever was released longest ago. Whoever releases a sequence's blocks tail first therefore has
//! tails evicted before heads.
//!
//! Where some layers have a sliding window, a block has two parts, and the window part can go while
//! the block stays: it is *held* by the sequences that still see it, and evictable when none does.
//! Memory is then counted in weights: what blocks that are not free occupy never passes the
//! capacity, and neither does what may be committed, free blocks included. Ids outnumber the blocks
//! that fit whole. Without windows a block weighs 1 and all of this costs nothing.
//!
//! Every operation but [`BlockPool::discard_free`] is O(1), amortised, and allocates no memory. The
//! pool knows how many tokens of each block hold KV but not which: that is the prefix tree.

use crate::kv_config::WindowConfig;
use crate::pool_counts::{PoolCounts, PoolMemory, Room};
use crate::reclaimed::Reclaimed;
use crate::release_order::{Evictable, ReleaseOrder};
use mini_infer_core::{BlockId, KvPart};

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

#[derive(Clone, Copy, Debug)]
struct Block {
    ref_count: u32,
    /// Sequences that see the window part.
    window_ref_count: u32,
    num_tokens: u32,
    state: BlockState,
    has_window_part: bool,
    /// Whether memory may be committed: written to since it was last given back.
    is_committed: bool,
    is_window_committed: bool,
}

impl Block {
    const FREE: Self = Self {
        ref_count: 0,
        window_ref_count: 0,
        num_tokens: 0,
        state: BlockState::Free,
        has_window_part: false,
        is_committed: false,
        is_window_committed: false,
    };
}

/// What the parts of a block weigh.
#[derive(Clone, Copy, Debug)]
struct Weights {
    full: u64,
    /// 0 where no layer has a window.
    window: u64,
}

impl Weights {
    fn whole(self) -> u64 {
        self.full + self.window
    }
}

/// All blocks of the KV pool.
#[derive(Clone, Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    weights: Weights,
    /// Most weight at once.
    capacity: u64,
    /// Weight of all memory that may be committed.
    committed: u64,
    /// Free blocks whose memory may be committed, freed last at the end.
    free_committed: Vec<BlockId>,
    /// Free blocks without memory, lowest id at the end.
    free_untouched: Vec<BlockId>,
    evictable: ReleaseOrder,
    counts: PoolCounts,
}

impl BlockPool {
    /// Creates a pool of free blocks whose memory suffices for `num_blocks` whole ones.
    ///
    /// # Panics
    /// When a number of `window` is 0 or the ids do not fit into 31 bits.
    #[must_use]
    pub fn new(num_blocks: u32, window: Option<WindowConfig>) -> Self {
        let weights = window.map_or(Weights { full: 1, window: 0 }, |window| {
            let WindowConfig { num_tokens, full_weight, window_weight } = window;
            assert!(num_tokens > 0 && full_weight > 0 && window_weight > 0, "{window:?}");
            Weights { full: full_weight.into(), window: window_weight.into() }
        });
        let capacity = u64::from(num_blocks) * weights.whole();
        let num_ids = u32::try_from(capacity / weights.full).expect("ids have 31 bits");
        Self {
            blocks: vec![Block::FREE; num_ids as usize],
            weights,
            capacity,
            committed: 0,
            free_committed: Vec::with_capacity(num_ids as usize),
            free_untouched: (0..num_ids).rev().map(BlockId).collect(),
            evictable: match window {
                None => ReleaseOrder::of_blocks(num_ids),
                Some(_) => ReleaseOrder::of_blocks_and_window_parts(num_ids),
            },
            counts: PoolCounts { num_free: num_ids, ..PoolCounts::default() },
        }
    }

    /// Returns what the memory is used for: without windows, the blocks by state.
    #[must_use]
    pub fn memory(&self) -> PoolMemory {
        let whole = self.weights.whole();
        let num_blocks = self.capacity / whole;
        let num_active = self.held_weight().div_ceil(whole);
        let evictable = self.used_weight() - self.held_weight();
        let num_cached = evictable.div_ceil(whole).min(num_blocks - num_active);
        PoolMemory {
            num_free: count_blocks(num_blocks - num_active - num_cached),
            num_active: count_blocks(num_active),
            num_cached: count_blocks(num_cached),
        }
    }

    /// Returns how many blocks can be allocated.
    #[must_use]
    pub fn num_available(&self) -> u32 {
        let free = self.capacity - self.held_weight();
        count_blocks(free / self.weights.whole())
    }

    /// Tells whether there is this much memory, that of evictable content included.
    #[must_use]
    pub fn has_room(&self, room: Room) -> bool {
        let Weights { full, window } = self.weights;
        let needed = room.num_blocks * full
            + room.num_window_parts * window
            + room.num_withheld_blocks * self.weights.whole();
        needed <= self.capacity - self.held_weight()
    }

    /// Hands out a block with ref count 1 whose window part it holds, evicting what was released
    /// longest ago until there is room; `None`, having changed nothing, when there can be none.
    pub fn allocate(&mut self, mut reclaimed: impl FnMut(Reclaimed)) -> Option<BlockId> {
        let Weights { full, window } = self.weights;
        if self.held_weight() + self.weights.whole() > self.capacity {
            return None;
        }
        while self.used_weight() + self.weights.whole() > self.capacity {
            let Some(_) = self.evict_next(&mut reclaimed) else {
                unreachable!("what is used and not held is evictable")
            };
        }
        let free = self.free_committed.pop().or_else(|| self.free_untouched.pop());
        let Some(block) = free else {
            unreachable!("where there is room for a whole block there is an id for it")
        };
        let entry = &mut self.blocks[block.index()];
        if !entry.is_committed {
            self.committed += full;
        }
        if window > 0 && !entry.is_window_committed {
            self.committed += window;
        }
        *entry = Block {
            ref_count: 1,
            window_ref_count: u32::from(window > 0),
            state: BlockState::Active,
            has_window_part: window > 0,
            is_committed: true,
            is_window_committed: window > 0,
            ..Block::FREE
        };
        self.counts.num_free -= 1;
        self.counts.num_active += 1;
        self.counts.num_window_parts += u32::from(window > 0);
        self.counts.num_held_window_parts += u32::from(window > 0);
        while self.committed > self.capacity {
            let Some(_) = self.discard_next(&mut reclaimed) else {
                unreachable!("used blocks alone stay within the capacity")
            };
        }
        Some(block)
    }

    /// Adds a reference to an active or cached block, not to its window part.
    ///
    /// # Panics
    /// When the block is free: its content is gone.
    pub fn touch(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        match entry.state {
            BlockState::Active => {}
            BlockState::Cached => {
                self.evictable.remove(Evictable::Block(block));
                entry.state = BlockState::Active;
                self.counts.num_cached -= 1;
                self.counts.num_active += 1;
                self.counts.num_live_tokens += u64::from(entry.num_tokens);
                let part = Evictable::WindowPart(block);
                if entry.has_window_part && !self.evictable.contains(part) {
                    self.evictable.push(part);
                }
            }
            BlockState::Free => panic!("block {} is free and cannot be shared", block.0),
        }
        entry.ref_count += 1;
        self.counts.num_shared += u32::from(entry.ref_count == 2);
        self.counts.num_referenced_tokens += u64::from(entry.num_tokens);
    }

    /// Holds the window part of an active block for one more sequence.
    ///
    /// # Panics
    /// When the block has none.
    pub fn hold_window_part(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        assert!(entry.has_window_part, "the window part of block {} is gone", block.0);
        entry.window_ref_count += 1;
        if entry.window_ref_count == 1 {
            self.evictable.remove(Evictable::WindowPart(block));
            self.counts.num_held_window_parts += 1;
        }
    }

    /// Lets go of a window part that a sequence no longer sees; with its last holder it turns
    /// evictable.
    ///
    /// # Panics
    /// When nobody holds it.
    pub fn release_window_part(&mut self, block: BlockId) {
        if self.unhold_window_part(block) {
            self.evictable.push(Evictable::WindowPart(block));
        }
    }

    /// Gives an active block its window part again, held by one sequence. Makes room without using
    /// free blocks' memory; `false` when there can be none.
    ///
    /// # Panics
    /// When the block has it.
    pub fn regain_window_part(
        &mut self,
        block: BlockId,
        mut reclaimed: impl FnMut(Reclaimed),
    ) -> bool {
        while self.committed + self.weights.window > self.capacity {
            let discarded = self.discard_next(&mut reclaimed);
            if discarded.or_else(|| self.evict_next(&mut reclaimed)).is_none() {
                return false;
            }
        }
        let entry = &mut self.blocks[block.index()];
        assert!(!entry.has_window_part, "block {} has its window part", block.0);
        entry.has_window_part = true;
        entry.is_window_committed = true;
        entry.window_ref_count = 1;
        self.committed += self.weights.window;
        self.counts.num_window_parts += 1;
        self.counts.num_held_window_parts += 1;
        true
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
                self.evictable.push(Evictable::Block(block));
            }
            Retention::Drop => self.make_free(block),
        }
    }

    /// Drops one reference to a block and to its window part. With the last reference the window
    /// part stays with the block instead of turning evictable before it.
    ///
    /// # Panics
    /// When nobody holds the block and its window part.
    pub fn release_with_window_part(&mut self, block: BlockId, retention: Retention) {
        let is_unheld = self.unhold_window_part(block);
        if is_unheld && self.blocks[block.index()].ref_count > 1 {
            self.evictable.push(Evictable::WindowPart(block));
        }
        self.release(block, retention);
    }

    /// Frees a cached block whose content is held elsewhere too.
    ///
    /// # Panics
    /// When the block is not cached.
    pub fn drop_cached(&mut self, block: BlockId) {
        self.evictable.remove(Evictable::Block(block));
        self.counts.num_cached -= 1;
        self.make_free(block);
    }

    /// Takes back what was released longest ago and returns the block it was in; `None` when nothing
    /// is evictable.
    pub fn evict_next(&mut self, mut reclaimed: impl FnMut(Reclaimed)) -> Option<BlockId> {
        let evicted = self.evictable.pop()?;
        match evicted {
            Evictable::Block(block) => {
                let has_window_part = self.blocks[block.index()].has_window_part;
                let is_whole = has_window_part || self.weights.window == 0;
                self.counts.num_cached -= 1;
                self.make_free(block);
                reclaimed(Reclaimed::Block { block, is_whole });
            }
            Evictable::WindowPart(block) => {
                let entry = &mut self.blocks[block.index()];
                entry.has_window_part = false;
                entry.is_window_committed = false;
                self.counts.num_window_parts -= 1;
                self.committed -= self.weights.window;
                reclaimed(Reclaimed::WindowPart(block));
            }
        }
        let (Evictable::Block(block) | Evictable::WindowPart(block)) = evicted;
        Some(block)
    }

    /// Tells `reclaimed` all memory of free blocks that may be committed; costs their number.
    pub fn discard_free(&mut self, mut reclaimed: impl FnMut(Reclaimed)) {
        while self.discard_next(&mut reclaimed).is_some() {}
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

    /// Tells whether the window part of a block that is not free is there.
    #[must_use]
    pub fn has_window_part(&self, block: BlockId) -> bool {
        self.blocks[block.index()].has_window_part
    }

    /// Returns how many sequences hold the window part of a block.
    #[must_use]
    pub fn window_ref_count(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].window_ref_count
    }

    /// Returns the numbers of blocks by state and of tokens in them.
    #[must_use]
    pub fn counts(&self) -> PoolCounts {
        self.counts
    }

    /// Returns the number of block ids.
    #[must_use]
    pub fn num_ids(&self) -> u32 {
        self.counts.num_free + self.counts.num_active + self.counts.num_cached
    }

    /// Returns the weight of all memory that may be committed, in shares of the capacity.
    #[must_use]
    pub fn committed_share(&self) -> (u64, u64) {
        (self.committed, self.capacity)
    }

    /// Weight of what cannot be evicted.
    fn held_weight(&self) -> u64 {
        u64::from(self.counts.num_active) * self.weights.full
            + u64::from(self.counts.num_held_window_parts) * self.weights.window
    }

    /// Weight of the blocks that are not free.
    fn used_weight(&self) -> u64 {
        u64::from(self.counts.num_active + self.counts.num_cached) * self.weights.full
            + u64::from(self.counts.num_window_parts) * self.weights.window
    }

    /// Drops a reference to a window part and tells whether it was the last.
    fn unhold_window_part(&mut self, block: BlockId) -> bool {
        let entry = &mut self.blocks[block.index()];
        assert!(entry.window_ref_count > 0, "the window part of block {} is not held", block.0);
        entry.window_ref_count -= 1;
        let is_unheld = entry.window_ref_count == 0;
        self.counts.num_held_window_parts -= u32::from(is_unheld);
        is_unheld
    }

    /// Frees a block that is neither held nor listed.
    fn make_free(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        if entry.has_window_part {
            self.counts.num_window_parts -= 1;
            let part = Evictable::WindowPart(block);
            if self.evictable.contains(part) {
                self.evictable.remove(part);
            }
        }
        let Block { is_committed, is_window_committed, .. } = *entry;
        *entry = Block { is_committed, is_window_committed, ..Block::FREE };
        self.counts.num_free += 1;
        self.free_committed.push(block);
    }

    /// Takes the memory of the free block that was freed last and returns that block.
    fn discard_next(&mut self, mut reclaimed: impl FnMut(Reclaimed)) -> Option<BlockId> {
        let block = self.free_committed.pop()?;
        let entry = &mut self.blocks[block.index()];
        let Block { is_committed, is_window_committed, .. } = *entry;
        *entry = Block::FREE;
        debug_assert!(is_committed, "block {} was never handed out", block.0);
        self.committed -= self.weights.full;
        reclaimed(Reclaimed::Memory(block, KvPart::FullAttention));
        if is_window_committed {
            self.committed -= self.weights.window;
            reclaimed(Reclaimed::Memory(block, KvPart::SlidingWindow));
        }
        self.free_untouched.push(block);
        Some(block)
    }

    /// Checks the invariants in the module header; costs the size of the pool.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate.
    pub fn check_invariants(&self) {
        let mut counts = PoolCounts::default();
        let mut committed = 0;
        for (i, block) in self.blocks.iter().enumerate() {
            let tokens = u64::from(block.num_tokens);
            let id = BlockId(u32::try_from(i).expect("ids have 31 bits"));
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
            committed += if block.is_committed { self.weights.full } else { 0 };
            committed += if block.is_window_committed { self.weights.window } else { 0 };
            counts.num_window_parts += u32::from(block.has_window_part);
            counts.num_held_window_parts += u32::from(block.window_ref_count > 0);
            let held = block.ref_count > 0;
            assert_eq!(held, block.state == BlockState::Active, "state of block {i}");
            assert!(block.window_ref_count <= block.ref_count, "references to block {i}");
            let is_free = block.state == BlockState::Free;
            let empty = block.num_tokens == 0 && !block.has_window_part;
            assert!(empty || !is_free, "free block {i} has content");
            assert!(is_free || block.is_committed, "used block {i} has no memory");
            assert!(is_free || block.is_window_committed == block.has_window_part, "block {i}");
            let is_cached = block.state == BlockState::Cached;
            assert_eq!(self.evictable.contains(Evictable::Block(id)), is_cached, "block {i}");
            if self.weights.window > 0 && self.evictable.contains(Evictable::WindowPart(id)) {
                assert!(block.has_window_part && block.window_ref_count == 0, "part {i}");
            } else if block.has_window_part && !is_cached {
                assert!(block.window_ref_count > 0, "part {i} can be neither seen nor evicted");
            }
        }
        assert_eq!((counts, committed), (self.counts, self.committed));
        assert_eq!(self.num_ids() as usize, self.blocks.len(), "active + cached + free = total");
        assert!(self.used_weight() <= self.committed && self.committed <= self.capacity);
        assert_eq!(self.free_committed.len() + self.free_untouched.len(), counts.num_free as usize);
        let is_free = |block: &BlockId| self.state(*block) == BlockState::Free;
        assert!(self.free_committed.iter().chain(&self.free_untouched).all(is_free));
        let listed = self.evictable.iter().filter(|item| matches!(item, Evictable::Block(_)));
        assert_eq!(listed.count(), counts.num_cached as usize);
    }
}

/// Converts a number of blocks to the width of their ids.
fn count_blocks(num_blocks: u64) -> u32 {
    u32::try_from(num_blocks).expect("no more than there are ids")
}

#[cfg(test)]
mod tests;
