//! Random operations on the block pool, against lists that predict every block it hands out.
//!
//! `MINI_INFER_KV_SEED=7 cargo test -p mini-infer-kv` replays one seed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use mini_infer_core::BlockId;
use mini_infer_kv::{BlockPool, BlockState, Reclaimed, Retention};

const NUM_SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 2_000 };
const NUM_OPERATIONS: u32 = 200;

/// A small random number generator (xorshift64*), so that a seed never changes its meaning.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut random = Self((2 * seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for _ in 0..8 {
            random.below(2);
        }
        random
    }

    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        u32::try_from(bits % u64::from(end)).unwrap()
    }

    fn index_of<T>(&mut self, items: &[T]) -> Option<usize> {
        let len = u32::try_from(items.len()).unwrap();
        (len > 0).then(|| self.below(len) as usize)
    }
}

/// Runs `check` with every seed, or with the one that the environment names.
fn for_every_seed(check: impl Fn(u64)) {
    struct NameSeedOnPanic(u64);
    impl Drop for NameSeedOnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with MINI_INFER_KV_SEED={}", self.0);
            }
        }
    }
    let one = std::env::var("MINI_INFER_KV_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in one.map_or(0..NUM_SEEDS, |seed: u64| seed..seed + 1) {
        let _guard = NameSeedOnPanic(seed);
        check(seed);
    }
}

/// The pool as lists: whoever is taken next stands last in `free`, then first in `cached`.
struct PoolModel {
    free: Vec<BlockId>,
    cached: Vec<BlockId>,
    /// One entry per reference.
    held: Vec<BlockId>,
}

impl PoolModel {
    /// Returns the block that is handed out, and whether it was cached.
    fn allocate(&mut self) -> Option<(BlockId, bool)> {
        let allocation = match self.free.pop() {
            Some(block) => (block, false),
            None if self.cached.is_empty() => return None,
            None => (self.cached.remove(0), true),
        };
        self.held.push(allocation.0);
        Some(allocation)
    }

    fn release(&mut self, i: usize, retention: Retention) -> BlockId {
        let block = self.held.swap_remove(i);
        if !self.held.contains(&block) {
            match retention {
                Retention::Keep => self.cached.push(block),
                Retention::Drop => self.free.push(block),
            }
        }
        block
    }

    fn state(&self, block: BlockId) -> BlockState {
        match (self.held.contains(&block), self.cached.contains(&block)) {
            (true, _) => BlockState::Active,
            (false, true) => BlockState::Cached,
            (false, false) => BlockState::Free,
        }
    }
}

#[test]
fn the_pool_hands_out_the_blocks_that_the_model_predicts() {
    for_every_seed(|seed| {
        let mut random = Random::new(seed);
        let num_blocks = 1 + random.below(9);
        let mut pool = BlockPool::new(num_blocks, None);
        let free = (0..num_blocks).rev().map(BlockId).collect();
        let mut model = PoolModel { free, cached: Vec::new(), held: Vec::new() };
        for _ in 0..NUM_OPERATIONS {
            match random.below(5) {
                0 | 1 => {
                    let mut evicted = Vec::new();
                    let block = pool.allocate(|reclaimed| evicted.push(reclaimed));
                    let predicted = model.allocate();
                    assert_eq!(block, predicted.map(|(block, _)| block));
                    let cached = predicted.filter(|&(_, was_cached)| was_cached);
                    let is_whole = true;
                    let all = cached.map(|(block, _)| Reclaimed::Block { block, is_whole });
                    assert_eq!(evicted, Vec::from_iter(all));
                }
                2 => {
                    let known = [&model.held[..], &model.cached[..]].concat();
                    let Some(i) = random.index_of(&known) else { continue };
                    pool.touch(known[i]);
                    model.cached.retain(|&block| block != known[i]);
                    model.held.push(known[i]);
                }
                _ => {
                    let Some(i) = random.index_of(&model.held) else { continue };
                    let retention = [Retention::Keep, Retention::Drop][random.below(2) as usize];
                    pool.release(model.release(i, retention), retention);
                }
            }
            pool.check_invariants();
            for block in (0..num_blocks).map(BlockId) {
                assert_eq!(pool.state(block), model.state(block));
                let num_held = model.held.iter().filter(|&&held| held == block).count();
                assert_eq!(pool.ref_count(block) as usize, num_held);
            }
        }
    });
}
