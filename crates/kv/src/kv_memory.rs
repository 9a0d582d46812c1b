//! KV memory as a scheduler sees it, whatever kind it is.
//!
//! One scheduler runs on paged memory and, for comparison, on contiguous memory. Per sequence the
//! calls go: `match_prefix`, `has_room`, `start`, then for every step `allocate`, the forward pass
//! and `mark_computed`, and at last `free`. Transfers that a call appends must be carried out in
//! order, before the forward pass that follows.
//!
//! No operation costs more than the blocks and tokens it is about, except where it says so.

use crate::accounting::{BlockInfo, KvStats};
use crate::block_table::{BlockTable, SequenceShape, SequenceStart};
use crate::prefix_match::PrefixMatch;
use mini_infer_core::{BlockId, BlockKey, KvTransfer, Namespace, TokenId};
use std::fmt;

/// The bookkeeping of KV memory: which block holds which tokens of which sequence.
pub trait KvMemory: fmt::Debug + Send {
    /// Finds the longest start of `tokens` whose KV is there, the last token never included.
    /// Changes nothing.
    fn match_prefix(&self, namespace: Namespace, tokens: &[TokenId], found: &mut PrefixMatch) {
        let _ = tokens;
        found.reset(namespace);
    }

    /// Tells whether a sequence that adopts `found` can be started and grow to `num_tokens` tokens
    /// while `num_withheld_blocks` blocks stay available to others.
    fn has_room(
        &self,
        found: &PrefixMatch,
        num_tokens: u32,
        shape: SequenceShape,
        num_withheld_blocks: u64,
    ) -> bool;

    /// Starts a sequence with what `found` found in its namespace.
    ///
    /// # Panics
    /// When `found` is of another namespace, or not empty although the sequence's prefix caching is
    /// off; or when [`Self::has_room`] is not for the matched tokens and one more.
    fn start(
        &mut self,
        found: &PrefixMatch,
        start: SequenceStart,
        transfers: &mut Vec<KvTransfer>,
    ) -> BlockTable;

    /// Returns for how many more tokens [`Self::allocate`] can give `table` slots, those it has
    /// but does not use included.
    fn num_obtainable_slots(&self, table: &BlockTable) -> u32;

    /// Extends `table` until it has private slots for all tokens from its computed ones to
    /// `num_tokens`. To be called before every write, also into slots that the table has.
    ///
    /// # Errors
    /// Returns [`OutOfBlocks`], having changed nothing, when too few blocks are available.
    fn allocate(
        &mut self,
        table: &mut BlockTable,
        num_tokens: u32,
        transfers: &mut Vec<KvTransfer>,
    ) -> Result<(), OutOfBlocks>;

    /// Records that the KV of all `tokens`, the sequence's from its start, is in the table's slots.
    ///
    /// # Panics
    /// When `tokens` is shorter than before or longer than the table's slots.
    fn mark_computed(&mut self, table: &mut BlockTable, tokens: &[TokenId]);

    /// Lets another sequence continue the computed tokens of `table`, in the same memory until one
    /// of the two writes; `None` when this memory cannot share. Blocks that `table` was given ahead
    /// of its computed tokens stay its own, and it must call [`Self::allocate`] again before it
    /// writes.
    fn fork(&mut self, table: &BlockTable) -> Option<BlockTable>;

    /// Gives back the blocks of a sequence.
    fn free(&mut self, table: BlockTable);

    /// Returns the key of the full block that would continue `table`, whose computed tokens end at
    /// a block's border; `None` when they do not, when `tokens`, all that are known, do not fill
    /// that block and one token more, or when blocks have no keys. Hashes one block.
    fn next_key(&self, table: &BlockTable, tokens: &[TokenId]) -> Option<BlockKey> {
        let _ = (table, tokens);
        None
    }

    /// Returns what [`Self::next_key`] would for a table that adopted the full blocks of `found`.
    fn next_key_of_match(&self, found: &PrefixMatch, tokens: &[TokenId]) -> Option<BlockKey> {
        let _ = (found, tokens);
        None
    }

    /// Evicts what no sequence holds, longest released first, until it takes no more memory than
    /// `keep_blocks` whole blocks, and gives the memory of all free blocks back to the system. For
    /// idle times: costs the pool.
    fn trim(&mut self, keep_blocks: u32, transfers: &mut Vec<KvTransfer>);

    /// Returns what the memory is used for. O(1).
    fn stats(&self) -> KvStats;

    /// Returns what is known of one block.
    fn block(&self, block: BlockId) -> BlockInfo;

    /// Returns how many block ids there are: ids are below this.
    fn num_block_ids(&self) -> u32;

    /// Checks all invariants against all `tables` that exist; costs the memory's size.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate, or a table that was dropped without `free`.
    fn check_invariants(&self, tables: &[&BlockTable]);
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
