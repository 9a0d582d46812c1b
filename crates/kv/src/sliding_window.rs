//! Which blocks a token sees through a sliding window.
//!
//! A token sees the last tokens up to itself. So a sequence needs the window parts of its last
//! blocks only, and a prefix can be shared as soon as the window parts before its end are there.

use crate::block_pool::BlockPool;
use crate::kv_config::WindowConfig;
use crate::prefix_match::PrefixMatch;
use mini_infer_core::BlockSize;

/// The window of a model's sliding-window layers, over blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlidingWindow {
    num_tokens: u32,
    block_size: BlockSize,
}

impl SlidingWindow {
    pub(crate) fn new(config: WindowConfig, block_size: BlockSize) -> Self {
        Self { num_tokens: config.num_tokens, block_size }
    }

    /// Returns the first block that a token at position `position` sees.
    pub(crate) fn first_visible_block(self, position: u32) -> u32 {
        self.block_size.place((position + 1).saturating_sub(self.num_tokens)).0
    }

    /// Returns how many window parts a sequence must hold at once to grow by one token at a time.
    pub(crate) fn max_visible_blocks(self) -> u32 {
        1 + self.block_size.blocks_for(self.num_tokens - 1)
    }

    /// Shortens a match to its longest start whose window parts are there, as far as the token
    /// behind it sees them. Returns how many full blocks it may keep without its partial block.
    /// Costs the blocks that matched.
    pub(crate) fn keep_visible(self, pool: &BlockPool, found: &mut PrefixMatch) -> u32 {
        let size = self.block_size.tokens();
        let (mut num_blocks, mut longest) = (0, 0);
        // Blocks in a row, up to the one looked at, that have their window part.
        let mut run = 0;
        for &block in &found.blocks {
            num_blocks += 1;
            run = if pool.has_window_part(block) { run + 1 } else { 0 };
            if run >= num_blocks - self.first_visible_block(num_blocks * size) {
                longest = num_blocks;
            }
        }
        let is_partial_visible = found.partial.is_some_and(|partial| {
            let first_visible = self.first_visible_block(num_blocks * size + partial.num_tokens);
            // All parts are copied, so that the copy is whole whatever its next token sees.
            pool.has_window_part(partial.block) && run >= num_blocks - first_visible
        });
        if !is_partial_visible {
            found.partial = None;
            found.blocks.truncate(longest as usize);
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(num_tokens: u32) -> SlidingWindow {
        let config = WindowConfig { num_tokens, full_weight: 1, window_weight: 1 };
        SlidingWindow::new(config, BlockSize::DEFAULT)
    }

    #[test]
    fn a_window_ends_at_its_token_and_reaches_back_by_its_length() {
        let first_visible = |num_tokens, at| window(num_tokens).first_visible_block(at);
        assert_eq!((first_visible(16, 15), first_visible(16, 30)), (0, 0));
        assert_eq!((first_visible(16, 31), first_visible(16, 32)), (1, 1));
        assert_eq!((first_visible(1, 15), first_visible(1, 16)), (0, 1));
    }

    #[test]
    fn no_position_sees_more_blocks_than_a_sequence_must_hold() {
        for num_tokens in 1..100 {
            let window = window(num_tokens);
            let seen = (0..500).map(|at| at / 16 - window.first_visible_block(at) + 1);
            assert!(seen.max() <= Some(window.max_visible_blocks()), "{num_tokens}");
        }
    }
}
