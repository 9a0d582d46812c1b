//! Seeds for requests that bring none.
//!
//! Without a server seed, each comes from the operating system's randomness, so that runs differ.
//! With one, the k-th request without a seed always gets the same seed, and no two get equal ones.

use mini_infer_core::mix64;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Hands out seeds.
#[derive(Debug)]
pub(crate) struct SeedSource {
    server_seed: Option<u64>,
    num_given: AtomicU64,
}

impl SeedSource {
    /// Creates a source; `server_seed` makes what it hands out repeatable.
    pub(crate) fn new(server_seed: Option<u64>) -> Self {
        Self { server_seed, num_given: AtomicU64::new(0) }
    }

    /// Returns the next seed.
    pub(crate) fn next_seed(&self) -> u64 {
        let index = self.num_given.fetch_add(1, Ordering::Relaxed);
        match self.server_seed {
            Some(seed) => mix64(mix64(seed).wrapping_add(index)),
            // A `RandomState` is keyed by the operating system; hashing under it is a random
            // function of the index.
            None => RandomState::new().hash_one(index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_seed_makes_seeds_repeatable_and_still_distinct() {
        let (a, b) = (SeedSource::new(Some(7)), SeedSource::new(Some(7)));
        let seeds: Vec<u64> = (0..8).map(|_| a.next_seed()).collect();
        assert!(seeds.iter().all(|&seed| seed == b.next_seed()));
        assert!((1..8).all(|i| !seeds[..i].contains(&seeds[i])));
    }

    #[test]
    fn seeds_from_the_system_differ_between_sources() {
        assert_ne!(SeedSource::new(None).next_seed(), SeedSource::new(None).next_seed());
    }
}
