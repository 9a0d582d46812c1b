//! The blocks of one sequence.
//!
//! A table grows at its end and a token's place never changes. The block in a place may: an open
//! tail that others share gives way to a private copy before it is written to, and a block that has
//! become full gives way to the one that already holds the same KV.

use crate::prefix_match::{PrefixMatch, count_blocks};
use crate::prefix_tree::Parent;
use mini_infer_core::{BlockId, BlockKey, Namespace, PrefixCaching};

/// How long a sequence is and may become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceShape {
    /// Tokens in the prompt.
    pub num_prompt_tokens: u32,
    /// Most tokens that the sequence can reach, prompt included; in a simulation, its true length.
    pub max_num_tokens: u32,
}

/// What KV memory needs to know of a sequence before its first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceStart {
    /// Whom the sequence shares KV with.
    pub namespace: Namespace,
    /// How long it may become.
    pub shape: SequenceShape,
    /// Whether its blocks are kept for others.
    pub prefix_caching: PrefixCaching,
}

/// The blocks of one sequence in order.
///
/// Holds references that only [`KvMemory::free`](crate::KvMemory::free) gives back; a table that
/// is merely dropped leaks its blocks.
#[derive(Debug)]
pub struct BlockTable {
    pub(crate) start: SequenceStart,
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) num_computed_tokens: u32,
    /// Blocks whose slots are all computed.
    pub(crate) num_full_blocks: u32,
    /// The first block whose window part the table holds, with all behind it.
    pub(crate) first_visible_block: u32,
    /// Whether lookups find the full blocks.
    pub(crate) is_indexed: bool,
    /// What the full blocks hold, where blocks have keys.
    pub(crate) key: BlockKey,
}

impl BlockTable {
    /// Creates a table without blocks.
    #[must_use]
    pub fn new(start: SequenceStart) -> Self {
        Self {
            start,
            blocks: Vec::new(),
            num_computed_tokens: 0,
            num_full_blocks: 0,
            first_visible_block: 0,
            is_indexed: start.prefix_caching == PrefixCaching::On,
            key: BlockKey::root(start.namespace),
        }
    }

    /// Returns what the sequence started from.
    #[must_use]
    pub fn start(&self) -> &SequenceStart {
        &self.start
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

    /// Tells whether the full blocks of the table are the very prefix whose full blocks `found`
    /// found, so that lookups find the next block to get full right behind them. O(1).
    #[must_use]
    pub fn has_reached(&self, found: &PrefixMatch) -> bool {
        let num_blocks = found.num_blocks();
        // Nothing else stands for the same tokens as a block in the tree, so the last one tells.
        self.is_indexed
            && self.start.namespace == found.namespace
            && self.num_full_blocks == num_blocks
            && self.blocks[..num_blocks as usize].last() == found.blocks.last()
    }

    pub(crate) fn num_blocks(&self) -> u32 {
        count_blocks(&self.blocks)
    }

    /// Returns what the block at `place` continues.
    pub(crate) fn parent_of(&self, place: usize) -> Parent {
        match place.checked_sub(1) {
            None => Parent::Root(self.start.namespace),
            Some(before) => Parent::Block(self.blocks[before]),
        }
    }
}
