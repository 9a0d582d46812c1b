//! What the block pool took back to make room.
//!
//! Told while it happens, so that whoever knows the content can forget it, save it or give its
//! memory back.

use mini_infer_core::{BlockId, KvPart};

/// Something the pool took back to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// A cached block lost its content and is free.
    Block {
        /// The block.
        block: BlockId,
        /// Whether all parts of it were there until then.
        is_whole: bool,
    },
    /// A block that is not free lost its window part, whose memory is to be given back.
    WindowPart(BlockId),
    /// The memory of one part of a free block is to be given back.
    Memory(BlockId, KvPart),
}
