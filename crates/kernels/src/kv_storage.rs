//! The bytes of the KV pool, and writing to them.
//!
//! A block's bytes for all layers lie together, so that one block is one stretch to commit,
//! release, swap or write to a file:
//!
//! ```text
//! block:   layer 0 keys | layer 0 values | layer 1 keys | …
//! keys:    head 0 | head 1 | …, each [block_size / STRIP][head_dim][STRIP]   (tokens contiguous)
//! values:  head 0 | head 1 | …, each [block_size][head_dim]                  (dimensions contiguous)
//! ```
//!
//! so that one vector load covers one dimension of the keys of a strip of tokens, or the
//! dimensions of one token's value. Address space for all blocks is reserved at once; memory is
//! committed when a block is first written.

use crate::float_format::{Bf16, F16, StoredFloat};
use crate::mapped_buffer::{HugePages, MappedBuffer};
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use mini_infer_core::{BlockId, BlockSize, SlotId};
use std::io;

/// Most tokens in a strip of keys; blocks of 8 tokens have strips of 8.
const MAX_STRIP: usize = 16;

/// Tokens below which storing stays on the calling thread.
const MIN_TOKENS_TO_SPLIT: usize = 4;

/// How KV elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvDtype {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl KvDtype {
    /// Returns the bytes of one element.
    #[must_use]
    pub const fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Returns the name that `--kv-cache-dtype` uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// Sizes of a KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers that have keys and values.
    pub num_layers: usize,
    /// Key and value heads of a layer.
    pub num_kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Tokens of a block.
    pub block_size: BlockSize,
    /// Stored form of an element.
    pub dtype: KvDtype,
}

impl KvLayout {
    /// Returns the bytes of one token's keys and values in all layers.
    #[must_use]
    pub const fn token_bytes(&self) -> usize {
        2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.element_bytes()
    }

    /// Returns the bytes of one block.
    #[must_use]
    pub const fn block_bytes(&self) -> usize {
        self.token_bytes() * self.block_size.tokens() as usize
    }

    /// Elements of one head's keys (or values) in one block: the unit of addressing.
    const fn region(&self) -> usize {
        self.head_dim * self.block_size.tokens() as usize
    }

    fn region_index(&self, block: BlockId, layer: usize, side: Side, head: usize) -> usize {
        assert!(layer < self.num_layers && head < self.num_kv_heads);
        ((block.index() * self.num_layers + layer) * 2 + side as usize) * self.num_kv_heads + head
    }

    /// Tokens of a strip of keys.
    const fn strip(&self) -> usize {
        let tokens = self.block_size.tokens() as usize;
        if tokens < MAX_STRIP { tokens } else { MAX_STRIP }
    }
}

/// Keys or values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Keys = 0,
    Values = 1,
}

/// The bytes of a KV pool.
#[derive(Debug)]
pub struct KvStorage {
    layout: KvLayout,
    num_blocks: u32,
    memory: MappedBuffer,
}

impl KvStorage {
    /// Reserves address space for `num_blocks` blocks.
    ///
    /// # Errors
    /// When the size overflows or the system refuses the reservation.
    pub fn reserve(layout: KvLayout, num_blocks: u32) -> io::Result<Self> {
        let num_bytes = layout
            .block_bytes()
            .checked_mul(num_blocks as usize)
            .ok_or_else(|| io::Error::other("the KV pool is larger than the address space"))?;
        let memory = MappedBuffer::new(num_bytes, HugePages::Avoid)?;
        Ok(Self { layout, num_blocks, memory })
    }

    /// Returns the sizes of the pool.
    #[must_use]
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Returns one layer's keys and values of one head, in all blocks.
    ///
    /// `T` is the stored form of the layout's `dtype`.
    pub(crate) fn head<T: StoredFloat>(&self, layer: usize, head: usize) -> KvHead<'_, T> {
        assert_eq!(size_of::<T>(), self.layout.dtype.element_bytes());
        KvHead {
            layout: &self.layout,
            elements: bytemuck::cast_slice(self.memory.bytes()),
            layer,
            head,
        }
    }
}

/// One head of one layer, in all blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvHead<'a, T> {
    layout: &'a KvLayout,
    elements: &'a [T],
    layer: usize,
    head: usize,
}

impl<'a, T> KvHead<'a, T> {
    /// Returns the keys of a block, `[block_size / strip][head_dim][strip]`.
    pub(crate) fn keys(&self, block: BlockId) -> &'a [T] {
        self.side(block, Side::Keys)
    }

    /// Returns the values of a block, `[block_size][head_dim]`.
    pub(crate) fn values(&self, block: BlockId) -> &'a [T] {
        self.side(block, Side::Values)
    }

    fn side(&self, block: BlockId, side: Side) -> &'a [T] {
        let region = self.layout.region();
        let index = self.layout.region_index(block, self.layer, side, self.head);
        &self.elements[index * region..][..region]
    }
}

/// Stores the keys and values of one layer: row `i` of `keys_values` (its first
/// `2 * num_kv_heads * head_dim` elements after `first`, keys before values) goes to `slots[i]`.
///
/// # Panics
/// When a row or a slot does not exist.
pub fn store_kv(
    pool: &ThreadPool,
    storage: &mut KvStorage,
    layer: usize,
    slots: &[SlotId],
    rows: &[f32],
    width: usize,
    first: usize,
) {
    assert_eq!(rows.len(), slots.len() * width);
    match storage.layout.dtype {
        KvDtype::F32 => store::<f32>(pool, storage, layer, slots, rows, width, first),
        KvDtype::F16 => store::<F16>(pool, storage, layer, slots, rows, width, first),
        KvDtype::Bf16 => store::<Bf16>(pool, storage, layer, slots, rows, width, first),
    }
}

fn store<T: StoredFloat>(
    pool: &ThreadPool,
    storage: &mut KvStorage,
    layer: usize,
    slots: &[SlotId],
    rows: &[f32],
    width: usize,
    first: usize,
) {
    let layout = storage.layout;
    let head_dim = layout.head_dim;
    let elements: &mut [T] = bytemuck::cast_slice_mut(storage.memory.bytes_mut());
    let regions = RowView::new(elements, layout.region());
    let store_head = |head: usize| {
        for (row, &slot) in rows.chunks_exact(width).zip(slots) {
            let (block, offset) = layout.block_size.split(slot);
            let offset = offset as usize;
            let (keys, values) = row[first..].split_at(layout.num_kv_heads * head_dim);
            let key_region = layout.region_index(block, layer, Side::Keys, head);
            let strip = layout.strip();
            let strip_start = offset / strip * head_dim * strip;
            // SAFETY: a region belongs to one head, each head is stored by one thread, and the
            // piece is dropped before this thread takes the next one.
            let place = unsafe { regions.piece(key_region, strip_start, head_dim * strip) };
            let lanes = place[offset % strip..].iter_mut().step_by(strip);
            for (place, key) in lanes.zip(&keys[head * head_dim..][..head_dim]) {
                *place = T::narrow(*key);
            }
            let value_region = layout.region_index(block, layer, Side::Values, head);
            // SAFETY: as above.
            let place = unsafe { regions.piece(value_region, offset * head_dim, head_dim) };
            for (place, value) in place.iter_mut().zip(&values[head * head_dim..][..head_dim]) {
                *place = T::narrow(*value);
            }
        }
    };
    if slots.len() < MIN_TOKENS_TO_SPLIT {
        (0..layout.num_kv_heads).for_each(store_head);
    } else {
        pool.split(layout.num_kv_heads, |heads| heads.for_each(store_head));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    #[test]
    fn stored_rows_are_found_where_the_layout_says_and_nowhere_else() {
        let pool = ThreadPool::new(NonZeroUsize::new(2).unwrap());
        for tokens in [8, 16, 32] {
            let block_size = BlockSize::new(tokens).unwrap();
            let dtype = KvDtype::F32;
            let layout =
                KvLayout { num_layers: 2, num_kv_heads: 3, head_dim: 16, block_size, dtype };
            let mut storage = KvStorage::reserve(layout, 4).unwrap();
            let slots: Vec<_> = (0..5).map(|i| SlotId(tokens + i * 3)).collect();
            let width = 7 + 2 * 48;
            let rows: Vec<f32> = (0..slots.len() * width).map(|i| i as f32 + 1.0).collect();
            store_kv(&pool, &mut storage, 1, &slots, &rows, width, 7);
            for (i, slot) in slots.iter().enumerate() {
                let (block, offset) = block_size.split(*slot);
                let (offset, strip) = (offset as usize, layout.strip());
                for head in 0..3 {
                    let view = storage.head::<f32>(1, head);
                    for d in 0..16 {
                        let at = (offset / strip * 16 + d) * strip + offset % strip;
                        assert_eq!(view.keys(block)[at], rows[i * width + 7 + head * 16 + d]);
                        let value = view.values(block)[offset * 16 + d];
                        assert_eq!(value, rows[i * width + 7 + 48 + head * 16 + d]);
                    }
                }
            }
            let written = storage.memory.bytes().chunks(4).filter(|b| *b != [0; 4]).count();
            assert_eq!(written, slots.len() * 96);
        }
    }

    #[test]
    fn a_token_takes_the_bytes_that_the_arithmetic_says() {
        let layout = KvLayout {
            num_layers: 30,
            num_kv_heads: 3,
            head_dim: 64,
            block_size: BlockSize::DEFAULT,
            dtype: KvDtype::Bf16,
        };
        assert_eq!(layout.token_bytes(), 2 * 30 * 3 * 64 * 2);
        assert_eq!(layout.block_bytes(), 16 * layout.token_bytes());
    }
}
