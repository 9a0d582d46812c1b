//! The bytes of the KV pool, and moving whole blocks.
//!
//! Address space for all blocks is reserved at once, one stretch for each part of a block (see
//! [`KvLayout`]); memory is committed when a block is first written and can be given back. Moving
//! a block costs its bytes.

use crate::float_format::Bf16;
use crate::kv_layout::{KvLayout, Side};
use crate::mapped_buffer::MappedBuffer;
use crate::row_view::RowView;
use bytemuck::Pod;
use mini_infer_core::{BlockId, KvPart};
use std::io;
use std::marker::PhantomData;
use std::ops::Range;

/// The bytes of a KV pool.
#[derive(Debug)]
pub struct KvStorage {
    layout: KvLayout,
    num_blocks: u32,
    /// In the order of [`KvLayout::PARTS`].
    parts: [MappedBuffer; 2],
}

impl KvStorage {
    /// Reserves address space for `num_blocks` blocks.
    ///
    /// # Errors
    /// When the size overflows or the system refuses the reservation.
    pub fn reserve(layout: KvLayout, num_blocks: u32) -> io::Result<Self> {
        let reserve = |part| {
            let num_bytes = layout
                .part_bytes(part)
                .checked_mul(num_blocks as usize)
                .ok_or_else(|| io::Error::other("the KV pool is larger than the address space"))?;
            MappedBuffer::new(num_bytes)
        };
        let [full, sliding] = KvLayout::PARTS.map(reserve);
        Ok(Self { layout, num_blocks, parts: [full?, sliding?] })
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

    /// Returns the bytes of one block, both parts.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.layout.block_bytes()
    }

    /// Copies all of block `from` to block `to`.
    ///
    /// # Panics
    /// When a block does not exist.
    pub fn copy_block(&mut self, from: BlockId, to: BlockId) {
        for part in KvLayout::PARTS {
            let (from, to) = (self.stretch(part, from, 1), self.stretch(part, to, 1));
            self.parts[index(part)].bytes_mut().copy_within(from, to.start);
        }
    }

    /// Returns the bytes of `block`, its parts one after the other; gathered in `scratch` where
    /// they lie apart. The same layout gives the same bytes on every instruction set.
    ///
    /// # Panics
    /// When the block does not exist.
    pub fn export_block<'a>(&'a self, block: BlockId, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let [full, sliding] =
            KvLayout::PARTS.map(|part| &self.part(part)[self.stretch(part, block, 1)]);
        if sliding.is_empty() {
            return full;
        }
        scratch.clear();
        scratch.extend_from_slice(full);
        scratch.extend_from_slice(sliding);
        scratch
    }

    /// Fills `block` with what [`Self::export_block`] returned for a block of the same layout.
    ///
    /// # Panics
    /// When the block does not exist or `bytes` has another length.
    pub fn import_block(&mut self, block: BlockId, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.layout.block_bytes());
        let mut rest = bytes;
        for part in KvLayout::PARTS {
            let stretch = self.stretch(part, block, 1);
            let (bytes, after) = rest.split_at(stretch.len());
            self.parts[index(part)].bytes_mut()[stretch].copy_from_slice(bytes);
            rest = after;
        }
    }

    /// Gives the memory of one part of the `num_blocks` blocks from `first` on back to the system,
    /// as whole operating-system pages; what was in it is undefined. A block shares its first and
    /// last page with its neighbours, so that many at once give back more than one by one. Where
    /// the system has no such call the memory stays.
    ///
    /// # Panics
    /// When a block does not exist.
    pub fn discard(&mut self, part: KvPart, first: BlockId, num_blocks: u32) {
        let stretch = self.stretch(part, first, num_blocks);
        self.parts[index(part)].release(stretch);
    }

    fn part(&self, part: KvPart) -> &[u8] {
        self.parts[index(part)].bytes()
    }

    /// Returns where the part of some blocks lies.
    fn stretch(&self, part: KvPart, first: BlockId, num_blocks: u32) -> Range<usize> {
        let end = first.0.checked_add(num_blocks).filter(|end| *end <= self.num_blocks);
        let end = end.unwrap_or_else(|| panic!("{num_blocks} blocks from {first:?} on"));
        let part_bytes = self.layout.part_bytes(part);
        first.index() * part_bytes..end as usize * part_bytes
    }

    /// Returns the regions of the part that `layer` belongs to, for writing: block after block,
    /// [`KvLayout::num_regions`] each.
    pub(crate) fn regions(&mut self, layer: usize) -> RowView<'_, u8> {
        let part = self.layout.sliding.part(layer);
        RowView::new(self.parts[index(part)].bytes_mut(), self.layout.region_bytes())
    }

    /// Returns one layer's keys and values of one head, in all blocks.
    ///
    /// `T` is the stored form of the layout's `dtype`.
    pub(crate) fn head<T: Pod>(&self, layer: usize, head: usize) -> KvHead<'_, T> {
        assert_eq!(size_of::<T>(), self.layout.dtype.element_bytes());
        let region = self.layout.region_bytes();
        let start = |side| self.layout.region_index(layer, side, head) * region;
        KvHead {
            bytes: self.part(self.layout.sliding.part(layer)),
            block_bytes: self.layout.num_regions(layer) * region,
            starts: [start(Side::Keys), start(Side::Values)],
            region_bytes: region,
            scales_start: self.layout.scales_start(),
            element: PhantomData,
        }
    }
}

/// Returns the place of a part in [`KvLayout::PARTS`].
const fn index(part: KvPart) -> usize {
    match part {
        KvPart::FullAttention => 0,
        KvPart::SlidingWindow => 1,
    }
}

/// One head of one layer, in all blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvHead<'a, T> {
    bytes: &'a [u8],
    /// Bytes from one block to the next.
    block_bytes: usize,
    /// Where the keys and the values of the first block lie.
    starts: [usize; 2],
    region_bytes: usize,
    scales_start: usize,
    element: PhantomData<T>,
}

/// The keys (or values) of one head in one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvRegion<'a, T> {
    /// In the order that [`crate::kv_layout`] shows.
    pub(crate) elements: &'a [T],
    /// The factor on each token's elements, `[block_size]`; empty where elements have none.
    pub(crate) scales: &'a [Bf16],
}

impl<'a, T: Pod> KvHead<'a, T> {
    /// Returns the keys or the values of a block.
    #[inline(always)]
    pub(crate) fn region(&self, block: BlockId, side: Side) -> KvRegion<'a, T> {
        let start = block.index() * self.block_bytes + self.starts[side as usize];
        let (elements, scales) =
            self.bytes[start..start + self.region_bytes].split_at(self.scales_start);
        KvRegion { elements: bytemuck::cast_slice(elements), scales: bytemuck::cast_slice(scales) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_layout::{KvDtype, SlidingPattern};
    use mini_infer_core::BlockSize;

    /// A pool whose bytes all differ from their neighbours'.
    fn filled(sliding: SlidingPattern) -> KvStorage {
        let layout = KvLayout {
            num_layers: 6,
            num_kv_heads: 2,
            head_dim: 32,
            block_size: BlockSize::DEFAULT,
            dtype: KvDtype::F16,
            sliding,
        };
        let mut storage = KvStorage::reserve(layout, 5).unwrap();
        let mut value = 0_u8;
        for byte in storage.parts.iter_mut().flat_map(|part| part.bytes_mut()) {
            value = value.wrapping_mul(5).wrapping_add(113);
            *byte = value;
        }
        storage
    }

    fn blocks(storage: &KvStorage) -> Vec<Vec<u8>> {
        let mut scratch = Vec::new();
        let ids = (0..storage.num_blocks()).map(BlockId);
        ids.map(|block| storage.export_block(block, &mut scratch).to_vec()).collect()
    }

    const PATTERNS: [SlidingPattern; 3] =
        [SlidingPattern::None, SlidingPattern::AllButEvery(3), SlidingPattern::AllButEvery(7)];

    #[test]
    fn a_copy_has_the_bytes_of_its_original_and_no_other_block_changes() {
        for pattern in PATTERNS {
            let mut storage = filled(pattern);
            let mut expected = blocks(&storage);
            storage.copy_block(BlockId(4), BlockId(1));
            expected[1] = expected[4].clone();
            assert!(blocks(&storage) == expected, "{pattern:?}");
        }
    }

    #[test]
    fn what_was_exported_can_be_imported_into_any_block() {
        for pattern in PATTERNS {
            let mut storage = filled(pattern);
            let mut expected = blocks(&storage);
            let bytes = expected[2].clone();
            assert_eq!(bytes.len(), storage.block_bytes());
            storage.import_block(BlockId(3), &bytes);
            expected[3] = bytes;
            assert!(blocks(&storage) == expected, "{pattern:?}");
        }
    }

    #[test]
    fn discarding_changes_neither_other_blocks_nor_the_other_part() {
        for pattern in PATTERNS {
            let mut storage = filled(pattern);
            let before = blocks(&storage);
            let full_bytes = storage.layout().part_bytes(KvPart::FullAttention);
            storage.discard(KvPart::FullAttention, BlockId(1), 2);
            storage.discard(KvPart::SlidingWindow, BlockId(4), 1);
            let after = blocks(&storage);
            for block in [0, 3, 4] {
                assert!(after[block][..full_bytes] == before[block][..full_bytes], "{pattern:?}");
            }
            for block in 0..4 {
                assert!(after[block][full_bytes..] == before[block][full_bytes..], "{pattern:?}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "2 blocks from BlockId(4) on")]
    fn blocks_beyond_the_pool_are_refused() {
        filled(SlidingPattern::None).discard(KvPart::FullAttention, BlockId(4), 2);
    }
}
