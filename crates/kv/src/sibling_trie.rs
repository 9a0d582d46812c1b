//! Finds, among blocks that continue the same prefix, the one that shares most tokens with a query.
//!
//! The siblings of one parent are the leaves of a crit-bit tree (a PATRICIA trie, Morrison, JACM
//! 1968; the layout follows D. J. Bernstein's description): every branch names the first bit in
//! which the leaves on its two sides differ, and bits rise on the way down. Walking down by the
//! bits of a query therefore ends at a leaf that shares the longest prefix with it, although the
//! branches skipped bits unseen. A walk takes as many branches as the leaf has relatives that part
//! from it at different bits: about the logarithm of the siblings, at most the bits of a block.
//!
//! Invariant: no leaf's tokens are the start of another's. The branches of all parents lie in one
//! arena; a parent with one child has none.

use mini_infer_core::{BlockId, TokenId};

/// Where a walk goes on: at nothing, a block or a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link(u32);

/// What a [`Link`] leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Nothing,
    Block(BlockId),
    Branch(usize),
}

/// Set in links to branches; the rest is the branch's index.
const BRANCH: u32 = 1 << 31;

impl Link {
    /// The link of a parent without children.
    pub(crate) const NOTHING: Self = Self(u32::MAX);

    /// Most blocks that links can tell apart from branches.
    pub(crate) const MAX_BLOCKS: u32 = BRANCH;

    pub(crate) const fn block(block: BlockId) -> Self {
        Self(block.0)
    }

    fn branch(index: usize) -> Self {
        // There are fewer branches than blocks, of which there are no more than `MAX_BLOCKS`.
        Self(BRANCH | u32::try_from(index).expect("branches are fewer than blocks"))
    }

    pub(crate) const fn target(self) -> Target {
        if self.0 & BRANCH == 0 {
            Target::Block(BlockId(self.0))
        } else if self.0 == u32::MAX {
            Target::Nothing
        } else {
            Target::Branch((self.0 ^ BRANCH) as usize)
        }
    }
}

/// A bit of a row of tokens, counted from the first token's most significant bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BitIndex(u32);

impl BitIndex {
    /// Returns the first bit in which tokens at `position` differ.
    fn of_difference(position: usize, a: TokenId, b: TokenId) -> Self {
        let position = u32::try_from(position).expect("a block has at most 64 tokens");
        Self(position * TokenId::BITS + (a ^ b).leading_zeros())
    }

    /// Returns the side of a branch on which `tokens` lie. Where the row ends before the bit, both
    /// sides share all of it, so that either will do.
    fn side_of(self, tokens: &[TokenId]) -> usize {
        let token = tokens.get((self.0 / TokenId::BITS) as usize).copied().unwrap_or(0);
        let from_low = TokenId::BITS - 1 - self.0 % TokenId::BITS;
        usize::from(token >> from_low & 1 == 1)
    }
}

/// A place where the siblings on one side differ from those on the other.
#[derive(Clone, Copy, Debug)]
struct Branch {
    bit: BitIndex,
    /// By the value of the bit.
    sides: [Link; 2],
}

/// The branches of all sets of siblings.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiblingTries {
    branches: Vec<Branch>,
    /// Indices of unused branches.
    unused: Vec<usize>,
}

impl SiblingTries {
    /// Returns a sibling that shares the longest prefix with `query`.
    pub(crate) fn nearest(&self, root: Link, query: &[TokenId]) -> Option<BlockId> {
        let mut link = root;
        loop {
            match link.target() {
                Target::Nothing => return None,
                Target::Block(block) => return Some(block),
                Target::Branch(index) => {
                    let branch = &self.branches[index];
                    link = branch.sides[branch.bit.side_of(query)];
                }
            }
        }
    }

    /// Adds `block` with tokens `key` beside its nearest sibling, whose tokens `other` first differ
    /// from them at `position`.
    pub(crate) fn insert(
        &mut self,
        root: &mut Link,
        block: BlockId,
        key: &[TokenId],
        other: &[TokenId],
        position: usize,
    ) {
        let bit = BitIndex::of_difference(position, key[position], other[position]);
        let side = bit.side_of(key);
        let index = self.unused.pop().unwrap_or(self.branches.len());
        let mut parent = None;
        let mut link = *root;
        while let Target::Branch(at) = link.target() {
            let branch = &self.branches[at];
            if branch.bit > bit {
                break;
            }
            let next = branch.bit.side_of(key);
            parent = Some((at, next));
            link = branch.sides[next];
        }
        let mut sides = [link; 2];
        sides[side] = Link::block(block);
        let branch = Branch { bit, sides };
        match self.branches.get_mut(index) {
            Some(unused) => *unused = branch,
            None => self.branches.push(branch),
        }
        *self.link_mut(root, parent) = Link::branch(index);
    }

    /// Puts `new` in the place of `old`, whose tokens are the start of its tokens `key`.
    pub(crate) fn replace(&mut self, root: &mut Link, old: BlockId, new: BlockId, key: &[TokenId]) {
        let (_, parent) = self.way_to(*root, old, key);
        *self.link_mut(root, parent) = Link::block(new);
    }

    /// Takes out `block` with tokens `key`.
    pub(crate) fn remove(&mut self, root: &mut Link, block: BlockId, key: &[TokenId]) {
        let (grandparent, parent) = self.way_to(*root, block, key);
        match parent {
            None => *root = Link::NOTHING,
            Some((index, side)) => {
                let sibling = self.branches[index].sides[1 - side];
                *self.link_mut(root, grandparent) = sibling;
                self.unused.push(index);
            }
        }
    }

    /// Returns all siblings, for checks; costs their number.
    pub(crate) fn leaves(&self, root: Link) -> Vec<BlockId> {
        let mut leaves = Vec::new();
        let mut links = vec![root];
        while let Some(link) = links.pop() {
            match link.target() {
                Target::Nothing => {}
                Target::Block(block) => leaves.push(block),
                Target::Branch(index) => links.extend(self.branches[index].sides),
            }
        }
        leaves
    }

    /// Returns the last two steps of the walk to `block`: the branches and their sides taken.
    fn way_to(&self, root: Link, block: BlockId, key: &[TokenId]) -> (Option<Step>, Option<Step>) {
        let (mut grandparent, mut parent) = (None, None);
        let mut link = root;
        while let Target::Branch(index) = link.target() {
            let branch = &self.branches[index];
            let side = branch.bit.side_of(key);
            grandparent = parent.replace((index, side));
            link = branch.sides[side];
        }
        assert_eq!(link, Link::block(block), "block {} is not where its tokens lead", block.0);
        (grandparent, parent)
    }

    fn link_mut<'a>(&'a mut self, root: &'a mut Link, step: Option<Step>) -> &'a mut Link {
        match step {
            None => root,
            Some((index, side)) => &mut self.branches[index].sides[side],
        }
    }
}

/// A branch on a walk and the side that was taken.
type Step = (usize, usize);

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [&[TokenId]; 6] =
        [&[1, 2, 3, 4], &[1, 2, 3, 5], &[1, 2, 9], &[7], &[u32::MAX, 0, 0, 0], &[0, 0, 0, 0]];

    fn common(a: &[TokenId], b: &[TokenId]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    fn insert(tries: &mut SiblingTries, root: &mut Link, id: u32) {
        let key = ROWS[id as usize];
        match tries.nearest(*root, key) {
            None => *root = Link::block(BlockId(id)),
            Some(nearest) => {
                let other = ROWS[nearest.index()];
                tries.insert(root, BlockId(id), key, other, common(key, other));
            }
        }
    }

    #[test]
    fn the_nearest_sibling_shares_the_longest_prefix_whatever_was_added_and_removed() {
        let queries: [&[TokenId]; 7] =
            [&[1, 2, 3, 6], &[1, 2, 9, 9], &[1], &[], &[7, 7], &[0, 0, 1], &[u32::MAX]];
        let ids = 0..6;
        for gone in ids.clone() {
            let mut tries = SiblingTries::default();
            let mut root = Link::NOTHING;
            ids.clone().for_each(|id| insert(&mut tries, &mut root, id));
            tries.remove(&mut root, BlockId(gone), ROWS[gone as usize]);
            for query in queries {
                let nearest = tries.nearest(root, query).unwrap();
                let others = ids.clone().filter(|&id| id != gone);
                let longest = others.map(|id| common(ROWS[id as usize], query)).max();
                assert_eq!(Some(common(ROWS[nearest.index()], query)), longest, "{query:?}");
            }
            insert(&mut tries, &mut root, gone);
            ids.clone().for_each(|id| tries.remove(&mut root, BlockId(id), ROWS[id as usize]));
            assert_eq!(root, Link::NOTHING);
            assert_eq!(tries.branches.len(), tries.unused.len());
        }
    }

    #[test]
    fn a_longer_row_takes_the_place_of_its_start() {
        let mut tries = SiblingTries::default();
        let mut root = Link::NOTHING;
        (2..5).for_each(|id| insert(&mut tries, &mut root, id));
        let longer = [1, 2, 9, 4];
        tries.replace(&mut root, BlockId(2), BlockId(8), &longer);
        assert_eq!(tries.nearest(root, &[1, 2, 9]), Some(BlockId(8)));
        tries.remove(&mut root, BlockId(8), &longer);
        assert_ne!(tries.nearest(root, &[1, 2, 9]), Some(BlockId(8)));
    }
}
