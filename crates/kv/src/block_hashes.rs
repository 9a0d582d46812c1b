//! A shortcut to full blocks among many siblings.
//!
//! A walk through a [trie](crate::sibling_trie) takes longer the more siblings a block has; its hash
//! leads to it at once. The hash only proposes a block: whoever asks compares parent and tokens, and
//! walks when they differ, so a collision costs time and nothing else. The first block listed under
//! a hash stays.

use mini_infer_core::{BlockId, FixedHashMap, FixedState, TokenId};
use std::hash::{BuildHasher, Hasher};

/// Hash of a full block: of the node it continues and of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockHash(u64);

/// How block hashes are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockHashing {
    /// Chained over parent and tokens.
    #[default]
    Chained,
    /// Every block has the same hash: shows that a collision costs time and never changes output.
    AllEqual,
}

/// Full blocks by hash.
#[derive(Clone, Debug)]
pub(crate) struct BlockHashes {
    hashing: BlockHashing,
    listed: FixedHashMap<BlockHash, BlockId>,
}

impl BlockHashes {
    /// Creates an empty list.
    pub(crate) fn new(hashing: BlockHashing) -> Self {
        Self { hashing, listed: FixedHashMap::default() }
    }

    /// Returns the hash of a full block that continues the node numbered `parent`.
    pub(crate) fn hash(&self, parent: u32, tokens: &[TokenId]) -> BlockHash {
        if self.hashing == BlockHashing::AllEqual {
            return BlockHash(0);
        }
        let mut hasher = FixedState.build_hasher();
        hasher.write_u64(u64::from(parent) + 1);
        for &token in tokens {
            // Zeros would leave the hasher's first state, which is zero, as it is.
            hasher.write_u64(u64::from(token) + 1);
        }
        BlockHash(hasher.finish())
    }

    /// Returns the block listed under a hash.
    pub(crate) fn find(&self, hash: BlockHash) -> Option<BlockId> {
        self.listed.get(&hash).copied()
    }

    /// Lists a block unless its hash is taken.
    pub(crate) fn list(&mut self, hash: BlockHash, block: BlockId) {
        self.listed.entry(hash).or_insert(block);
    }

    /// Removes a block from the list, if it is there.
    pub(crate) fn unlist(&mut self, hash: BlockHash, block: BlockId) {
        if self.listed.get(&hash) == Some(&block) {
            self.listed.remove(&hash);
        }
    }

    /// Returns all listed blocks in no order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.listed.values().copied()
    }
}
