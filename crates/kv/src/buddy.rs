//! A buddy allocator over block ids: runs of consecutive blocks, each a power of two long.
//!
//! How contiguous memory is handed out where sequences need theirs in one piece (Knowlton, CACM
//! 1965; Kwon et al., SOSP 2023, section 6.1, give Orca the same one). A run of 2^k blocks starts
//! at a multiple of 2^k and is split in halves; a half that is given back merges with its buddy as
//! soon as both are free. The pool need not be a power of two long: it starts as the runs of its
//! binary digits. The smallest run that is large enough is taken, the lowest of those first.
//!
//! Invariants: free runs do not overlap, and no two of them are buddies. Every operation costs
//! O(log blocks) runs.

use std::collections::BTreeSet;

/// Number of run lengths: 2^0 to 2^31 blocks.
const NUM_ORDERS: usize = 32;

/// A run of 2^order blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first block, a multiple of the run's length.
    pub(crate) start: u32,
    /// Logarithm of the length to base 2.
    pub(crate) order: u32,
}

impl Run {
    /// Returns the number of blocks.
    pub(crate) fn num_blocks(self) -> u32 {
        1 << self.order
    }

    /// Returns the run that this one merges with.
    fn buddy(self) -> Self {
        Self { start: self.start ^ self.num_blocks(), ..self }
    }
}

/// The free runs of a pool of blocks.
#[derive(Clone, Debug)]
pub(crate) struct BuddyAllocator {
    num_blocks: u32,
    num_free_blocks: u32,
    /// Starts of the free runs, by order.
    free: [BTreeSet<u32>; NUM_ORDERS],
}

impl BuddyAllocator {
    /// Creates an allocator of the blocks `0..num_blocks`, all free.
    pub(crate) fn new(num_blocks: u32) -> Self {
        let mut free: [BTreeSet<u32>; NUM_ORDERS] = Default::default();
        let mut start = 0;
        for order in (0..u32::BITS).rev().filter(|order| num_blocks >> order & 1 == 1) {
            free[order as usize].insert(start);
            // Cannot overflow: the digits seen so far add up to at most `num_blocks`.
            start += 1 << order;
        }
        Self { num_blocks, num_free_blocks: num_blocks, free }
    }

    /// Returns the order of the shortest run of at least `num_blocks` blocks.
    ///
    /// # Panics
    /// When that is more than 2^31 blocks.
    pub(crate) fn order_for(num_blocks: u32) -> u32 {
        let length = num_blocks.checked_next_power_of_two();
        length.expect("a sequence has fewer than 2^31 blocks").trailing_zeros()
    }

    /// Returns the order of the longest run that an empty pool of `num_blocks` blocks has.
    pub(crate) fn highest_order(num_blocks: u32) -> Option<u32> {
        num_blocks.checked_ilog2()
    }

    /// Tells whether [`Self::allocate`] would find a run of this order.
    pub(crate) fn has_run(&self, order: u32) -> bool {
        self.order_to_take(order).is_some()
    }

    /// Hands out a run of 2^order blocks.
    pub(crate) fn allocate(&mut self, order: u32) -> Option<Run> {
        let taken = self.order_to_take(order)?;
        let start = self.free[taken as usize].pop_first()?;
        // The lower half is handed out, the upper halves stay free.
        for half in order..taken {
            self.free[half as usize].insert(start + (1 << half));
        }
        let run = Run { start, order };
        self.num_free_blocks -= run.num_blocks();
        Some(run)
    }

    /// Takes back a run that [`Self::allocate`] handed out.
    pub(crate) fn free(&mut self, mut run: Run) {
        self.num_free_blocks += run.num_blocks();
        while self.free[run.order as usize].remove(&run.buddy().start) {
            run = Run { start: run.start & !run.num_blocks(), order: run.order + 1 };
        }
        let is_new = self.free[run.order as usize].insert(run.start);
        assert!(is_new, "the run at block {} is given back twice", run.start);
    }

    /// Returns how many blocks are in no run that was handed out.
    pub(crate) fn num_free_blocks(&self) -> u32 {
        self.num_free_blocks
    }

    /// Checks the invariants in the module header; costs the number of free runs.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate.
    pub(crate) fn check_invariants(&self) {
        let mut runs: Vec<Run> = Vec::new();
        for (starts, order) in self.free.iter().zip(0..) {
            runs.extend(starts.iter().map(|&start| Run { start, order }));
        }
        for run in &runs {
            assert_eq!(run.start % run.num_blocks(), 0, "the run at {} is askew", run.start);
            assert!(!runs.contains(&run.buddy()), "buddies at {} are both free", run.start);
        }
        runs.sort_unstable_by_key(|run| run.start);
        let end = |run: &Run| run.start + run.num_blocks();
        assert!(runs.windows(2).all(|pair| end(&pair[0]) <= pair[1].start), "free runs overlap");
        assert!(runs.last().is_none_or(|last| end(last) <= self.num_blocks));
        assert_eq!(runs.iter().map(|run| run.num_blocks()).sum::<u32>(), self.num_free_blocks);
    }

    /// Returns the smallest order of a free run that is at least `order`.
    fn order_to_take(&self, order: u32) -> Option<u32> {
        (order..u32::BITS).find(|&order| !self.free[order as usize].is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_core::mix64;

    /// The same allocator without cleverness: one flag a block.
    struct Naive {
        is_free: Vec<bool>,
    }

    impl Naive {
        fn is_free_run(&self, run: Run) -> bool {
            let blocks = run.start as usize..(run.start + run.num_blocks()) as usize;
            self.is_free.get(blocks).is_some_and(|flags| flags.iter().all(|&free| free))
        }

        /// Finds the shortest, then lowest, free run that no longer free run contains.
        fn allocate(&mut self, order: u32) -> Option<Run> {
            let num_blocks = u32::try_from(self.is_free.len()).unwrap();
            let starts = |order: u32| (0..num_blocks).step_by(1 << order);
            let all = (order..12).flat_map(|order| starts(order).map(move |start| (order, start)));
            let whole = |&(order, start): &(u32, u32)| {
                let parent = Run { start: start >> (order + 1) << (order + 1), order: order + 1 };
                self.is_free_run(Run { start, order }) && !self.is_free_run(parent)
            };
            let (_, start) = all.clone().find(whole)?;
            let run = Run { start, order };
            self.mark(run, false);
            Some(run)
        }

        fn mark(&mut self, run: Run, is_free: bool) {
            self.is_free[run.start as usize..][..run.num_blocks() as usize].fill(is_free);
        }
    }

    fn compare_with_naive(seed: u64, num_blocks: u32, num_operations: u64) {
        let mut buddy = BuddyAllocator::new(num_blocks);
        let mut naive = Naive { is_free: vec![true; num_blocks as usize] };
        let mut held: Vec<Run> = Vec::new();
        for operation in 0..num_operations {
            let random = mix64(seed ^ mix64(operation));
            if random % 5 < 3 || held.is_empty() {
                let order = u32::try_from(random >> 8 & 0xFF).unwrap().trailing_zeros().min(7);
                let run = naive.allocate(order);
                assert_eq!(buddy.has_run(order), run.is_some(), "seed {seed}");
                assert_eq!(buddy.allocate(order), run, "seed {seed}, operation {operation}");
                held.extend(run);
            } else {
                let run = held.swap_remove((random >> 8) as usize % held.len());
                naive.mark(run, true);
                buddy.free(run);
            }
            let num_free = naive.is_free.iter().filter(|&&free| free).count();
            assert_eq!(buddy.num_free_blocks() as usize, num_free, "seed {seed}");
            buddy.check_invariants();
        }
        for run in held {
            buddy.free(run);
        }
        assert_eq!(buddy.free, BuddyAllocator::new(num_blocks).free, "seed {seed}: all merged");
    }

    #[test]
    fn random_operations_agree_with_a_naive_model() {
        for seed in 0..24 {
            let num_blocks = 1 + u32::try_from(mix64(seed) % 200).unwrap();
            compare_with_naive(seed, num_blocks, 400);
        }
    }

    #[test]
    fn a_pool_that_is_no_power_of_two_holds_its_binary_digits() {
        // 15,728 tokens in blocks of 16: seven runs of 2,048 tokens fit, as in the paper.
        let mut buddy = BuddyAllocator::new(983);
        let mut num_runs = 0;
        while buddy.allocate(7).is_some() {
            num_runs += 1;
        }
        assert_eq!((num_runs, buddy.num_free_blocks()), (7, 983 - 7 * 128));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_run_cannot_be_given_back_twice() {
        let mut buddy = BuddyAllocator::new(3);
        let run = buddy.allocate(0).unwrap();
        buddy.free(run);
        buddy.free(run);
    }
}
