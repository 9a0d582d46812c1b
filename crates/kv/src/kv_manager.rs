//! KV memory as a sequence sees it: match a prefix, get slots, report computed tokens, free.
//!
//! Joins the block pool and the prefix index. Invariants, checked by
//! [`KvManager::check_invariants`]: the ref count of a block is the number of block tables it
//! stands in; a cached block is always one that a lookup can find; a free block has no content; a
//! shared block is full, so nothing is ever written to it.
//!
//! Block tables only grow at their end. A prompt is never matched to its last token: that token is
//! computed again, into a private block, because its logits are wanted. No operation costs more
//! than the blocks and tokens it is about.

use crate::accounting::{KvStats, KvWaste};
use crate::block_pool::{BlockPool, BlockState, Retention};
use crate::prefix_index::{BlockHashing, PrefixIndex, PrefixTail};
use mini_infer_core::{BlockId, BlockSize, Namespace, PrefixCaching, TokenId};
use std::fmt;

/// Size and behaviour of the KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Blocks in the pool.
    pub num_blocks: u32,
    /// Whether prefixes are shared between requests.
    pub prefix_caching: PrefixCaching,
    /// How block hashes are made.
    pub block_hashing: BlockHashing,
}

/// The blocks of one sequence in order, append-only.
///
/// Holds references that only [`KvManager::free`] gives back; a table that is merely dropped leaks
/// its blocks.
#[derive(Debug)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    num_computed_tokens: u32,
    /// End of the chain of full blocks.
    tail: PrefixTail,
}

impl BlockTable {
    /// Creates a table without blocks.
    #[must_use]
    pub fn new(namespace: Namespace) -> Self {
        Self { blocks: Vec::new(), num_computed_tokens: 0, tail: PrefixTail::root(namespace) }
    }

    /// Returns the blocks in order.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Returns how many tokens of the sequence have their KV in the blocks.
    #[must_use]
    pub fn num_computed_tokens(&self) -> u32 {
        self.num_computed_tokens
    }

    /// Tells whether the full blocks of the table are the very prefix that `found` found, so that
    /// the next block to get full continues it. O(1).
    #[must_use]
    pub fn has_reached(&self, found: &PrefixMatch) -> bool {
        self.tail == found.tail
    }
}

/// The blocks that already hold the start of a prompt. Reusable, so that a lookup allocates nothing.
///
/// Valid until the manager changes.
#[derive(Debug)]
pub struct PrefixMatch {
    blocks: Vec<BlockId>,
    tail: PrefixTail,
    num_cached_blocks: u32,
}

impl PrefixMatch {
    /// Returns how many blocks matched.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        len(&self.blocks)
    }

    /// Returns how many of the matched blocks are cached: adopting the match makes them active, so
    /// they are no longer there to be allocated.
    #[must_use]
    pub fn num_cached_blocks(&self) -> u32 {
        self.num_cached_blocks
    }
}

impl Default for PrefixMatch {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            tail: PrefixTail::root(Namespace::default()),
            num_cached_blocks: 0,
        }
    }
}

/// Too few blocks are free or cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBlocks {
    /// Blocks that were asked for.
    pub needed: u32,
    /// Blocks that are free or cached.
    pub available: u32,
}

impl fmt::Display for OutOfBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KV blocks are needed and {} are available", self.needed, self.available)
    }
}

impl std::error::Error for OutOfBlocks {}

/// The KV bookkeeping of one engine.
#[derive(Debug)]
pub struct KvManager {
    block_size: BlockSize,
    pool: BlockPool,
    /// `None` when prefix caching is off.
    index: Option<PrefixIndex>,
}

impl KvManager {
    /// Creates the bookkeeping of an empty pool.
    #[must_use]
    pub fn new(config: KvConfig) -> Self {
        let KvConfig { block_size, num_blocks, prefix_caching, block_hashing } = config;
        let index = match prefix_caching {
            PrefixCaching::On => Some(PrefixIndex::new(num_blocks, block_size, block_hashing)),
            PrefixCaching::Off => None,
        };
        Self { block_size, pool: BlockPool::new(num_blocks), index }
    }

    /// Returns how many blocks an allocation can get: the free and the cached ones.
    #[must_use]
    pub fn num_available_blocks(&self) -> u32 {
        let counts = self.pool.counts();
        counts.num_free + counts.num_cached
    }

    /// Returns for how many more tokens [`Self::allocate`] can give `table` slots, those it has
    /// but does not use included.
    #[must_use]
    pub fn num_obtainable_slots(&self, table: &BlockTable) -> u32 {
        let num_blocks = len(&table.blocks) + self.num_available_blocks();
        num_blocks * self.block_size.tokens() - table.num_computed_tokens
    }

    /// Finds the longest run of full blocks that holds the KV of the start of `tokens`, the last
    /// token never included. Changes nothing; costs the tokens that matched.
    pub fn match_prefix(&self, namespace: Namespace, tokens: &[TokenId], found: &mut PrefixMatch) {
        found.blocks.clear();
        found.num_cached_blocks = 0;
        found.tail = PrefixTail::root(namespace);
        let Some(index) = &self.index else { return };
        let matchable = &tokens[..tokens.len().saturating_sub(1)];
        for full in matchable.chunks_exact(self.block_size.tokens() as usize) {
            let Some((block, tail)) = index.find(found.tail, full) else { break };
            if self.pool.state(block) == BlockState::Cached {
                found.num_cached_blocks += 1;
            }
            found.blocks.push(block);
            found.tail = tail;
        }
    }

    /// Starts a block table with the blocks of `found`, which this sequence then shares.
    #[must_use]
    pub fn adopt(&mut self, found: &PrefixMatch) -> BlockTable {
        for &block in &found.blocks {
            self.pool.touch(block);
        }
        BlockTable {
            blocks: found.blocks.clone(),
            num_computed_tokens: found.num_blocks() * self.block_size.tokens(),
            tail: found.tail,
        }
    }

    /// Extends `table` until it has slots for `num_tokens` tokens.
    ///
    /// # Errors
    /// Returns [`OutOfBlocks`], having changed nothing, when too few blocks are free or cached.
    pub fn allocate(&mut self, table: &mut BlockTable, num_tokens: u32) -> Result<(), OutOfBlocks> {
        let needed = self.block_size.blocks_for(num_tokens).saturating_sub(len(&table.blocks));
        let available = self.num_available_blocks();
        if needed > available {
            return Err(OutOfBlocks { needed, available });
        }
        for _ in 0..needed {
            let Some(allocation) = self.pool.allocate() else {
                unreachable!("as many blocks as are needed are available")
            };
            if let (BlockState::Cached, Some(index)) = (allocation.previous, &mut self.index) {
                index.forget(allocation.block);
            }
            table.blocks.push(allocation.block);
        }
        Ok(())
    }

    /// Records that the KV of all `tokens`, the sequence's from its start, is in the table's
    /// slots, and indexes the blocks that have become full.
    ///
    /// # Panics
    /// When `tokens` is shorter than before or longer than the table's slots.
    pub fn mark_computed(&mut self, table: &mut BlockTable, tokens: &[TokenId]) {
        let num_tokens = len(tokens);
        let size = self.block_size.tokens();
        let first_open = table.num_computed_tokens / size;
        assert!(num_tokens >= table.num_computed_tokens, "computed tokens never get fewer");
        for i in first_open..self.block_size.blocks_for(num_tokens) {
            let block = table.blocks[i as usize];
            let start = i * size;
            let filled = (num_tokens - start).min(size);
            self.pool.set_num_tokens(block, filled);
            if let (true, Some(index)) = (filled == size, &mut self.index) {
                let full = &tokens[start as usize..(start + size) as usize];
                table.tail = index.insert(block, table.tail, full);
            }
        }
        table.num_computed_tokens = num_tokens;
    }

    /// Gives back the blocks of a sequence, tail first, so that its tail is evicted before the
    /// head that others are likelier to share.
    pub fn free(&mut self, table: BlockTable) {
        for &block in table.blocks.iter().rev() {
            let is_last = self.pool.ref_count(block) == 1;
            let retention = match &mut self.index {
                Some(index) if is_last => index.retire(block),
                Some(_) => Retention::Keep,
                None => Retention::Drop,
            };
            self.pool.release(block, retention);
        }
    }

    /// Returns what the KV memory is used for.
    #[must_use]
    pub fn stats(&self) -> KvStats {
        let counts = self.pool.counts();
        let size = u64::from(self.block_size.tokens());
        let num_allocated_slots = u64::from(counts.num_active) * size;
        KvStats {
            num_blocks: self.pool.num_blocks(),
            num_free_blocks: counts.num_free,
            num_active_blocks: counts.num_active,
            num_cached_blocks: counts.num_cached,
            num_allocated_slots,
            num_live_tokens: counts.num_live_tokens,
            num_shared_tokens: counts.num_referenced_tokens - counts.num_live_tokens,
            waste: KvWaste {
                internal_slots: num_allocated_slots - counts.num_live_tokens,
                ..KvWaste::default()
            },
        }
    }

    /// Checks the invariants in the module header against all `tables` that exist; costs the size
    /// of the pool.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate, or a table that was dropped without `free`.
    pub fn check_invariants<'a>(&self, tables: impl IntoIterator<Item = &'a BlockTable>) {
        self.pool.check_invariants();
        let mut num_references = vec![0; self.pool.num_blocks() as usize];
        for table in tables {
            let num_full = table.num_computed_tokens / self.block_size.tokens();
            for (i, block) in (0..).zip(&table.blocks) {
                num_references[block.index()] += 1;
                let shared = self.pool.ref_count(*block) > 1;
                assert!(!shared || i < num_full, "block {} is shared but not full", block.0);
                if let Some(index) = &self.index {
                    assert_eq!(index.is_recorded(*block), i < num_full, "block {}", block.0);
                }
            }
        }
        let mut num_listed = 0;
        for id in 0..self.pool.num_blocks() {
            let block = BlockId(id);
            assert_eq!(self.pool.ref_count(block), num_references[block.index()], "block {id}");
            let listed = self.index.as_ref().is_some_and(|index| index.is_listed(block));
            num_listed += usize::from(listed);
            match self.pool.state(block) {
                BlockState::Cached => assert!(listed, "cached block {id} cannot be found"),
                BlockState::Free => assert!(!listed, "free block {id} can be found"),
                BlockState::Active => {}
            }
        }
        let in_index = self.index.as_ref().map_or(0, PrefixIndex::num_listed);
        assert_eq!(num_listed, in_index, "the index lists a block that does not know it");
    }
}

/// Converts a length to the width that tokens and blocks are counted in.
fn len<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("a sequence has fewer than 2^32 tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: Namespace = Namespace([0; 32]);

    fn manager(num_blocks: u32) -> KvManager {
        KvManager::new(KvConfig {
            block_size: BlockSize::DEFAULT,
            num_blocks,
            prefix_caching: PrefixCaching::On,
            block_hashing: BlockHashing::Chained,
        })
    }

    /// Admits a sequence and computes all its tokens.
    fn compute(kv: &mut KvManager, tokens: &[TokenId]) -> BlockTable {
        let mut found = PrefixMatch::default();
        kv.match_prefix(NAMESPACE, tokens, &mut found);
        let mut table = kv.adopt(&found);
        kv.allocate(&mut table, len(tokens)).unwrap();
        kv.mark_computed(&mut table, tokens);
        table
    }

    fn num_matched(kv: &KvManager, tokens: &[TokenId]) -> u32 {
        let mut found = PrefixMatch::default();
        kv.match_prefix(NAMESPACE, tokens, &mut found);
        found.num_blocks()
    }

    fn tokens(num: u32) -> Vec<TokenId> {
        (0..num).collect()
    }

    #[test]
    fn freed_blocks_are_evicted_tail_first() {
        let mut kv = manager(4);
        let table = compute(&mut kv, &tokens(49));
        kv.free(table);
        assert_eq!(num_matched(&kv, &tokens(49)), 3);
        let other = compute(&mut kv, &[9; 17]);
        assert_eq!(num_matched(&kv, &tokens(49)), 2, "one free block, then the tail");
        kv.check_invariants([&other]);
        kv.free(other);
    }

    #[test]
    fn the_last_token_is_always_computed_into_a_private_block() {
        let mut kv = manager(8);
        let first = compute(&mut kv, &tokens(32));
        assert_eq!(num_matched(&kv, &tokens(32)), 1);
        assert_eq!(num_matched(&kv, &tokens(33)), 2);
        assert_eq!(num_matched(&kv, &tokens(1)), 0);
        let second = compute(&mut kv, &tokens(32));
        assert_eq!(first.blocks()[0], second.blocks()[0]);
        assert_ne!(first.blocks()[1], second.blocks()[1]);
        kv.check_invariants([&first, &second]);
    }

    #[test]
    fn a_block_is_shared_as_soon_as_it_is_full() {
        let mut kv = manager(8);
        let running = compute(&mut kv, &tokens(16));
        assert_eq!(num_matched(&kv, &tokens(17)), 1);
        kv.check_invariants([&running]);
    }

    #[test]
    fn accounting_counts_shared_tokens_once_and_the_open_tail_as_waste() {
        let mut kv = manager(8);
        let tables = [compute(&mut kv, &tokens(20)), compute(&mut kv, &tokens(18))];
        let stats = kv.stats();
        assert_eq!((stats.num_active_blocks, stats.num_allocated_slots), (3, 48));
        assert_eq!((stats.num_live_tokens, stats.num_shared_tokens), (16 + 4 + 2, 16));
        assert_eq!(stats.waste.internal_slots, 12 + 14);
        for table in tables {
            kv.free(table);
        }
        let stats = kv.stats();
        assert_eq!((stats.num_cached_blocks, stats.num_free_blocks), (1, 7));
        assert_eq!((stats.num_live_tokens, stats.waste.internal_slots), (0, 0));
    }
}
