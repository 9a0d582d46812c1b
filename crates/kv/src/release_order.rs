//! What may be evicted, in the order in which it was released.
//!
//! One intrusive doubly linked list of cached blocks and of window parts that no sequence sees any
//! longer, so that whichever was released first is evicted first. Every operation is O(1) and
//! allocates nothing.
//!
//! A block's entry has its id as index; the entry of its window part comes `num_blocks` later. Links
//! are circular through a sentinel behind the last entry; an entry outside the list links to
//! [`DETACHED`] on both sides.

use mini_infer_core::BlockId;

/// Marks an entry that is not in the list.
const DETACHED: u32 = u32::MAX;

/// What can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evictable {
    /// A cached block with all it holds.
    Block(BlockId),
    /// What the sliding-window layers hold in a block that is active or cached.
    WindowPart(BlockId),
}

/// Neighbours of one entry in the list.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    previous: u32,
    next: u32,
}

/// The evictable, longest released first.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseOrder {
    num_blocks: u32,
    sentinel: u32,
    links: Vec<Neighbours>,
}

impl ReleaseOrder {
    /// Creates an empty list for blocks `0..num_blocks` without window parts.
    pub(crate) fn of_blocks(num_blocks: u32) -> Self {
        Self::new(num_blocks, num_blocks)
    }

    /// Creates an empty list for blocks `0..num_blocks` and their window parts.
    pub(crate) fn of_blocks_and_window_parts(num_blocks: u32) -> Self {
        let num_entries = num_blocks.checked_mul(2).expect("blocks are numbered with 31 bits");
        Self::new(num_blocks, num_entries)
    }

    fn new(num_blocks: u32, num_entries: u32) -> Self {
        assert!(num_entries < DETACHED, "entries leave room for the sentinel and the mark");
        let mut links =
            vec![Neighbours { previous: DETACHED, next: DETACHED }; num_entries as usize];
        links.push(Neighbours { previous: num_entries, next: num_entries });
        Self { num_blocks, sentinel: num_entries, links }
    }

    /// Adds what was just released, the last to be evicted.
    ///
    /// # Panics
    /// When it is listed.
    pub(crate) fn push(&mut self, released: Evictable) {
        let entry = self.entry(released);
        assert_eq!(self.links[entry as usize].next, DETACHED, "{released:?} is listed twice");
        let previous = self.links[self.sentinel as usize].previous;
        self.links[entry as usize] = Neighbours { previous, next: self.sentinel };
        self.links[previous as usize].next = entry;
        self.links[self.sentinel as usize].previous = entry;
    }

    /// Takes what was released first.
    pub(crate) fn pop(&mut self) -> Option<Evictable> {
        let first = self.links[self.sentinel as usize].next;
        (first != self.sentinel).then(|| {
            self.unlink(first);
            self.evictable(first)
        })
    }

    /// Takes something out of the middle, because it is needed again or gone.
    ///
    /// # Panics
    /// When it is not listed.
    pub(crate) fn remove(&mut self, item: Evictable) {
        assert!(self.contains(item), "{item:?} is not listed");
        self.unlink(self.entry(item));
    }

    /// Tells whether something is listed.
    pub(crate) fn contains(&self, item: Evictable) -> bool {
        self.links[self.entry(item) as usize].next != DETACHED
    }

    /// Walks the list from the longest released on; costs its length.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Evictable> + '_ {
        let mut at = self.links[self.sentinel as usize].next;
        std::iter::from_fn(move || {
            let entry = at;
            (entry != self.sentinel).then(|| {
                at = self.links[entry as usize].next;
                self.evictable(entry)
            })
        })
    }

    fn unlink(&mut self, entry: u32) {
        let Neighbours { previous, next } = self.links[entry as usize];
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
        self.links[entry as usize] = Neighbours { previous: DETACHED, next: DETACHED };
    }

    fn entry(&self, item: Evictable) -> u32 {
        match item {
            Evictable::Block(block) => block.0,
            Evictable::WindowPart(block) => self.num_blocks + block.0,
        }
    }

    fn evictable(&self, entry: u32) -> Evictable {
        match entry.checked_sub(self.num_blocks) {
            None => Evictable::Block(BlockId(entry)),
            Some(block) => Evictable::WindowPart(BlockId(block)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_window_parts_go_in_the_order_of_their_release() {
        let mut order = ReleaseOrder::of_blocks_and_window_parts(3);
        let [block, part] = [Evictable::Block(BlockId(2)), Evictable::WindowPart(BlockId(2))];
        order.push(part);
        order.push(Evictable::Block(BlockId(0)));
        order.push(block);
        assert_eq!(order.iter().count(), 3);
        order.remove(Evictable::Block(BlockId(0)));
        assert_eq!((order.pop(), order.pop(), order.pop()), (Some(part), Some(block), None));
        assert!(!order.contains(part));
    }

    #[test]
    fn an_emptied_list_fills_again() {
        let mut order = ReleaseOrder::of_blocks(1);
        let block = Evictable::Block(BlockId(0));
        for _ in 0..2 {
            order.push(block);
            assert!(order.contains(block));
            assert_eq!((order.pop(), order.pop()), (Some(block), None));
        }
    }

    #[test]
    #[should_panic(expected = "listed twice")]
    fn a_block_is_never_listed_twice() {
        let mut order = ReleaseOrder::of_blocks(2);
        order.push(Evictable::Block(BlockId(1)));
        order.push(Evictable::Block(BlockId(1)));
    }
}
