//! Paged KV memory as a sequence sees it: match a prefix, get slots, report computed tokens, free.
//!
//! Joins the block pool and the prefix index. Invariants, checked by
//! [`KvMemory::check_invariants`]: the ref count of a block is the number of block tables it
//! stands in; a cached block is always one that a lookup can find; a free block has no content; a
//! shared block that is not full is an open tail, which is copied before anyone writes to it.
//!
//! A prompt is never matched to its last token: that token is computed again, into a private block,
//! because its logits are wanted. No operation costs more than the blocks and tokens it is about.

use crate::accounting::{BlockInfo, KvStats, KvWaste};
use crate::block_pool::{BlockPool, BlockState, Retention};
use crate::block_table::{BlockTable, SequenceShape, SequenceStart};
use crate::content_keys::ContentKeys;
use crate::kv_config::KvConfig;
use crate::kv_memory::{KvMemory, OutOfBlocks};
use crate::prefix_index::PrefixIndex;
use crate::prefix_match::PrefixMatch;
use mini_infer_core::{
    BlockId, BlockKey, BlockSize, KvPart, KvTransfer, Namespace, PrefixCaching, TokenId,
};

/// The KV bookkeeping of one engine, in a pool of blocks that sequences share.
#[derive(Debug)]
pub struct KvManager {
    block_size: BlockSize,
    pool: BlockPool,
    /// `None` when prefix caching is off.
    index: Option<PrefixIndex>,
    /// `None` when blocks have no keys.
    keys: Option<ContentKeys>,
    num_evicted_blocks: u64,
    num_copied_blocks: u64,
}

impl KvManager {
    /// Creates the bookkeeping of an empty pool.
    ///
    /// # Panics
    /// When the model has sliding windows.
    #[must_use]
    pub fn new(config: KvConfig) -> Self {
        let KvConfig { block_size, num_blocks, prefix_caching, block_hashing, .. } = config;
        assert_eq!(config.window, None, "sliding windows");
        let index = match prefix_caching {
            PrefixCaching::On => Some(PrefixIndex::new(num_blocks, block_size, block_hashing)),
            PrefixCaching::Off => None,
        };
        let hash = config.content_hash.filter(|_| index.is_some());
        Self {
            block_size,
            pool: BlockPool::new(num_blocks),
            index,
            keys: hash.map(|hash| ContentKeys::new(hash, num_blocks)),
            num_evicted_blocks: 0,
            num_copied_blocks: 0,
        }
    }

    /// Returns how many blocks an allocation can get: the free and the cached ones.
    #[must_use]
    pub fn num_available_blocks(&self) -> u32 {
        let counts = self.pool.counts();
        counts.num_free + counts.num_cached
    }

    /// Takes a block for a sequence, evicting a cached one when none is free.
    fn take_block(&mut self, transfers: &mut Vec<KvTransfer>) -> BlockId {
        let allocation = self.pool.allocate().expect("the caller has counted the available blocks");
        if allocation.previous == BlockState::Cached {
            self.forget_evicted(allocation.block, transfers);
        }
        allocation.block
    }

    /// Accounts for an evicted block: it can no longer be found, and its bytes are offered.
    fn forget_evicted(&mut self, block: BlockId, transfers: &mut Vec<KvTransfer>) {
        if let Some(index) = &mut self.index {
            index.forget(block);
        }
        if let Some(key) = self.keys.as_mut().and_then(|keys| keys.take(block)) {
            transfers.push(KvTransfer::Save { block, key });
        }
        self.num_evicted_blocks += 1;
    }

    /// Returns the block that `table` must copy before it writes its next token: an open tail that
    /// other sequences hold too.
    fn shared_tail(&self, table: &BlockTable) -> Option<(usize, BlockId)> {
        let size = self.block_size.tokens();
        if table.num_computed_tokens.is_multiple_of(size) {
            return None;
        }
        let place = (table.num_computed_tokens / size) as usize;
        let block = table.blocks[place];
        (self.pool.ref_count(block) > 1).then_some((place, block))
    }

    /// Tells whether blocks of `table` are indexed.
    fn is_indexed(&self, table: &BlockTable) -> bool {
        self.index.is_some() && table.start.prefix_caching == PrefixCaching::On
    }

    /// Returns the key of the block that continues `num_full` full blocks with key `parent`.
    fn key_after(&self, parent: &BlockKey, num_full: u32, tokens: &[TokenId]) -> Option<BlockKey> {
        let size = self.block_size.tokens() as usize;
        let start = num_full as usize * size;
        let keys = self.keys.as_ref()?;
        (tokens.len() > start + size).then(|| keys.after(parent, &tokens[start..start + size]))
    }

    /// Returns the key of the last full block that matched, or of the namespace.
    fn key_of_match(&self, found: &PrefixMatch) -> BlockKey {
        let key = found.blocks.last().and_then(|&block| self.keys.as_ref()?.get(block));
        key.unwrap_or(BlockKey::root(found.namespace))
    }

    /// Makes a block that has become full one that lookups can find.
    fn index_full_block(&mut self, table: &mut BlockTable, block: BlockId, tokens: &[TokenId]) {
        let Some(index) = &mut self.index else { return };
        table.tail = index.insert(block, table.tail, tokens);
        if let Some(keys) = &mut self.keys {
            table.key = keys.after(&table.key, tokens);
            keys.set(block, table.key);
        }
    }
}

impl KvMemory for KvManager {
    fn match_prefix(&self, namespace: Namespace, tokens: &[TokenId], found: &mut PrefixMatch) {
        found.reset(namespace);
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
        found.num_tokens = found.num_blocks() * self.block_size.tokens();
    }

    fn has_room(
        &self,
        found: &PrefixMatch,
        num_tokens: u32,
        _shape: SequenceShape,
        num_withheld_blocks: u64,
    ) -> bool {
        let needed = self.block_size.blocks_for(num_tokens) - found.num_blocks();
        let needed = u64::from(needed + found.num_cached_blocks) + num_withheld_blocks;
        needed <= u64::from(self.num_available_blocks())
    }

    fn start(
        &mut self,
        found: &PrefixMatch,
        start: SequenceStart,
        _transfers: &mut Vec<KvTransfer>,
    ) -> BlockTable {
        let is_off = start.prefix_caching == PrefixCaching::Off;
        assert!(!is_off || found.blocks.is_empty(), "a match without prefix caching");
        assert_eq!(found.namespace, start.namespace, "a match from another namespace");
        for &block in &found.blocks {
            self.pool.touch(block);
        }
        BlockTable {
            start,
            blocks: found.blocks.clone(),
            num_computed_tokens: found.num_tokens(),
            tail: found.tail,
            key: self.key_of_match(found),
        }
    }

    fn num_obtainable_slots(&self, table: &BlockTable) -> u32 {
        let num_available = self.num_available_blocks();
        let num_blocks = match self.shared_tail(table) {
            None => table.num_blocks() + num_available,
            Some(_) if num_available == 0 => return 0,
            // The copy takes one block and puts it in the place of the original.
            Some(_) => table.num_blocks() + num_available - 1,
        };
        num_blocks * self.block_size.tokens() - table.num_computed_tokens
    }

    fn allocate(
        &mut self,
        table: &mut BlockTable,
        num_tokens: u32,
        transfers: &mut Vec<KvTransfer>,
    ) -> Result<(), OutOfBlocks> {
        let num_new = self.block_size.blocks_for(num_tokens).saturating_sub(table.num_blocks());
        let writes = num_tokens > table.num_computed_tokens;
        let shared_tail = self.shared_tail(table).filter(|_| writes);
        let needed = num_new + u32::from(shared_tail.is_some());
        let available = self.num_available_blocks();
        if needed > available {
            return Err(OutOfBlocks { needed, available });
        }
        if let Some((place, from)) = shared_tail {
            let to = self.take_block(transfers);
            let num_tokens = table.num_computed_tokens % self.block_size.tokens();
            transfers.push(KvTransfer::Copy { from, to, num_tokens });
            self.pool.set_num_tokens(to, num_tokens);
            self.pool.release(from, Retention::Keep);
            table.blocks[place] = to;
            self.num_copied_blocks += 1;
        }
        for _ in 0..num_new {
            let block = self.take_block(transfers);
            table.blocks.push(block);
        }
        Ok(())
    }

    fn mark_computed(&mut self, table: &mut BlockTable, tokens: &[TokenId]) {
        let num_tokens = u32::try_from(tokens.len()).expect("slots are numbered with 32 bits");
        let size = self.block_size.tokens();
        let first_open = table.num_computed_tokens / size;
        assert!(num_tokens >= table.num_computed_tokens, "computed tokens never get fewer");
        for i in first_open..self.block_size.blocks_for(num_tokens) {
            let block = table.blocks[i as usize];
            let start = i * size;
            let filled = (num_tokens - start).min(size);
            self.pool.set_num_tokens(block, filled);
            if filled == size && self.is_indexed(table) {
                let full = &tokens[start as usize..(start + size) as usize];
                self.index_full_block(table, block, full);
            }
        }
        table.num_computed_tokens = num_tokens;
    }

    fn fork(&mut self, table: &BlockTable) -> Option<BlockTable> {
        let num_blocks = self.block_size.blocks_for(table.num_computed_tokens) as usize;
        let blocks = table.blocks[..num_blocks].to_vec();
        for &block in &blocks {
            self.pool.touch(block);
        }
        Some(BlockTable { blocks, ..*table })
    }

    /// Gives back the blocks tail first, so that the tail is evicted before the head that others
    /// are likelier to share.
    fn free(&mut self, table: BlockTable) {
        for &block in table.blocks.iter().rev() {
            let is_last = self.pool.ref_count(block) == 1;
            let retention = match &mut self.index {
                Some(index) if is_last => index.retire(block),
                Some(_) => Retention::Keep,
                None => Retention::Drop,
            };
            if let (Retention::Drop, Some(keys)) = (retention, &mut self.keys) {
                keys.take(block);
            }
            self.pool.release(block, retention);
        }
    }

    fn next_key(&self, table: &BlockTable, tokens: &[TokenId]) -> Option<BlockKey> {
        let size = self.block_size.tokens();
        let is_at_border = table.num_computed_tokens.is_multiple_of(size);
        let is_keyed = is_at_border && self.is_indexed(table);
        let num_full = table.num_computed_tokens / size;
        is_keyed.then(|| self.key_after(&table.key, num_full, tokens)).flatten()
    }

    fn next_key_of_match(&self, found: &PrefixMatch, tokens: &[TokenId]) -> Option<BlockKey> {
        self.key_after(&self.key_of_match(found), found.num_blocks(), tokens)
    }

    fn trim(&mut self, keep_blocks: u32, transfers: &mut Vec<KvTransfer>) {
        while self.pool.counts().num_cached > keep_blocks {
            let block = self.pool.evict().expect("there are cached blocks");
            self.forget_evicted(block, transfers);
        }
        self.pool.discard_free(|block| {
            transfers.push(KvTransfer::Discard { block, part: KvPart::FullAttention });
        });
    }

    fn stats(&self) -> KvStats {
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
            num_shared_blocks: counts.num_shared,
            num_window_parts: 0,
            num_evicted_blocks: self.num_evicted_blocks,
            num_copied_blocks: self.num_copied_blocks,
            waste: KvWaste {
                internal_slots: num_allocated_slots - counts.num_live_tokens,
                ..KvWaste::default()
            },
        }
    }

    fn block(&self, block: BlockId) -> BlockInfo {
        BlockInfo {
            state: self.pool.state(block),
            ref_count: self.pool.ref_count(block),
            num_tokens: self.pool.num_tokens(block),
        }
    }

    fn num_block_ids(&self) -> u32 {
        self.pool.num_blocks()
    }

    fn check_invariants(&self, tables: &[&BlockTable]) {
        self.pool.check_invariants();
        let mut num_references = vec![0; self.pool.num_blocks() as usize];
        for table in tables {
            let num_full = table.num_computed_tokens / self.block_size.tokens();
            for (i, block) in (0..).zip(&table.blocks) {
                num_references[block.index()] += 1;
                let shared = self.pool.ref_count(*block) > 1;
                assert!(!shared || i <= num_full, "block {} is shared and empty", block.0);
                if let Some(index) = &self.index {
                    let indexed = i < num_full && self.is_indexed(table);
                    assert_eq!(index.is_recorded(*block), indexed, "block {}", block.0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix_index::BlockHashing;

    const NAMESPACE: Namespace = Namespace([0; 32]);

    fn manager(num_blocks: u32) -> KvManager {
        KvManager::new(KvConfig {
            block_size: BlockSize::DEFAULT,
            num_blocks,
            prefix_caching: PrefixCaching::On,
            block_hashing: BlockHashing::Chained,
            window: None,
            content_hash: None,
        })
    }

    /// Admits a sequence and computes all its tokens.
    fn compute(kv: &mut KvManager, tokens: &[TokenId]) -> BlockTable {
        let mut found = PrefixMatch::default();
        kv.match_prefix(NAMESPACE, tokens, &mut found);
        let mut transfers = Vec::new();
        let mut table = kv.start(&found, SequenceStart::default(), &mut transfers);
        kv.allocate(&mut table, u32::try_from(tokens.len()).unwrap(), &mut transfers).unwrap();
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
        kv.check_invariants(&[&other]);
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
        kv.check_invariants(&[&first, &second]);
    }

    #[test]
    fn a_block_is_shared_as_soon_as_it_is_full() {
        let mut kv = manager(8);
        let running = compute(&mut kv, &tokens(16));
        assert_eq!(num_matched(&kv, &tokens(17)), 1);
        kv.check_invariants(&[&running]);
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
