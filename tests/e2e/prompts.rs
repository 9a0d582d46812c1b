//! Prompts of token ids that share nothing with others unless a check wants it.

use mini_infer_core::mix64;

/// Ids that are words or their parts in any vocabulary of the checks' real model.
const FIRST_ID: u64 = 1000;
const NUM_IDS: u64 = 40_000;

/// Returns `length` tokens that follow from `seed`: two seeds have no common prefix to speak of.
pub(crate) fn tokens(seed: u64, length: u64) -> Vec<u32> {
    let id = |i| FIRST_ID + mix64(mix64(seed).wrapping_add(i)) % NUM_IDS;
    (0..length).map(|i| u32::try_from(id(i)).unwrap()).collect()
}

/// Returns `prefix` and `length` tokens more, which follow from `seed`.
pub(crate) fn continued(prefix: &[u32], seed: u64, length: u64) -> Vec<u32> {
    [prefix, &tokens(seed, length)].concat()
}
