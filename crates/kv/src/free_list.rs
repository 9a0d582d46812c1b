//! The blocks that no sequence holds, in the order in which they are handed out.
//!
//! Two intrusive doubly linked lists over block ids that share their links, since no block is in
//! both: free blocks, of which the one freed last is taken first, and cached ones, of which the one
//! released first is taken first. Every operation is O(1) and allocates nothing.
//!
//! Links are circular through one sentinel for each list, at the indices from `num_blocks`; a block
//! in neither list links to [`DETACHED`] on both sides.

use mini_infer_core::BlockId;

/// Marks a block that is in no list.
const DETACHED: u32 = u32::MAX;

/// Neighbours of one block in its list.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// Blocks that may be handed out.
#[derive(Clone, Debug)]
pub(crate) struct FreeList {
    /// One link per block, then the sentinels' of the free and of the cached list.
    links: Vec<Link>,
}

impl FreeList {
    /// Creates lists over blocks `0..num_blocks`: all free, lowest id in front.
    pub(crate) fn full(num_blocks: u32) -> Self {
        assert!(num_blocks < DETACHED - 2, "block ids leave room for the sentinels and the mark");
        let (free, cached) = (num_blocks, num_blocks + 1);
        let mut links: Vec<Link> = (0..=free)
            .map(|i| Link {
                previous: if i == 0 { free } else { i - 1 },
                next: if i == free { 0 } else { i + 1 },
            })
            .collect();
        links.push(Link { previous: cached, next: cached });
        Self { links }
    }

    /// Adds a free block, the next to be taken.
    pub(crate) fn push_free(&mut self, block: BlockId) {
        let free = self.free_sentinel();
        let next = self.links[free as usize].next;
        self.insert(block, Link { previous: free, next });
    }

    /// Adds a cached block, the last to be taken.
    pub(crate) fn push_cached(&mut self, block: BlockId) {
        let cached = self.free_sentinel() + 1;
        let previous = self.links[cached as usize].previous;
        self.insert(block, Link { previous, next: cached });
    }

    /// Takes the free block in front.
    pub(crate) fn pop_free(&mut self) -> Option<BlockId> {
        self.pop(self.free_sentinel())
    }

    /// Takes the cached block in front.
    pub(crate) fn pop_cached(&mut self) -> Option<BlockId> {
        self.pop(self.free_sentinel() + 1)
    }

    /// Takes a block out of the middle.
    ///
    /// # Panics
    /// When the block is in no list.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let link = self.links[block.index()];
        assert_ne!(link.next, DETACHED, "block {} is not in the free list", block.0);
        self.links[link.previous as usize].next = link.next;
        self.links[link.next as usize].previous = link.previous;
        self.links[block.index()] = Link { previous: DETACHED, next: DETACHED };
    }

    /// Walks the free blocks from the front; costs their number.
    pub(crate) fn free(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.iter(self.free_sentinel())
    }

    /// Walks the cached blocks from the front; costs their number.
    pub(crate) fn cached(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.iter(self.free_sentinel() + 1)
    }

    fn iter(&self, sentinel: u32) -> impl Iterator<Item = BlockId> + '_ {
        let mut at = self.links[sentinel as usize].next;
        std::iter::from_fn(move || {
            let block = BlockId(at);
            if at == sentinel {
                return None;
            }
            at = self.links[block.index()].next;
            Some(block)
        })
    }

    fn pop(&mut self, sentinel: u32) -> Option<BlockId> {
        let first = self.links[sentinel as usize].next;
        if first == sentinel {
            return None;
        }
        self.remove(BlockId(first));
        Some(BlockId(first))
    }

    fn insert(&mut self, block: BlockId, link: Link) {
        assert_eq!(self.links[block.index()].next, DETACHED, "block {} is listed twice", block.0);
        self.links[block.index()] = link;
        self.links[link.previous as usize].next = block.0;
        self.links[link.next as usize].previous = block.0;
    }

    fn free_sentinel(&self) -> u32 {
        u32::try_from(self.links.len() - 2).expect("checked in `full`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(blocks: impl Iterator<Item = BlockId>) -> Vec<u32> {
        blocks.map(|block| block.0).collect()
    }

    #[test]
    fn free_blocks_return_to_the_front_and_cached_ones_to_the_back() {
        let mut list = FreeList::full(4);
        for id in 0..4 {
            assert_eq!(list.pop_free(), Some(BlockId(id)));
        }
        list.push_free(BlockId(0));
        list.push_free(BlockId(1));
        list.push_cached(BlockId(3));
        list.push_cached(BlockId(2));
        assert_eq!((ids(list.free()), ids(list.cached())), (vec![1, 0], vec![3, 2]));
        list.remove(BlockId(0));
        assert_eq!((list.pop_free(), list.pop_free()), (Some(BlockId(1)), None));
        assert_eq!(list.pop_cached(), Some(BlockId(3)));
    }

    #[test]
    fn an_emptied_list_gives_nothing_and_fills_again() {
        let mut list = FreeList::full(1);
        assert_eq!(list.pop_free(), Some(BlockId(0)));
        assert_eq!((list.pop_free(), list.pop_cached()), (None, None));
        list.push_cached(BlockId(0));
        assert_eq!(ids(list.cached()), [0]);
    }

    #[test]
    #[should_panic(expected = "listed twice")]
    fn a_block_is_never_listed_twice() {
        FreeList::full(2).push_cached(BlockId(1));
    }
}
