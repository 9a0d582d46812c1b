//! Random operations on paged KV memory, against a small obvious model.
//!
//! The model is the KV of every slot, written out and moved by transfers as an executor would, and
//! a search through all of it. It proves that a match is the longest possible and never names a
//! block that holds anything else, that what is read was written for exactly these tokens, that
//! nobody writes what others read, that memory stays within its capacity, and that nothing leaks.
//! An alphabet of two or three tokens makes prefixes meet, and tiny pools make memory short. A
//! quarter of the seeds gives every block the same hash, and half have sliding windows.
//!
//! `MINI_INFER_KV_SEED=7 cargo test -p mini-infer-kv` replays one seed;
//! `MINI_INFER_KV_RUNS=100000` sets the number of seeds.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod memory;
mod player;
mod prefixes;
mod random;

use crate::player::{Coverage, Player};
use crate::random::Random;
use mini_infer_core::{BlockSize, PrefixCaching};
use mini_infer_kv::{BlockHashing, KvConfig, WindowConfig};

/// Seeds in a release build: a million operations; a debug build is slower.
const NUM_RUNS: u64 = if cfg!(debug_assertions) { 100 } else { 5_000 };
const NUM_OPERATIONS: u64 = 200;

#[test]
fn paged_memory_does_what_the_model_does() {
    let from_env = |name: &str| std::env::var(name).ok().map(|value| value.parse().unwrap());
    if let Some(seed) = from_env("MINI_INFER_KV_SEED") {
        println!("{:#?}", config(&mut Random::new(seed)));
        println!("{:#?}", run(seed));
        return;
    }
    let num_runs = from_env("MINI_INFER_KV_RUNS").unwrap_or(NUM_RUNS);
    let runs: Vec<Coverage> = (0..num_runs).map(run).collect();
    let total = |field: fn(&Coverage) -> u64| runs.iter().map(field).sum::<u64>();
    println!("{num_runs} runs, {} operations", total(|run| run.num_operations));
    let met = [
        ("hit tokens", total(|run| run.num_hit_tokens)),
        ("partial hits", total(|run| run.num_partial_hits)),
        ("copies", total(|run| run.num_copies)),
        ("evictions", total(|run| run.num_evictions)),
        ("failed allocations", total(|run| run.num_failed_allocations)),
        ("restores", total(|run| run.num_restores)),
        ("hidden matches", total(|run| run.num_hidden_matches)),
        ("blocks that gave way", total(|run| run.num_blocks_that_gave_way)),
    ];
    println!("{met:?}");
    for (what, number) in met {
        assert!(number > 0 || num_runs < 100, "never met: {what}");
    }
}

/// Runs one seed, naming it when something fails.
fn run(seed: u64) -> Coverage {
    struct NameSeedOnPanic(u64);
    impl Drop for NameSeedOnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with MINI_INFER_KV_SEED={}", self.0);
            }
        }
    }
    let _guard = NameSeedOnPanic(seed);
    let mut random = Random::new(seed);
    let config = config(&mut random);
    let num_letters = 2 + random.below(2);
    Player::new(random, config, num_letters).play(NUM_OPERATIONS)
}

fn config(random: &mut Random) -> KvConfig {
    let window = WindowConfig {
        num_tokens: 1 + random.below(40),
        full_weight: 1 + random.below(3),
        window_weight: 1 + random.pick(&[0, 1, 2, 3, 4, 15]),
    };
    let is_off = random.one_in(10);
    let hashing = [BlockHashing::AllEqual, BlockHashing::Chained];
    KvConfig {
        block_size: BlockSize::new(random.pick(&[8, 8, 8, 16])).unwrap(),
        num_blocks: 2 + random.below(30),
        prefix_caching: if is_off { PrefixCaching::Off } else { PrefixCaching::On },
        block_hashing: hashing[usize::from(!random.one_in(4))],
        window: random.one_in(2).then_some(window),
        content_hash: random.one_in(2).then_some(prefixes::content_hash),
    }
}
