//! Finds the block that already holds the KV of a prefix.
//!
//! Every full block has a [`BlockHash`] chained over its parent's hash and its tokens, starting
//! from a namespace (model, adapter, KV type, salt: whatever else decides the KV). The hash only
//! proposes a block. A hit also compares the block's tokens and the identity of its parent, which
//! was compared in the same way, so a hash collision can never serve wrong KV.
//!
//! A [`PrefixId`] stands for one exact sequence of tokens in one namespace and is never reused.
//! Blocks that hold the same prefix share its id; only one of them is listed, and another takes its
//! place when it is released after the listed one was evicted. The first block listed under a hash
//! stays; a colliding one is simply not found. All operations are O(block size), amortised.

use crate::block_pool::Retention;
use mini_infer_core::{BlockId, BlockSize, FixedHashMap, FixedState, Namespace, TokenId};
use std::hash::{BuildHasher, Hasher};

/// Hash of a full block, chained over its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BlockHash(u64);

/// How block hashes are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockHashing {
    /// Chained over parent and tokens.
    #[default]
    Chained,
    /// Every block has the same hash: shows that a collision costs hits and never changes output.
    AllEqual,
}

/// Identifies one exact prefix of full blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PrefixId(u64);

/// The prefix that a block continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    /// None: the block is the first of its sequence.
    Root(Namespace),
    /// The blocks up to here.
    Prefix(PrefixId),
}

/// Where a chain of full blocks ends, and how it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixTail {
    parent: Parent,
    hash: BlockHash,
}

impl PrefixTail {
    /// Returns the tail of the empty prefix.
    pub(crate) fn root(namespace: Namespace) -> Self {
        let hash = BlockHash(FixedState.hash_one(namespace));
        Self { parent: Parent::Root(namespace), hash }
    }
}

/// What a full block holds.
#[derive(Clone, Copy, Debug)]
struct BlockContent {
    parent: Parent,
    prefix: PrefixId,
    hash: BlockHash,
}

/// The index from block hashes to blocks.
#[derive(Clone, Debug)]
pub(crate) struct PrefixIndex {
    block_size: BlockSize,
    hashing: BlockHashing,
    listed: FixedHashMap<BlockHash, BlockId>,
    /// `None` for blocks that are not full, `[num_blocks]`.
    contents: Vec<Option<BlockContent>>,
    /// Tokens of full blocks, `[num_blocks, block_size]`.
    tokens: Vec<TokenId>,
    next_prefix: PrefixId,
}

impl PrefixIndex {
    /// Creates an empty index over `num_blocks` blocks.
    pub(crate) fn new(num_blocks: u32, block_size: BlockSize, hashing: BlockHashing) -> Self {
        let num_slots = num_blocks as usize * block_size.tokens() as usize;
        // Twice the most entries, so that the map never grows.
        let capacity = 2 * num_blocks as usize;
        Self {
            block_size,
            hashing,
            listed: FixedHashMap::with_capacity_and_hasher(capacity, FixedState),
            contents: vec![None; num_blocks as usize],
            tokens: vec![0; num_slots],
            next_prefix: PrefixId(0),
        }
    }

    /// Finds the block that continues `tail` with exactly `tokens`, one full block of them.
    pub(crate) fn find(
        &self,
        tail: PrefixTail,
        tokens: &[TokenId],
    ) -> Option<(BlockId, PrefixTail)> {
        let hash = self.chain(tail.hash, tokens);
        let &block = self.listed.get(&hash)?;
        let content = self.content(block);
        let same = content.parent == tail.parent && self.tokens_of(block) == tokens;
        same.then_some((block, PrefixTail { parent: Parent::Prefix(content.prefix), hash }))
    }

    /// Records that `block` continues `tail` with `tokens`, one full block of them, and lists it
    /// unless its hash is taken. Returns the tail after the block.
    pub(crate) fn insert(
        &mut self,
        block: BlockId,
        tail: PrefixTail,
        tokens: &[TokenId],
    ) -> PrefixTail {
        debug_assert!(self.contents[block.index()].is_none(), "block {} is full already", block.0);
        let hash = self.chain(tail.hash, tokens);
        let end = self.find(tail, tokens).map_or_else(
            || PrefixTail { parent: Parent::Prefix(self.fresh_prefix()), hash },
            |(_, end)| end,
        );
        let Parent::Prefix(prefix) = end.parent else {
            unreachable!("a prefix that ends with a block is not empty")
        };
        self.contents[block.index()] = Some(BlockContent { parent: tail.parent, prefix, hash });
        let slots = self.slots_of(block);
        self.tokens[slots].copy_from_slice(tokens);
        self.listed.entry(hash).or_insert(block);
        end
    }

    /// Decides what becomes of a block that nobody holds any longer: it is kept when it is the one
    /// listed under its hash, or can be because no other is; else it is forgotten.
    pub(crate) fn retire(&mut self, block: BlockId) -> Retention {
        let Some(content) = self.contents[block.index()] else { return Retention::Drop };
        if *self.listed.entry(content.hash).or_insert(block) == block {
            return Retention::Keep;
        }
        self.forget(block);
        Retention::Drop
    }

    /// Forgets what `block` held.
    pub(crate) fn forget(&mut self, block: BlockId) {
        let Some(content) = self.contents[block.index()].take() else { return };
        if self.listed.get(&content.hash) == Some(&block) {
            self.listed.remove(&content.hash);
        }
    }

    /// Tells whether a lookup can find `block`.
    pub(crate) fn is_listed(&self, block: BlockId) -> bool {
        let content = self.contents[block.index()];
        content.is_some_and(|content| self.listed.get(&content.hash) == Some(&block))
    }

    /// Tells whether `block` is recorded as full.
    pub(crate) fn is_recorded(&self, block: BlockId) -> bool {
        self.contents[block.index()].is_some()
    }

    /// Returns the number of blocks that lookups can find.
    pub(crate) fn num_listed(&self) -> usize {
        self.listed.len()
    }

    fn fresh_prefix(&mut self) -> PrefixId {
        let prefix = self.next_prefix;
        self.next_prefix = PrefixId(prefix.0 + 1);
        prefix
    }

    fn content(&self, block: BlockId) -> BlockContent {
        self.contents[block.index()].expect("a listed block has content")
    }

    fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[self.slots_of(block)]
    }

    fn slots_of(&self, block: BlockId) -> std::ops::Range<usize> {
        let start = self.block_size.slot(block, 0).index();
        start..start + self.block_size.tokens() as usize
    }

    fn chain(&self, parent: BlockHash, tokens: &[TokenId]) -> BlockHash {
        assert_eq!(tokens.len(), self.block_size.tokens() as usize, "only full blocks are hashed");
        if self.hashing == BlockHashing::AllEqual {
            return BlockHash(0);
        }
        let mut hasher = FixedState.build_hasher();
        hasher.write_u64(parent.0);
        for &token in tokens {
            // Zeros would leave the hasher's first state, which is zero, as it is.
            hasher.write_u64(u64::from(token) + 1);
        }
        BlockHash(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: BlockSize = match BlockSize::new(8) {
        Ok(size) => size,
        Err(_) => panic!("8 is a block size"),
    };
    const ROOT: Namespace = Namespace([0; 32]);

    fn index(hashing: BlockHashing) -> PrefixIndex {
        PrefixIndex::new(8, SIZE, hashing)
    }

    fn found(index: &PrefixIndex, tail: PrefixTail, tokens: &[TokenId]) -> Option<BlockId> {
        index.find(tail, tokens).map(|(block, _)| block)
    }

    #[test]
    fn equal_tokens_match_only_after_the_same_parent_and_in_the_same_namespace() {
        for hashing in [BlockHashing::Chained, BlockHashing::AllEqual] {
            let mut index = index(hashing);
            let root = PrefixTail::root(ROOT);
            let after_ones = index.insert(BlockId(0), root, &[1; 8]);
            assert_eq!(found(&index, root, &[1; 8]), Some(BlockId(0)));
            assert_eq!(found(&index, after_ones, &[1; 8]), None);
            assert_eq!(found(&index, PrefixTail::root(Namespace([9; 32])), &[1; 8]), None);
        }
    }

    #[test]
    fn equal_blocks_in_a_row_have_different_hashes() {
        let mut index = index(BlockHashing::Chained);
        let mut tail = PrefixTail::root(ROOT);
        for id in 0..8 {
            let next = index.insert(BlockId(id), tail, &[0; 8]);
            assert_eq!(index.find(tail, &[0; 8]), Some((BlockId(id), next)));
            tail = next;
        }
    }

    #[test]
    fn a_colliding_parent_never_lends_its_children() {
        let mut index = index(BlockHashing::AllEqual);
        let root = PrefixTail::root(ROOT);
        let after_ones = index.insert(BlockId(0), root, &[1; 8]);
        let after_twos = index.insert(BlockId(1), root, &[2; 8]);
        index.forget(BlockId(0));
        index.insert(BlockId(2), after_ones, &[3; 8]);
        assert_eq!(found(&index, after_ones, &[3; 8]), Some(BlockId(2)));
        assert_eq!(found(&index, after_twos, &[3; 8]), None);
    }

    #[test]
    fn a_duplicate_is_not_kept_beside_the_original() {
        let mut index = index(BlockHashing::Chained);
        let root = PrefixTail::root(ROOT);
        index.insert(BlockId(0), root, &[1; 8]);
        index.insert(BlockId(1), root, &[1; 8]);
        assert_eq!(index.retire(BlockId(1)), Retention::Drop);
        assert!(!index.is_recorded(BlockId(1)));
        assert_eq!(found(&index, root, &[1; 8]), Some(BlockId(0)));
    }

    #[test]
    fn a_duplicate_takes_the_place_of_the_evicted_original_with_all_its_children() {
        let mut index = index(BlockHashing::Chained);
        let root = PrefixTail::root(ROOT);
        let tail = index.insert(BlockId(0), root, &[1; 8]);
        assert_eq!(index.insert(BlockId(1), root, &[1; 8]), tail);
        index.insert(BlockId(2), tail, &[2; 8]);
        assert_eq!(index.retire(BlockId(0)), Retention::Keep);
        index.forget(BlockId(0));
        assert_eq!(index.find(root, &[1; 8]), None);
        assert_eq!(index.retire(BlockId(1)), Retention::Keep);
        assert_eq!(index.find(root, &[1; 8]), Some((BlockId(1), tail)));
        assert_eq!(found(&index, tail, &[2; 8]), Some(BlockId(2)));
    }
}
