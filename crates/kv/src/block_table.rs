//! The blocks of one sequence.
//!
//! A table is append-only for whoever reads it: a block's place never changes. What may change is
//! the block in a place: an open tail that others share is replaced by a private copy before it is
//! written to.

use crate::prefix_index::PrefixTail;
use crate::prefix_match::{PrefixMatch, count_blocks};
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
    /// End of the chain of full blocks.
    pub(crate) tail: PrefixTail,
    /// What the chain of full blocks holds, where blocks have keys.
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
            tail: PrefixTail::root(start.namespace),
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
        self.start.prefix_caching == PrefixCaching::On && self.tail == found.tail
    }

    pub(crate) fn num_blocks(&self) -> u32 {
        count_blocks(&self.blocks)
    }
}
