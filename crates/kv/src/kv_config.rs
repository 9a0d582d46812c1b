//! Size and behaviour of the KV memory, as numbers that belong together.
//!
//! All of it is fixed for the life of a manager; what varies by sequence is in
//! [`SequenceStart`](crate::SequenceStart).

use crate::block_hashes::BlockHashing;
use crate::sliding_window::SlidingWindow;
use mini_infer_core::{BlockSize, ContentHash, PrefixCaching};

/// Size and behaviour of the KV memory.
#[derive(Clone, Copy, Debug)]
pub struct KvConfig {
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Blocks whose whole memory the pool may hold at once.
    pub num_blocks: u32,
    /// Whether prefixes are shared between requests at all.
    pub prefix_caching: PrefixCaching,
    /// How block hashes are made.
    pub block_hashing: BlockHashing,
    /// The sliding-window layers, where the model has some.
    pub window: Option<WindowConfig>,
    /// Names the content of full blocks, where a tier keeps evicted ones.
    pub content_hash: Option<ContentHash>,
}

/// Layers that attend to the last tokens only, and what a block of them weighs beside the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Tokens that a token sees, itself included: at position n those after n - `num_tokens`.
    pub num_tokens: u32,
    /// Memory of the layers that attend to the whole context, in any unit; at least 1, also where
    /// there is no such layer, so that blocks have an end.
    pub full_weight: u32,
    /// Memory of the layers with the window, in the same unit; at least 1.
    pub window_weight: u32,
}

impl WindowConfig {
    /// Returns the most blocks that one sequence gets while no other holds any, in memory for
    /// `num_blocks` whole ones: what its window has passed makes room for more.
    #[must_use]
    pub fn max_blocks_of_one(&self, num_blocks: u32, block_size: BlockSize) -> u32 {
        let num_visible = self.max_visible_blocks(block_size);
        let Some(num_passed) = num_blocks.checked_sub(num_visible) else { return num_blocks };
        let [full, window] = [self.full_weight, self.window_weight].map(u64::from);
        let num_more = u64::from(num_passed) * window / full;
        u32::try_from(u64::from(num_blocks) + num_more).unwrap_or(u32::MAX)
    }

    /// Returns for how many whole blocks there must be memory so that one sequence gets
    /// `num_blocks`.
    #[must_use]
    pub fn fewest_blocks_for_one(&self, num_blocks: u32, block_size: BlockSize) -> u32 {
        let num_visible = self.max_visible_blocks(block_size).min(num_blocks);
        let [full, window] = [self.full_weight, self.window_weight].map(u64::from);
        let weight = u64::from(num_blocks) * full + u64::from(num_visible) * window;
        let fewest = weight.div_ceil(full + window);
        u32::try_from(fewest).unwrap_or(u32::MAX)
    }

    fn max_visible_blocks(&self, block_size: BlockSize) -> u32 {
        SlidingWindow::new(*self, block_size).max_visible_blocks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_blocks_for_a_sequence_are_just_enough() {
        for (num_tokens, full_weight, window_weight) in [(1, 1, 1), (40, 1, 16), (70, 6, 20)] {
            let window = WindowConfig { num_tokens, full_weight, window_weight };
            let most = |num_blocks| window.max_blocks_of_one(num_blocks, BlockSize::DEFAULT);
            for num_blocks in 1..200 {
                let fewest = window.fewest_blocks_for_one(num_blocks, BlockSize::DEFAULT);
                assert!(fewest <= num_blocks && most(fewest) >= num_blocks, "{window:?}");
                assert!(most(fewest - 1) < num_blocks, "{window:?} {num_blocks}");
            }
        }
    }
}
