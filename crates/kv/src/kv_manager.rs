//! Paged KV memory as a sequence sees it: match a prefix, get slots, report computed tokens, free.
//!
//! Joins the block pool and the prefix tree. Invariants, checked by
//! [`KvMemory::check_invariants`]: the ref count of a block is the number of block tables it
//! stands in; a cached block is always one that lookups can find; a free block has no content; a
//! shared block that is not full is an open tail, which is copied before anyone writes to it. A
//! table holds the window parts of the blocks that its next token sees.
//!
//! The same KV is never kept twice: a block that has become full gives way to the one that lookups
//! find for the same tokens. So a table that stands in the tree holds every block up to its end,
//! and since it is released tail first, no block is evicted before those that continue it.
//!
//! A prompt is never matched to its last token: that token is computed again, into a private block,
//! because its logits are wanted. No operation costs more than the blocks and tokens it is about.

use crate::accounting::{BlockInfo, KvStats, KvWaste};
use crate::block_contents::{BlockContents, account_reclaimed};
use crate::block_pool::{BlockPool, BlockState, Retention};
use crate::block_table::{BlockTable, SequenceShape, SequenceStart};
use crate::kv_config::KvConfig;
use crate::kv_memory::{KvMemory, OutOfBlocks};
use crate::pool_counts::Room;
use crate::prefix_match::{MatchExtent, PrefixMatch, count_blocks};
use crate::prefix_tree::Insertion;
use crate::reclaimed::Reclaimed;
use crate::sliding_window::SlidingWindow;
use mini_infer_core::{
    BlockId, BlockKey, BlockSize, KvTransfer, Namespace, PrefixCaching, TokenId,
};

/// The KV bookkeeping of one engine, in a pool of blocks that sequences share.
#[derive(Debug)]
pub struct KvManager {
    block_size: BlockSize,
    window: Option<SlidingWindow>,
    pool: BlockPool,
    /// `None` when prefix caching is off.
    contents: Option<BlockContents>,
    /// Transfers of calls that could not tell them, before any that a later call tells.
    pending: Vec<KvTransfer>,
    num_evicted_blocks: u64,
    num_copied_blocks: u64,
}

impl KvManager {
    /// Creates the bookkeeping of an empty pool.
    ///
    /// # Panics
    /// When a weight of the window is 0, or slots do not fit into 32 bits.
    #[must_use]
    pub fn new(config: KvConfig) -> Self {
        let pool = BlockPool::new(config.num_blocks, config.window);
        let contents = match config.prefix_caching {
            PrefixCaching::On => Some(BlockContents::new(pool.num_ids(), &config)),
            PrefixCaching::Off => None,
        };
        Self {
            block_size: config.block_size,
            window: config.window.map(|window| SlidingWindow::new(window, config.block_size)),
            pool,
            contents,
            pending: Vec::new(),
            num_evicted_blocks: 0,
            num_copied_blocks: 0,
        }
    }

    /// Returns how many blocks an allocation can get: where no layer has a window, the free and the
    /// cached ones.
    #[must_use]
    pub fn num_available_blocks(&self) -> u32 {
        self.pool.num_available()
    }

    /// Runs an operation of the pool and accounts for what it takes back.
    fn reclaim<T>(
        &mut self,
        transfers: &mut Vec<KvTransfer>,
        operation: impl FnOnce(&mut BlockPool, &mut dyn FnMut(Reclaimed)) -> T,
    ) -> T {
        let Self { pool, contents, num_evicted_blocks, .. } = self;
        operation(pool, &mut |reclaimed| {
            account_reclaimed(reclaimed, contents, num_evicted_blocks, transfers);
        })
    }

    /// Takes a block for a sequence, evicting what was released longest ago when there is no room.
    fn take_block(&mut self, transfers: &mut Vec<KvTransfer>) -> BlockId {
        let block = self.reclaim(transfers, |pool, reclaimed| pool.allocate(reclaimed));
        block.expect("the caller has counted the available blocks")
    }

    /// Takes a block for a copy of the first tokens of a block that the caller does not hold. Room is
    /// made by evicting anything else; where nothing else is left, that block itself is taken.
    fn take_block_for_copy(&mut self, from: BlockId, transfers: &mut Vec<KvTransfer>) -> BlockId {
        let has_window_part = self.pool.has_window_part(from);
        self.pool.touch(from);
        if has_window_part {
            self.pool.hold_window_part(from);
        }
        let taken = self.reclaim(transfers, |pool, reclaimed| pool.allocate(reclaimed));
        if has_window_part {
            self.pool.release_with_window_part(from, Retention::Keep);
        } else {
            self.pool.release(from, Retention::Keep);
        }
        taken.unwrap_or_else(|| self.take_block(transfers))
    }

    /// Makes the first `num_tokens` slots of block `to` those of block `from`.
    fn copy(
        &mut self,
        from: BlockId,
        to: BlockId,
        num_tokens: u32,
        transfers: &mut Vec<KvTransfer>,
    ) {
        if to != from {
            transfers.push(KvTransfer::Copy { from, to, num_tokens });
            self.num_copied_blocks += 1;
            if let Some(contents) = &mut self.contents {
                contents.tree.copy_tokens(from, to, num_tokens);
            }
        }
        self.pool.set_num_tokens(to, num_tokens);
    }

    /// Returns the block that `table` must copy before it writes its next token: an open tail that
    /// other sequences hold too.
    fn shared_tail(&self, table: &BlockTable) -> Option<(usize, BlockId)> {
        let place = table.num_full_blocks as usize;
        let is_open = table.num_computed_tokens > table.num_full_blocks * self.block_size.tokens();
        if !is_open {
            return None;
        }
        let block = table.blocks[place];
        (self.pool.ref_count(block) > 1).then_some((place, block))
    }

    /// Lets go of the window parts that the next token of `table` does not see.
    fn release_passed_window_parts(&mut self, table: &mut BlockTable, window: SlidingWindow) {
        let first_visible = window.first_visible_block(table.num_computed_tokens);
        for place in table.first_visible_block..first_visible {
            self.pool.release_window_part(table.blocks[place as usize]);
        }
        table.first_visible_block = first_visible;
    }

    /// Drops a table's reference to the block at `place`, and to its window part if it has one.
    fn release(&mut self, table: &BlockTable, place: usize, retention: Retention) {
        let block = table.blocks[place];
        if self.window.is_some() && place >= table.first_visible_block as usize {
            self.pool.release_with_window_part(block, retention);
        } else {
            self.pool.release(block, retention);
        }
    }

    /// Makes the block at `place`, which has become full, one that lookups find, or puts the one in
    /// its place that they find already.
    fn index_full_block(&mut self, table: &mut BlockTable, place: usize) {
        let Some(contents) = &mut self.contents else { return };
        let parent = table.parent_of(place);
        let size = self.block_size.tokens();
        let (insertion, key) = contents.insert_full(table.blocks[place], parent, &table.key, size);
        table.key = key;
        match insertion {
            Insertion::Added => {}
            Insertion::Replaced(shorter) => self.pool.drop_cached(shorter),
            Insertion::Known(known) => self.give_way(table, place, known),
        }
    }

    /// Puts `known` in the place of a private block that holds the same KV. Where `known` has lost
    /// the window part that `table` still sees, it is copied back; when there is no memory for it,
    /// the table keeps its block and what it computes from there on is not found by others.
    fn give_way(&mut self, table: &mut BlockTable, place: usize, known: BlockId) {
        self.pool.touch(known);
        if self.window.is_some() && place >= table.first_visible_block as usize {
            if self.pool.has_window_part(known) {
                self.pool.hold_window_part(known);
            } else {
                let mut transfers = std::mem::take(&mut self.pending);
                let regained = self.reclaim(&mut transfers, |pool, reclaimed| {
                    pool.regain_window_part(known, reclaimed)
                });
                self.pending = transfers;
                if !regained {
                    self.pool.release(known, Retention::Keep);
                    table.is_indexed = false;
                    return;
                }
                let (from, num_tokens) = (table.blocks[place], self.block_size.tokens());
                self.pending.push(KvTransfer::Copy { from, to: known, num_tokens });
                self.num_copied_blocks += 1;
            }
        }
        self.release(table, place, Retention::Drop);
        table.blocks[place] = known;
    }

    /// Makes the open tail of a table that ends one that lookups find, if that helps them.
    fn index_tail(&mut self, table: &BlockTable, place: usize, num_tokens: u32) -> Retention {
        let Some(contents) = &mut self.contents else { return Retention::Drop };
        let block = table.blocks[place];
        match contents.tree.insert(block, table.parent_of(place), num_tokens) {
            Insertion::Added => Retention::Keep,
            Insertion::Replaced(shorter) => {
                self.pool.drop_cached(shorter);
                Retention::Keep
            }
            Insertion::Known(_) => Retention::Drop,
        }
    }

    /// Decides what becomes of the block at `place` when a table ends that holds it alone.
    fn retire(&mut self, table: &BlockTable, place: usize) -> Retention {
        let num_full = table.num_full_blocks as usize;
        let num_open = table.num_computed_tokens - table.num_full_blocks * self.block_size.tokens();
        let block = table.blocks[place];
        if place < num_full {
            let is_found = self.contents.as_ref().is_some_and(|found| found.tree.contains(block));
            return if is_found { Retention::Keep } else { Retention::Drop };
        }
        if place == num_full && num_open > 0 && table.is_indexed {
            return self.index_tail(table, place, num_open);
        }
        Retention::Drop
    }

    /// Returns the key of the full block behind `num_full` ones with key `parent_key`.
    fn key_after(
        &self,
        parent_key: &BlockKey,
        num_full: u32,
        tokens: &[TokenId],
    ) -> Option<BlockKey> {
        let size = self.block_size.tokens() as usize;
        let start = num_full as usize * size;
        let contents = self.contents.as_ref()?;
        // As in a match, the last token does not count.
        let full = tokens.get(start..start + size).filter(|_| tokens.len() > start + size)?;
        contents.key_after(parent_key, full)
    }

    /// Returns the key of the last full block that matched, or of the namespace.
    fn key_of_match(&self, found: &PrefixMatch) -> BlockKey {
        let last = found.blocks.last();
        let key = last.and_then(|&block| self.contents.as_ref()?.key_of(block));
        key.unwrap_or(BlockKey::root(found.namespace))
    }

    /// Returns how far full blocks and `num_more` tokens go, and what adopting them takes.
    fn extent(&self, blocks: &[BlockId], num_more: u32) -> MatchExtent {
        // Whoever holds a block holds all before it, so that the cached ones come last.
        let num_active = blocks.partition_point(|&block| self.pool.ref_count(block) > 0);
        let num_blocks = count_blocks(blocks);
        let mut extent = MatchExtent {
            num_blocks,
            num_tokens: num_blocks * self.block_size.tokens() + num_more,
            num_cached_blocks: count_blocks(&blocks[num_active..]),
            ..MatchExtent::default()
        };
        if let Some(window) = self.window {
            extent.first_visible_block = window.first_visible_block(extent.num_tokens);
            let visible = &blocks[extent.first_visible_block as usize..];
            let unheld = visible.iter().filter(|block| self.pool.window_ref_count(**block) == 0);
            extent.num_unheld_window_parts = unheld.map(|_| 1).sum();
        }
        extent
    }
}

impl KvMemory for KvManager {
    fn match_prefix(&self, namespace: Namespace, tokens: &[TokenId], found: &mut PrefixMatch) {
        found.reset(namespace);
        let Some(contents) = &self.contents else { return };
        let matchable = &tokens[..tokens.len().saturating_sub(1)];
        found.partial = contents.tree.find(&namespace, matchable, &mut found.blocks);
        let num_blocks_at_border = match self.window {
            Some(window) => window.keep_visible(&self.pool, found),
            None => count_blocks(&found.blocks),
        };
        found.extent_at_border = self.extent(&found.blocks[..num_blocks_at_border as usize], 0);
        found.extent = match found.partial {
            Some(partial) => self.extent(&found.blocks, partial.num_tokens),
            None => found.extent_at_border,
        };
    }

    fn has_room(
        &self,
        found: &PrefixMatch,
        num_tokens: u32,
        _shape: SequenceShape,
        num_withheld_blocks: u64,
    ) -> bool {
        let num_new = self.block_size.blocks_for(num_tokens) - found.num_blocks();
        let num_window_parts = self.window.map_or(0, |window| {
            let num_visible = num_new + found.extent.num_unheld_window_parts;
            // A block that others hold keeps its window part until it is copied.
            let is_copied = found.partial.is_some_and(|partial| {
                self.pool.ref_count(partial.block) > 0
                    && self.pool.window_ref_count(partial.block) == 0
            });
            num_visible.min(window.max_visible_blocks()) + u32::from(is_copied)
        });
        self.pool.has_room(Room {
            num_blocks: u64::from(num_new + found.extent.num_cached_blocks),
            num_window_parts: u64::from(num_window_parts),
            num_withheld_blocks,
        })
    }

    fn start(
        &mut self,
        found: &PrefixMatch,
        start: SequenceStart,
        transfers: &mut Vec<KvTransfer>,
    ) -> BlockTable {
        transfers.append(&mut self.pending);
        let is_off = start.prefix_caching == PrefixCaching::Off;
        assert!(!is_off || found.num_tokens() == 0, "a match without prefix caching");
        assert_eq!(found.namespace, start.namespace, "a match from another namespace");
        let mut table = BlockTable::new(start);
        table.is_indexed &= self.contents.is_some();
        table.blocks.extend_from_slice(&found.blocks);
        table.num_computed_tokens = found.num_tokens();
        table.num_full_blocks = found.num_blocks();
        table.first_visible_block = found.extent.first_visible_block;
        table.key = self.key_of_match(found);
        for (place, &block) in (0..).zip(&found.blocks) {
            self.pool.touch(block);
            if self.window.is_some() && place >= table.first_visible_block {
                self.pool.hold_window_part(block);
            }
        }
        let Some(partial) = found.partial else { return table };
        let copy = self.take_block_for_copy(partial.block, transfers);
        self.copy(partial.block, copy, partial.num_tokens, transfers);
        table.blocks.push(copy);
        table
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
        if !self.pending.is_empty() {
            transfers.append(&mut self.pending);
        }
        let num_new = self.block_size.blocks_for(num_tokens).saturating_sub(table.num_blocks());
        let writes = num_tokens > table.num_computed_tokens;
        let shared_tail = self.shared_tail(table).filter(|_| writes);
        let needed = num_new + u32::from(shared_tail.is_some());
        if needed == 0 {
            return Ok(());
        }
        let available = self.num_available_blocks();
        if needed > available {
            return Err(OutOfBlocks { needed, available });
        }
        if let Some((place, shared)) = shared_tail {
            let num_tokens = table.num_computed_tokens % self.block_size.tokens();
            let copy = self.take_block(transfers);
            self.copy(shared, copy, num_tokens, transfers);
            self.release(table, place, Retention::Keep);
            table.blocks[place] = copy;
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
        let mut at = table.num_computed_tokens;
        assert!(num_tokens >= at, "computed tokens never get fewer");
        table.num_computed_tokens = num_tokens;
        if let Some(window) = self.window {
            self.release_passed_window_parts(table, window);
        }
        while at < num_tokens {
            let place = table.num_full_blocks as usize;
            let start = table.num_full_blocks * size;
            let end = num_tokens.min(start + size);
            let block = table.blocks[place];
            self.pool.set_num_tokens(block, end - start);
            if let (true, Some(contents)) = (table.is_indexed, &mut self.contents) {
                contents.tree.write_tokens(block, at - start, &tokens[at as usize..end as usize]);
            }
            if end - start == size {
                if table.is_indexed {
                    self.index_full_block(table, place);
                }
                table.num_full_blocks += 1;
            }
            at = end;
        }
    }

    fn fork(&mut self, table: &BlockTable) -> Option<BlockTable> {
        let num_blocks = self.block_size.blocks_for(table.num_computed_tokens) as usize;
        let blocks = table.blocks[..num_blocks].to_vec();
        for (place, &block) in (0..).zip(&blocks) {
            self.pool.touch(block);
            if self.window.is_some() && place >= table.first_visible_block {
                self.pool.hold_window_part(block);
            }
        }
        Some(BlockTable { blocks, ..*table })
    }

    /// Gives back the blocks tail first, so that the tail is evicted before the head that others
    /// are likelier to share.
    fn free(&mut self, table: BlockTable) {
        for place in (0..table.blocks.len()).rev() {
            let is_last = self.pool.ref_count(table.blocks[place]) == 1;
            let retention = if is_last { self.retire(&table, place) } else { Retention::Keep };
            self.release(&table, place, retention);
        }
    }

    fn next_key(&self, table: &BlockTable, tokens: &[TokenId]) -> Option<BlockKey> {
        let num_full_tokens = table.num_full_blocks * self.block_size.tokens();
        let is_at_border = table.num_computed_tokens == num_full_tokens;
        let is_keyed = is_at_border && table.is_indexed;
        is_keyed.then(|| self.key_after(&table.key, table.num_full_blocks, tokens)).flatten()
    }

    fn next_key_of_match(&self, found: &PrefixMatch, tokens: &[TokenId]) -> Option<BlockKey> {
        self.key_after(&self.key_of_match(found), found.num_blocks(), tokens)
    }

    fn trim(&mut self, keep_blocks: u32, transfers: &mut Vec<KvTransfer>) {
        transfers.append(&mut self.pending);
        self.reclaim(transfers, |pool, reclaimed| {
            while pool.memory().num_cached > keep_blocks {
                let evicted = pool.evict_next(&mut *reclaimed);
                evicted.expect("what is cached is evictable");
            }
            pool.discard_free(reclaimed);
        });
    }

    fn stats(&self) -> KvStats {
        let counts = self.pool.counts();
        let size = u64::from(self.block_size.tokens());
        let memory = self.pool.memory();
        let num_allocated_slots = u64::from(counts.num_active) * size;
        KvStats {
            num_blocks: memory.num_free + memory.num_active + memory.num_cached,
            num_free_blocks: memory.num_free,
            num_active_blocks: memory.num_active,
            num_cached_blocks: memory.num_cached,
            num_allocated_slots,
            num_live_tokens: counts.num_live_tokens,
            num_shared_tokens: counts.num_referenced_tokens - counts.num_live_tokens,
            num_shared_blocks: counts.num_shared,
            num_window_parts: counts.num_window_parts,
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
        self.pool.num_ids()
    }

    fn check_invariants(&self, tables: &[&BlockTable]) {
        self.pool.check_invariants();
        if let Some(contents) = &self.contents {
            contents.tree.check_invariants();
        }
        let is_found = |block| self.contents.as_ref().is_some_and(|c| c.tree.contains(block));
        let mut num_references = vec![(0, 0); self.pool.num_ids() as usize];
        for table in tables {
            let num_full = table.num_computed_tokens / self.block_size.tokens();
            assert_eq!(num_full, table.num_full_blocks);
            for (place, &block) in (0..).zip(&table.blocks) {
                num_references[block.index()].0 += 1;
                let sees = self.window.is_some() && place >= table.first_visible_block;
                num_references[block.index()].1 += u32::from(sees);
                let shared = self.pool.ref_count(block) > 1;
                assert!(!shared || place <= num_full, "block {} is shared and empty", block.0);
                let is_full = place < num_full;
                assert!(is_full || !is_found(block), "open block {} is found", block.0);
                assert!(!is_full || !table.is_indexed || is_found(block), "block {}", block.0);
            }
        }
        for block in (0..self.pool.num_ids()).map(BlockId) {
            let counted = (self.pool.ref_count(block), self.pool.window_ref_count(block));
            assert_eq!(counted, num_references[block.index()], "block {}", block.0);
            match self.pool.state(block) {
                BlockState::Cached => assert!(is_found(block), "cached block {}", block.0),
                BlockState::Free => assert!(!is_found(block), "free block {}", block.0),
                BlockState::Active => {}
            }
        }
    }
}
