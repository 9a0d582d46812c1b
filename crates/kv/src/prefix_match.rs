//! What a lookup found of a prompt's start.

use crate::prefix_index::PrefixTail;
use mini_infer_core::{BlockId, BlockSize, Namespace};

/// The blocks that already hold the start of a prompt. Reusable, so that a lookup allocates nothing.
///
/// Valid until the memory changes.
#[derive(Debug)]
pub struct PrefixMatch {
    pub(crate) namespace: Namespace,
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) tail: PrefixTail,
    pub(crate) num_cached_blocks: u32,
    /// Tokens in `blocks` and, behind them, in the block to copy from.
    pub(crate) num_tokens: u32,
}

impl PrefixMatch {
    /// Forgets what was found: the match of a prompt in `namespace` of which nothing is there.
    pub fn reset(&mut self, namespace: Namespace) {
        self.namespace = namespace;
        self.blocks.clear();
        self.tail = PrefixTail::root(namespace);
        self.num_cached_blocks = 0;
        self.num_tokens = 0;
    }

    /// Gives up the tokens behind the full blocks, so that the sequence starts at a block's border
    /// and can be continued from a tier.
    pub fn keep_full_blocks(&mut self, block_size: BlockSize) {
        self.num_tokens = self.num_blocks() * block_size.tokens();
    }

    /// Returns how many full blocks matched, which are shared.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        count_blocks(&self.blocks)
    }

    /// Returns how many tokens matched, those to be copied from a diverging block included.
    #[must_use]
    pub fn num_tokens(&self) -> u32 {
        self.num_tokens
    }
}

impl Default for PrefixMatch {
    fn default() -> Self {
        Self {
            namespace: Namespace::default(),
            blocks: Vec::new(),
            tail: PrefixTail::root(Namespace::default()),
            num_cached_blocks: 0,
            num_tokens: 0,
        }
    }
}

/// Counts blocks in the width of their ids.
pub(crate) fn count_blocks(blocks: &[BlockId]) -> u32 {
    u32::try_from(blocks.len()).expect("a pool has fewer than 2^32 blocks")
}
