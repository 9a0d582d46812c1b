//! Size and behaviour of the KV memory, as numbers that belong together.
//!
//! All of it is fixed for the life of a manager; what varies by sequence is in
//! [`SequenceStart`](crate::SequenceStart).

use crate::block_hashes::BlockHashing;
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
