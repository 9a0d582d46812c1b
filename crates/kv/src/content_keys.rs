//! The names of what full blocks hold, chained over everything before them.
//!
//! Only where a tier keeps evicted blocks: hashing costs more than the rest of the bookkeeping.

use mini_infer_core::{BlockId, BlockKey, ContentHash, TokenId};

/// The keys of the blocks that have one.
#[derive(Debug)]
pub(crate) struct ContentKeys {
    hash: ContentHash,
    keys: Vec<Option<BlockKey>>,
}

impl ContentKeys {
    /// Creates a list of `num_blocks` blocks without keys.
    pub(crate) fn new(hash: ContentHash, num_blocks: u32) -> Self {
        Self { hash, keys: vec![None; num_blocks as usize] }
    }

    /// Returns the key of the full block that continues `parent` with `tokens`.
    pub(crate) fn after(&self, parent: &BlockKey, tokens: &[TokenId]) -> BlockKey {
        (self.hash)(parent, tokens)
    }

    /// Names what `block` holds.
    pub(crate) fn set(&mut self, block: BlockId, key: BlockKey) {
        self.keys[block.index()] = Some(key);
    }

    /// Returns the name of what `block` holds.
    pub(crate) fn get(&self, block: BlockId) -> Option<BlockKey> {
        self.keys[block.index()]
    }

    /// Takes the name away from `block`.
    pub(crate) fn take(&mut self, block: BlockId) -> Option<BlockKey> {
        self.keys[block.index()].take()
    }
}
