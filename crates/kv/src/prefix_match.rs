//! What a lookup found of a prompt's start.

use crate::prefix_tree::PartialMatch;
use mini_infer_core::{BlockId, Namespace};

/// How far a match goes, and what adopting it takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MatchExtent {
    /// Full blocks.
    pub(crate) num_blocks: u32,
    /// Tokens in them and, at the end of the match, in the block to copy from.
    pub(crate) num_tokens: u32,
    /// Full blocks that turn active.
    pub(crate) num_cached_blocks: u32,
    /// The first full block whose window part the token behind the match sees.
    pub(crate) first_visible_block: u32,
    /// Window parts that turn held.
    pub(crate) num_unheld_window_parts: u32,
}

/// The blocks that already hold the start of a prompt. Reusable, so that a lookup allocates nothing.
///
/// Valid until the memory changes.
#[derive(Debug, Default)]
pub struct PrefixMatch {
    pub(crate) namespace: Namespace,
    /// Full blocks, to be shared.
    pub(crate) blocks: Vec<BlockId>,
    /// The block behind them whose first tokens are to be copied.
    pub(crate) partial: Option<PartialMatch>,
    pub(crate) extent: MatchExtent,
    /// How far the match would go without `partial`.
    pub(crate) extent_at_border: MatchExtent,
}

impl PrefixMatch {
    /// Forgets what was found: the match of a prompt in `namespace` of which nothing is there.
    pub fn reset(&mut self, namespace: Namespace) {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.clear();
        *self = Self { namespace, blocks, ..Self::default() };
    }

    /// Gives up the tokens behind the full blocks, so that the sequence starts at a block's border
    /// and can be continued from a tier.
    pub fn keep_full_blocks(&mut self) {
        self.partial = None;
        self.extent = self.extent_at_border;
        self.blocks.truncate(self.extent.num_blocks as usize);
    }

    /// Returns how many full blocks matched, which are shared.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.extent.num_blocks
    }

    /// Returns how many tokens matched, those to be copied from a diverging block included.
    #[must_use]
    pub fn num_tokens(&self) -> u32 {
        self.extent.num_tokens
    }
}

/// Counts blocks in the width of their ids.
pub(crate) fn count_blocks(blocks: &[BlockId]) -> u32 {
    u32::try_from(blocks.len()).expect("a pool has fewer than 2^32 blocks")
}
