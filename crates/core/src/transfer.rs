//! Moving KV between blocks and tiers, as data.
//!
//! The engine decides, the executor moves bytes: besides [`Batch`](crate::Batch), these are the only
//! words the two share. Transfers are carried out in order and before the step that follows them.

use crate::{BlockId, TokenId};

/// Whatever decides KV besides the tokens (a tenant's salt, an adapter) as a digest: equal tokens
/// in different namespaces never match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(pub [u8; 32]);

/// Names the content of one full block: a cryptographic hash chained over the namespace and all
/// tokens up to the block's end. Equal keys mean equal KV, in any process that runs the same model
/// in the same build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey(pub [u8; 32]);

impl BlockKey {
    /// Returns the key that the first block of a namespace chains to.
    #[must_use]
    pub const fn root(namespace: Namespace) -> Self {
        Self(namespace.0)
    }
}

/// Makes the key of a full block from its parent's key and its tokens. A plain function, so that
/// crates without dependencies can be given a cryptographic one.
pub type ContentHash = fn(&BlockKey, &[TokenId]) -> BlockKey;

/// The layers of a model whose KV lies in a block, by how long they need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvPart {
    /// Layers that attend to the whole context.
    FullAttention,
    /// Layers that attend to a window that slides along; their part of a block can go before the
    /// rest.
    SlidingWindow,
}

/// One movement of KV bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvTransfer {
    /// Copies the first `num_tokens` slots of all layers, so that the copy can be written to while
    /// others read the original. What lies in the later slots of `to` does not matter.
    Copy {
        /// The block to read.
        from: BlockId,
        /// The block to write.
        to: BlockId,
        /// Slots to copy, fewer than the block has or all.
        num_tokens: u32,
    },
    /// Offers a full block, whose memory is about to be used for something else, to the tier.
    Save {
        /// The block to read.
        block: BlockId,
        /// What it holds.
        key: BlockKey,
    },
    /// Gives the memory of one part of a block back to the system; its content is no longer needed.
    Discard {
        /// The block.
        block: BlockId,
        /// The layers.
        part: KvPart,
    },
}
