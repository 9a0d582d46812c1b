//! The blocks that may be handed out, in the order in which they are.
//!
//! An intrusive doubly linked list over block ids: free blocks are pushed to the front, cached
//! ones to the back, so that taking from the front uses every free block before the cached block
//! that was released longest ago. Every operation is O(1) and allocates nothing.
//!
//! Links are circular through a sentinel at index `num_blocks`; a block outside the list links to
//! [`DETACHED`] on both sides. Whether a listed block is free or cached is the pool's business.

use mini_infer_core::BlockId;

/// Marks a block that is not in the list.
const DETACHED: u32 = u32::MAX;

/// Neighbours of one block in the list.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// Blocks that may be handed out, front first.
#[derive(Clone, Debug)]
pub(crate) struct FreeList {
    /// One link per block, then the sentinel's.
    links: Vec<Link>,
}

impl FreeList {
    /// Creates a list of all blocks `0..num_blocks`, lowest id in front.
    pub(crate) fn full(num_blocks: u32) -> Self {
        assert!(num_blocks < DETACHED - 1, "block ids leave room for the sentinel and the mark");
        let sentinel = num_blocks;
        let links = (0..=sentinel)
            .map(|i| Link {
                previous: if i == 0 { sentinel } else { i - 1 },
                next: if i == sentinel { 0 } else { i + 1 },
            })
            .collect();
        Self { links }
    }

    /// Adds a block that will be the next to be taken.
    pub(crate) fn push_front(&mut self, block: BlockId) {
        let sentinel = self.sentinel();
        let next = self.links[sentinel as usize].next;
        self.insert(block, Link { previous: sentinel, next });
    }

    /// Adds a block that will be the last to be taken.
    pub(crate) fn push_back(&mut self, block: BlockId) {
        let sentinel = self.sentinel();
        let previous = self.links[sentinel as usize].previous;
        self.insert(block, Link { previous, next: sentinel });
    }

    /// Takes the block in front.
    pub(crate) fn pop_front(&mut self) -> Option<BlockId> {
        let sentinel = self.sentinel();
        let first = self.links[sentinel as usize].next;
        if first == sentinel {
            return None;
        }
        self.remove(BlockId(first));
        Some(BlockId(first))
    }

    /// Takes a block out of the middle.
    ///
    /// # Panics
    /// When the block is not in the list.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let link = self.links[block.index()];
        assert_ne!(link.next, DETACHED, "block {} is not in the free list", block.0);
        self.links[link.previous as usize].next = link.next;
        self.links[link.next as usize].previous = link.previous;
        self.links[block.index()] = Link { previous: DETACHED, next: DETACHED };
    }

    /// Walks the list from the front; costs its length.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        let sentinel = self.sentinel();
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

    fn insert(&mut self, block: BlockId, link: Link) {
        assert_eq!(self.links[block.index()].next, DETACHED, "block {} is listed twice", block.0);
        self.links[block.index()] = link;
        self.links[link.previous as usize].next = block.0;
        self.links[link.next as usize].previous = block.0;
    }

    fn sentinel(&self) -> u32 {
        u32::try_from(self.links.len() - 1).expect("checked in `full`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(list: &FreeList) -> Vec<u32> {
        list.iter().map(|block| block.0).collect()
    }

    #[test]
    fn blocks_are_taken_from_the_front_and_return_to_either_end() {
        let mut list = FreeList::full(3);
        assert_eq!(list.pop_front(), Some(BlockId(0)));
        assert_eq!(list.pop_front(), Some(BlockId(1)));
        list.push_back(BlockId(0));
        list.push_front(BlockId(1));
        assert_eq!(ids(&list), [1, 2, 0]);
        list.remove(BlockId(2));
        assert_eq!(ids(&list), [1, 0]);
    }

    #[test]
    fn an_emptied_list_gives_nothing_and_fills_again() {
        let mut list = FreeList::full(1);
        assert_eq!(list.pop_front(), Some(BlockId(0)));
        assert_eq!(list.pop_front(), None);
        list.push_back(BlockId(0));
        assert_eq!(ids(&list), [0]);
    }

    #[test]
    #[should_panic(expected = "listed twice")]
    fn a_block_is_never_listed_twice() {
        FreeList::full(2).push_back(BlockId(1));
    }
}
