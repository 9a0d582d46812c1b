//! The number of tokens in one KV block.

use crate::{BlockId, SlotId};
use std::fmt;

/// Tokens per KV block: 8, 16, 32 or 64.
///
/// Block size trades waste (half a block per sequence on average) against the length of block
/// tables; attention kernels rely on it being a power of two of at least 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSize(u32);

impl BlockSize {
    /// The default of 16 tokens.
    pub const DEFAULT: Self = Self(16);

    /// Checks that `tokens` is a supported block size.
    ///
    /// # Errors
    /// Returns [`BlockSizeError`] unless `tokens` is 8, 16, 32 or 64.
    pub const fn new(tokens: u32) -> Result<Self, BlockSizeError> {
        match tokens {
            8 | 16 | 32 | 64 => Ok(Self(tokens)),
            got => Err(BlockSizeError { got }),
        }
    }

    /// Returns the number of tokens in a block.
    #[must_use]
    pub const fn tokens(self) -> u32 {
        self.0
    }

    /// Returns how many blocks hold `num_tokens` tokens.
    #[must_use]
    pub const fn blocks_for(self, num_tokens: u32) -> u32 {
        let (num_full, rest) = self.place(num_tokens);
        num_full + (rest > 0) as u32
    }

    /// Returns the index of the block that holds the token at `position` in its sequence, and the
    /// token's offset inside it.
    #[must_use]
    pub const fn place(self, position: u32) -> (u32, u32) {
        // A power of two, so that no step pays for a division per token.
        (position >> self.0.trailing_zeros(), position & (self.0 - 1))
    }

    /// Returns the slot of the token at `offset` inside `block`.
    ///
    /// # Panics
    /// In debug builds, when `offset` is not below the block size.
    #[must_use]
    pub const fn slot(self, block: BlockId, offset: u32) -> SlotId {
        debug_assert!(offset < self.0);
        SlotId(block.0 * self.0 + offset)
    }

    /// Returns the block and the offset inside it that `slot` stands for.
    #[must_use]
    pub const fn split(self, slot: SlotId) -> (BlockId, u32) {
        let (block, offset) = self.place(slot.0);
        (BlockId(block), offset)
    }
}

/// A block size that is not one of 8, 16, 32 or 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizeError {
    /// The size that was asked for, in tokens.
    pub got: u32,
}

impl fmt::Display for BlockSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block size {} is not one of 8, 16, 32 or 64 tokens", self.got)
    }
}

impl std::error::Error for BlockSizeError {}
