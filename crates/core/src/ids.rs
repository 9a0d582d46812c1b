//! Newtypes for every id that crosses a crate.
//!
//! An id never turns into an index or a count without a named conversion. Token ids are the one
//! exception: they come from tokenizers and fill large slices, so they stay plain `u32`.

use std::fmt;

/// Index of a token in the model's vocabulary.
pub type TokenId = u32;

/// Identifies one client request for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Identifies whoever submits requests, for a fair share of the engine; 0 where nobody is told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Identifies one sequence: the request and which of its `n` choices this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    /// The request that the sequence belongs to.
    pub request: RequestId,
    /// Choice index within the request, `0..n`.
    pub index: u32,
}

/// Identifies one block of the KV pool, `0..num_blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Returns the id as an index into per-block arrays.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The place of one token's KV: `block * block_size + offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

impl SlotId {
    /// Returns the id as an index into per-slot arrays.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "req-{}", self.0)
    }
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.request, self.index)
    }
}
