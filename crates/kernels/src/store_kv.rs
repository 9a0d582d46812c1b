//! Writing keys and values into their slots.
//!
//! A token's stored form depends on its own numbers alone, never on the tokens beside it, so that
//! it is the same bits whatever step, chunk or block it is written in. Threads take the keys, or the
//! values, of one head each.

use crate::dispatch::for_each_isa;
use crate::float_format::{Bf16, F16, StoredFloat};
use crate::isa::Isa;
use crate::kv_layout::{KvDtype, KvLayout, Side};
use crate::kv_rotation::{MAX_HEAD_DIM, rotate_to_codes};
use crate::kv_storage::KvStorage;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use mini_infer_core::SlotId;

/// Tokens below which storing stays on the calling thread.
const MIN_TOKENS_TO_SPLIT: usize = 4;

/// Stores the keys and values of one layer: row `i` of `rows` (its `2 * num_kv_heads * head_dim`
/// elements from `first` on, keys before values) goes to `slots[i]`.
///
/// # Panics
/// When a row or a slot does not exist.
#[expect(clippy::too_many_arguments, reason = "one kernel call, no natural grouping")]
pub fn store_kv(
    isa: Isa,
    pool: &ThreadPool,
    storage: &mut KvStorage,
    layer: usize,
    slots: &[SlotId],
    rows: &[f32],
    width: usize,
    first: usize,
) {
    assert_eq!(rows.len(), slots.len() * width);
    let layout = *storage.layout();
    let places = Places { layout, layer, regions: storage.regions(layer) };
    let num_heads = layout.num_kv_heads;
    // The heads of the keys, then those of the values, as in a row.
    let store_head = |index: usize| {
        let side = if index < num_heads { Side::Keys } else { Side::Values };
        for (row, &slot) in rows.chunks_exact(width).zip(slots) {
            let numbers = &row[first + index * layout.head_dim..][..layout.head_dim];
            // SAFETY: each head of each side is stored by one thread, one token after the other.
            let place = unsafe { places.token(slot, side, index % num_heads) };
            match layout.dtype {
                KvDtype::F32 => place.write::<f32>(numbers, |from, to| to.copy_from_slice(from)),
                KvDtype::F16 => place.write(numbers, |from, to| narrow_f16(isa, from, to)),
                KvDtype::Bf16 => place.write(numbers, |from, to| narrow_bf16(isa, from, to)),
                KvDtype::Int8 => place.write_codes(isa, numbers),
            }
        }
    };
    if slots.len() < MIN_TOKENS_TO_SPLIT {
        (0..2 * num_heads).for_each(store_head);
    } else {
        pool.claim(2 * num_heads, store_head);
    }
}

for_each_isa! {
    fn narrow_f16(numbers: &[f32], narrow: &mut [F16]) = narrow_all
}
for_each_isa! {
    fn narrow_bf16(numbers: &[f32], narrow: &mut [Bf16]) = narrow_all
}

#[inline(always)]
fn narrow_all<T: StoredFloat>(numbers: &[f32], narrow: &mut [T]) {
    for (narrow, number) in narrow.iter_mut().zip(numbers) {
        *narrow = T::narrow(*number);
    }
}

/// The places of one layer's keys and values.
struct Places<'a> {
    layout: KvLayout,
    layer: usize,
    regions: RowView<'a, u8>,
}

/// Where one token's key or value of one head goes.
struct TokenPlace<'a> {
    layout: KvLayout,
    side: Side,
    /// Index of the token in its block.
    offset: usize,
    /// The head's keys or values in the block.
    region: &'a mut [u8],
}

impl Places<'_> {
    /// Returns the place of one token's key or value.
    ///
    /// # Safety
    /// While it lives, no other place of the same layer, head and side may exist.
    unsafe fn token(&self, slot: SlotId, side: Side, head: usize) -> TokenPlace<'_> {
        let layout = self.layout;
        let (block, offset) = layout.block_size.split(slot);
        let region = block.index() * layout.num_regions(self.layer)
            + layout.region_index(self.layer, side, head);
        // SAFETY: a region belongs to one layer, head and side, so the caller's promise covers it.
        let region = unsafe { self.regions.piece(region, 0, layout.region_bytes()) };
        TokenPlace { layout, side, offset: offset as usize, region }
    }
}

impl TokenPlace<'_> {
    /// Writes elements that are floats, as `narrow` makes them.
    fn write<T: StoredFloat>(self, numbers: &[f32], narrow: impl Fn(&[f32], &mut [T])) {
        let mut stored = [T::zeroed(); MAX_HEAD_DIM];
        let stored = &mut stored[..numbers.len()];
        narrow(numbers, stored);
        let elements = self.layout.scales_start();
        let elements: &mut [T] = bytemuck::cast_slice_mut(&mut self.region[..elements]);
        place(self.layout, self.side, self.offset, elements, stored.iter().copied());
    }

    /// Writes the codes and the scale of the rotated head.
    fn write_codes(self, isa: Isa, numbers: &[f32]) {
        let mut head = [0.0; MAX_HEAD_DIM];
        let mut codes = [0; MAX_HEAD_DIM];
        let (head, codes) = (&mut head[..numbers.len()], &mut codes[..numbers.len()]);
        head.copy_from_slice(numbers);
        let scale = rotate_to_codes(isa, head, codes);
        let (elements, scales) = self.region.split_at_mut(self.layout.scales_start());
        let elements: &mut [i8] = bytemuck::cast_slice_mut(elements);
        place(self.layout, self.side, self.offset, elements, codes.iter().copied());
        let scales: &mut [Bf16] = bytemuck::cast_slice_mut(scales);
        scales[self.offset] = scale;
    }
}

/// Puts one token's elements where they belong in a region.
fn place<T>(
    layout: KvLayout,
    side: Side,
    offset: usize,
    region: &mut [T],
    elements: impl Iterator<Item = T>,
) {
    let head_dim = layout.head_dim;
    match side {
        Side::Keys => {
            let strip = layout.strip();
            let start = offset / strip * head_dim * strip + offset % strip;
            let lanes = region[start..].iter_mut().step_by(strip);
            lanes.zip(elements).for_each(|(place, element)| *place = element);
        }
        Side::Values => {
            let row = &mut region[offset * head_dim..][..head_dim];
            row.iter_mut().zip(elements).for_each(|(place, element)| *place = element);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_layout::SlidingPattern;
    use mini_infer_core::{BlockId, BlockSize};
    use std::num::NonZeroUsize;

    /// Stores rows of numbers that are all different and looks them up.
    fn check(block_size: BlockSize, sliding: SlidingPattern) {
        let pool = ThreadPool::new(NonZeroUsize::new(2).unwrap());
        let dtype = KvDtype::F32;
        let layout =
            KvLayout { num_layers: 3, num_kv_heads: 3, head_dim: 16, block_size, dtype, sliding };
        let mut storage = KvStorage::reserve(layout, 4).unwrap();
        let slots: Vec<_> = (0..5).map(|i| SlotId(block_size.tokens() + i * 3)).collect();
        let width = 7 + 2 * 48;
        let rows: Vec<f32> = (0..slots.len() * width).map(|i| i as f32 + 1.0).collect();
        store_kv(Isa::Scalar, &pool, &mut storage, 1, &slots, &rows, width, 7);
        for (i, slot) in slots.iter().enumerate() {
            let (block, offset) = block_size.split(*slot);
            let (offset, strip) = (offset as usize, layout.strip());
            for head in 0..3 {
                let view = storage.head::<f32>(1, head);
                let keys = view.region(block, Side::Keys);
                let values = view.region(block, Side::Values);
                assert!(keys.scales.is_empty() && values.scales.is_empty());
                for d in 0..16 {
                    let at = (offset / strip * 16 + d) * strip + offset % strip;
                    assert_eq!(keys.elements[at], rows[i * width + 7 + head * 16 + d]);
                    let value = values.elements[offset * 16 + d];
                    assert_eq!(value, rows[i * width + 7 + 48 + head * 16 + d]);
                }
            }
        }
        let mut scratch = Vec::new();
        let blocks = (0..4).map(BlockId);
        let written = |block| {
            let bytes = storage.export_block(block, &mut scratch);
            bytes.chunks(4).filter(|bytes| *bytes != [0; 4]).count()
        };
        assert_eq!(blocks.map(written).sum::<usize>(), slots.len() * 96);
    }

    #[test]
    fn stored_rows_are_found_where_the_layout_says_and_nowhere_else() {
        for tokens in [8, 16, 32] {
            for sliding in [SlidingPattern::None, SlidingPattern::AllButEvery(3)] {
                check(BlockSize::new(tokens).unwrap(), sliding);
            }
        }
    }
}
