//! A hash function, and maps whose iteration order and hashes are the same in every run.
//!
//! The engine and the KV bookkeeping must replay a seed exactly, so they use these instead of the
//! standard randomly keyed maps. Keys are ids and hashes made by the process itself, or compared
//! in full after a hit, so a planted collision costs time at most.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};

/// A hash map with a fixed hasher.
pub type FixedHashMap<K, V> = HashMap<K, V, FixedState>;
/// A hash set with a fixed hasher.
pub type FixedHashSet<K> = HashSet<K, FixedState>;

/// Maps every number to another, so that neighbours share no pattern: one step of SplitMix64
/// (Steele, Lea and Flood, OOPSLA 2014). A bijection.
#[must_use]
pub const fn mix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Builds hashers that all start from the same state.
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedState;

impl BuildHasher for FixedState {
    type Hasher = FixedHasher;

    fn build_hasher(&self) -> FixedHasher {
        FixedHasher { state: 0 }
    }
}

/// A multiply-xor hasher for small keys made of integers.
#[derive(Clone, Copy, Debug)]
pub struct FixedHasher {
    state: u64,
}

impl FixedHasher {
    fn mix(&mut self, word: u64) {
        // The odd constant is 2^64 divided by the golden ratio; the xor-shift feeds the high bits,
        // which the multiplication fills best, back into the low ones that pick a bucket.
        let product = (self.state ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.state = product ^ (product >> 32);
    }
}

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }
}
