//! Finds the blocks that already hold the KV of a prompt's start.
//!
//! A tree of blocks under one root for each namespace: a block's place in it stands for all tokens
//! from the start, so two blocks never stand for the same ones, and tokens are compared on the way
//! to every hit. A full block may have children; one that is not full, the tail that an ended
//! sequence left behind, is a leaf. Among siblings no block's tokens are the start of another's:
//! the shorter one would never be the better find, so it is not kept.
//!
//! The tree keeps the tokens of every block that is or may be in it, also of open tails. A lookup
//! costs the tokens that match; at each block it goes on to an only child directly, among siblings
//! by the block's hash, and where that fails to the sibling that shares most tokens, by a walk of
//! about the logarithm of the siblings. Nothing depends on the size of the pool.

use crate::block_hashes::{BlockHashes, BlockHashing};
use crate::prefix_roots::PrefixRoots;
use crate::sibling_trie::{Link, SiblingTries, Target};
use mini_infer_core::{BlockId, BlockSize, Namespace, TokenId};
use std::ops::Range;

/// What a block continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// Nothing: the block is the first of its sequence.
    Root(Namespace),
    /// The full block before it.
    Block(BlockId),
}

/// A block that shares its first tokens with what follows a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartialMatch {
    pub(crate) block: BlockId,
    /// Tokens in common, at least 1 and fewer than a block has.
    pub(crate) num_tokens: u32,
}

/// What became of a block that was to be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insertion {
    /// It can be found.
    Added,
    /// It can be found, in the place of a block that held only the start of its tokens.
    Replaced(BlockId),
    /// It is not needed, because this block starts with the same tokens.
    Known(BlockId),
}

/// The place of a block or a namespace in the tree.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Number of the node that this one continues.
    parent: u32,
    /// The trie of the blocks that continue this one.
    children: Link,
    /// Tokens of the block; 0 when it is not in the tree.
    num_tokens: u32,
    /// Whether the block's hash was listed: it had siblings when it was inserted.
    is_hashed: bool,
}

impl Node {
    const ABSENT: Self =
        Self { parent: u32::MAX, children: Link::NOTHING, num_tokens: 0, is_hashed: false };
}

/// All blocks that lookups can find.
#[derive(Clone, Debug)]
pub(crate) struct PrefixTree {
    block_size: BlockSize,
    num_blocks: u32,
    /// Blocks by id, then namespaces by number.
    nodes: Vec<Node>,
    /// `[num_blocks, block_size]`.
    tokens: Vec<TokenId>,
    roots: PrefixRoots,
    tries: SiblingTries,
    hashes: BlockHashes,
}

impl PrefixTree {
    /// Creates an empty tree for blocks `0..num_blocks`.
    ///
    /// # Panics
    /// When slots do not fit into 32 bits.
    pub(crate) fn new(num_blocks: u32, block_size: BlockSize, hashing: BlockHashing) -> Self {
        assert!(num_blocks < Link::MAX_BLOCKS, "block ids leave room for links to branches");
        let num_slots = num_blocks.checked_mul(block_size.tokens());
        let num_slots = num_slots.expect("slots are numbered with 32 bits");
        Self {
            block_size,
            num_blocks,
            nodes: vec![Node::ABSENT; num_blocks as usize],
            tokens: vec![0; num_slots as usize],
            roots: PrefixRoots::default(),
            tries: SiblingTries::default(),
            hashes: BlockHashes::new(hashing),
        }
    }

    /// Appends to `blocks` the longest run of full blocks that holds the start of `tokens`, and
    /// returns the block that shares most of what follows, if any shares some.
    pub(crate) fn find(
        &self,
        namespace: &Namespace,
        tokens: &[TokenId],
        blocks: &mut Vec<BlockId>,
    ) -> Option<PartialMatch> {
        let size = self.block_size.tokens() as usize;
        let mut node = self.num_blocks + self.roots.find(namespace)?;
        let mut rest = tokens;
        loop {
            let block = self.nearest_child(node, rest)?;
            let key = self.tokens_of(block);
            if key.len() == size && rest.starts_with(key) {
                blocks.push(block);
                node = block.0;
                rest = &rest[size..];
                continue;
            }
            let common = num_common(key, rest);
            let num_tokens = u32::try_from(common).expect("a block has at most 64 tokens");
            return (num_tokens > 0).then_some(PartialMatch { block, num_tokens });
        }
    }

    /// Makes a block that continues `parent` with its first `num_tokens` tokens one that lookups
    /// find, unless one that does as much is there. A block in whose place it comes is gone.
    pub(crate) fn insert(&mut self, block: BlockId, parent: Parent, num_tokens: u32) -> Insertion {
        debug_assert!(!self.contains(block), "block {} is in the tree already", block.0);
        let parent = self.parent_number(parent);
        let key = &self.tokens[slots(self.block_size, block, num_tokens)];
        let mut insertion = Insertion::Added;
        let mut is_hashed = false;
        match self.nearest_child(parent, key) {
            None => self.nodes[parent as usize].children = Link::block(block),
            Some(nearest) => {
                let other_len = self.nodes[nearest.index()].num_tokens;
                let other = &self.tokens[slots(self.block_size, nearest, other_len)];
                let common = num_common(key, other);
                if common == key.len() {
                    return Insertion::Known(nearest);
                }
                let root = &mut self.nodes[parent as usize].children;
                if common < other.len() {
                    self.tries.insert(root, block, key, other, common);
                } else {
                    self.tries.replace(root, nearest, block, key);
                    self.nodes[nearest.index()] = Node::ABSENT;
                    insertion = Insertion::Replaced(nearest);
                }
                is_hashed = num_tokens == self.block_size.tokens();
                if is_hashed {
                    self.hashes.list(self.hashes.hash(parent, key), block);
                }
            }
        }
        self.nodes[block.index()] = Node { parent, children: Link::NOTHING, num_tokens, is_hashed };
        insertion
    }

    /// Takes out a block without children.
    ///
    /// # Panics
    /// When it has some: they could no longer be reached.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let node = std::mem::replace(&mut self.nodes[block.index()], Node::ABSENT);
        assert_eq!(node.children, Link::NOTHING, "block {} goes before its children", block.0);
        let key = &self.tokens[slots(self.block_size, block, node.num_tokens)];
        let siblings = &mut self.nodes[node.parent as usize].children;
        self.tries.remove(siblings, block, key);
        if node.is_hashed {
            self.hashes.unlist(self.hashes.hash(node.parent, key), block);
        }
        if *siblings == Link::NOTHING && node.parent >= self.num_blocks {
            self.roots.remove(node.parent - self.num_blocks);
        }
    }

    /// Tells whether lookups can find a block.
    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.nodes[block.index()].num_tokens > 0
    }

    /// Notes tokens of a block that is not in the tree, from slot `first` of the block on.
    pub(crate) fn write_tokens(&mut self, block: BlockId, first: u32, tokens: &[TokenId]) {
        let start = self.block_size.slot(block, first).index();
        match tokens {
            // Decode notes one token at a time, which is not worth a call.
            &[token] => self.tokens[start] = token,
            _ => self.tokens[start..start + tokens.len()].copy_from_slice(tokens),
        }
    }

    /// Notes that the first `num_tokens` tokens of block `to` are those of block `from`.
    pub(crate) fn copy_tokens(&mut self, from: BlockId, to: BlockId, num_tokens: u32) {
        let from = slots(self.block_size, from, num_tokens);
        self.tokens.copy_within(from, self.block_size.slot(to, 0).index());
    }

    /// Returns the first `num_tokens` tokens noted of a block.
    pub(crate) fn tokens(&self, block: BlockId, num_tokens: u32) -> &[TokenId] {
        &self.tokens[slots(self.block_size, block, num_tokens)]
    }

    /// Returns the tokens of a block in the tree.
    fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        self.tokens(block, self.nodes[block.index()].num_tokens)
    }

    /// Returns the child that starts with `tokens`, or else shares most of them.
    fn nearest_child(&self, node: u32, tokens: &[TokenId]) -> Option<BlockId> {
        let children = self.nodes[node as usize].children;
        match children.target() {
            Target::Nothing => None,
            Target::Block(only) => Some(only),
            Target::Branch(_) => {
                let hashed = self.hashed_child(node, tokens);
                hashed.or_else(|| self.tries.nearest(children, tokens))
            }
        }
    }

    /// Returns the child that is listed under the hash of the full block at the start of `tokens`
    /// and holds exactly that.
    fn hashed_child(&self, node: u32, tokens: &[TokenId]) -> Option<BlockId> {
        let full = tokens.get(..self.block_size.tokens() as usize)?;
        let block = self.hashes.find(self.hashes.hash(node, full))?;
        let is_child = self.nodes[block.index()].parent == node;
        (is_child && self.tokens_of(block) == full).then_some(block)
    }

    /// Returns the number of the node that a block is to continue.
    fn parent_number(&mut self, parent: Parent) -> u32 {
        match parent {
            Parent::Block(block) => block.0,
            Parent::Root(namespace) => {
                let number = self.num_blocks + self.roots.find_or_add(namespace);
                if number as usize == self.nodes.len() {
                    self.nodes.push(Node::ABSENT);
                }
                number
            }
        }
    }

    /// Checks the invariants in the module header; costs the number of blocks.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate.
    pub(crate) fn check_invariants(&self) {
        let mut num_roots = 0;
        let mut num_reached = 0;
        let size = self.block_size.tokens();
        for (number, node) in (0..).zip(&self.nodes) {
            let is_root = number >= self.num_blocks;
            let mut children = self.tries.leaves(node.children);
            num_roots += usize::from(is_root && !children.is_empty());
            let may_have_children = is_root || node.num_tokens == size;
            assert!(may_have_children || children.is_empty(), "children of node {number}");
            for child in &children {
                assert_eq!(self.nodes[child.index()].parent, number, "parent of {child:?}");
                assert_eq!(self.nearest_child(number, self.tokens_of(*child)), Some(*child));
            }
            num_reached += children.len();
            children.sort_unstable_by_key(|&child| self.tokens_of(child));
            let are_apart =
                |pair: &[BlockId]| !self.tokens_of(pair[1]).starts_with(self.tokens_of(pair[0]));
            assert!(children.windows(2).all(are_apart), "a child of {number} is another's start");
        }
        assert_eq!(num_roots, self.roots.len(), "namespaces without blocks");
        let blocks = &self.nodes[..self.num_blocks as usize];
        let num_present = blocks.iter().filter(|node| node.num_tokens > 0).count();
        assert_eq!(num_reached, num_present, "a block in the tree cannot be reached");
        assert!(self.hashes.blocks().all(|block| self.nodes[block.index()].is_hashed));
    }
}

/// Returns the slots of the first `num_tokens` tokens of a block.
fn slots(block_size: BlockSize, block: BlockId, num_tokens: u32) -> Range<usize> {
    let start = block_size.slot(block, 0).index();
    start..start + num_tokens as usize
}

/// Returns how many tokens two rows have in common at their start.
fn num_common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: BlockSize = match BlockSize::new(8) {
        Ok(size) => size,
        Err(_) => panic!("8 is a block size"),
    };
    const NAMESPACE: Namespace = Namespace([0; 32]);
    const ROOT: Parent = Parent::Root(NAMESPACE);

    fn tree(hashing: BlockHashing) -> PrefixTree {
        PrefixTree::new(8, SIZE, hashing)
    }

    fn insert(tree: &mut PrefixTree, id: u32, parent: Parent, tokens: &[TokenId]) -> Insertion {
        let num_tokens = u32::try_from(tokens.len()).unwrap();
        tree.write_tokens(BlockId(id), 0, tokens);
        let insertion = tree.insert(BlockId(id), parent, num_tokens);
        tree.check_invariants();
        insertion
    }

    /// Returns the ids of the full blocks found, and the block found behind them with its tokens.
    fn find(tree: &PrefixTree, tokens: &[TokenId]) -> (Vec<u32>, Option<(u32, u32)>) {
        let mut blocks = Vec::new();
        let partial = tree.find(&NAMESPACE, tokens, &mut blocks);
        let partial = partial.map(|found| (found.block.0, found.num_tokens));
        (blocks.iter().map(|block| block.0).collect(), partial)
    }

    #[test]
    fn equal_tokens_match_only_after_the_same_parent_and_in_the_same_namespace() {
        for hashing in [BlockHashing::Chained, BlockHashing::AllEqual] {
            let mut tree = tree(hashing);
            insert(&mut tree, 0, ROOT, &[1; 8]);
            insert(&mut tree, 1, ROOT, &[2; 8]);
            insert(&mut tree, 2, Parent::Block(BlockId(1)), &[1; 8]);
            let other = Parent::Root(Namespace([9; 32]));
            insert(&mut tree, 3, other, &[3; 8]);
            assert_eq!(find(&tree, &[1; 16]), (vec![0], None));
            assert_eq!(find(&tree, &[2; 16]), (vec![1], None));
            assert_eq!(find(&tree, &[3; 16]), (vec![], None));
            assert_eq!(find(&tree, &[[2; 8], [1; 8]].concat()), (vec![1, 2], None));
        }
    }

    #[test]
    fn the_sibling_that_shares_most_tokens_is_found() {
        let mut tree = tree(BlockHashing::Chained);
        insert(&mut tree, 0, ROOT, &[1, 2, 3, 4, 5, 6, 7, 8]);
        insert(&mut tree, 1, ROOT, &[1, 2, 3, 9]);
        insert(&mut tree, 2, ROOT, &[1, 2, 7, 7, 7, 7, 7, 7]);
        assert_eq!(find(&tree, &[1, 2, 3, 9, 9]), (vec![], Some((1, 4))));
        assert_eq!(find(&tree, &[1, 2, 3, 4, 5, 6, 7]), (vec![], Some((0, 7))));
        assert_eq!(find(&tree, &[1, 2, 7]), (vec![], Some((2, 3))));
        assert_eq!(find(&tree, &[2]), (vec![], None));
    }

    #[test]
    fn of_two_blocks_with_the_same_start_the_longer_is_kept() {
        let mut tree = tree(BlockHashing::Chained);
        assert_eq!(insert(&mut tree, 0, ROOT, &[1, 2, 3]), Insertion::Added);
        assert_eq!(insert(&mut tree, 1, ROOT, &[1, 2]), Insertion::Known(BlockId(0)));
        assert_eq!(insert(&mut tree, 2, ROOT, &[1, 2, 3]), Insertion::Known(BlockId(0)));
        let full = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(insert(&mut tree, 3, ROOT, &full), Insertion::Replaced(BlockId(0)));
        assert_eq!(insert(&mut tree, 4, ROOT, &full), Insertion::Known(BlockId(3)));
        assert_eq!(find(&tree, &full), (vec![3], None));
    }

    #[test]
    fn a_namespace_is_forgotten_with_its_last_block() {
        let mut tree = tree(BlockHashing::Chained);
        for i in 0..100 {
            let namespace = Parent::Root(Namespace([i; 32]));
            insert(&mut tree, 0, namespace, &[1; 8]);
            insert(&mut tree, 1, namespace, &[2; 8]);
            insert(&mut tree, 2, Parent::Block(BlockId(1)), &[2; 8]);
            for id in [0, 2, 1] {
                tree.remove(BlockId(id));
                tree.check_invariants();
            }
        }
        assert_eq!(tree.nodes.len(), 8 + 1);
    }

    #[test]
    #[should_panic(expected = "before its children")]
    fn a_block_cannot_go_before_those_that_continue_it() {
        let mut tree = tree(BlockHashing::Chained);
        insert(&mut tree, 0, ROOT, &[1; 8]);
        insert(&mut tree, 1, Parent::Block(BlockId(0)), &[1; 8]);
        tree.remove(BlockId(0));
    }
}
