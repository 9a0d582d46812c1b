//! Writing keys and values into their slots.
//!
//! A token's stored form depends on its own numbers alone, never on the tokens beside it, so that
//! it is the same bits whatever step, chunk or block it is written in. Threads take one head each.

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
    let stored = StoredTokens::new(storage, layer);
    let store_head = |head: usize| {
        for (row, &slot) in rows.chunks_exact(width).zip(slots) {
            // SAFETY: each head is stored by one thread, one token after the other.
            unsafe { stored.write_head(isa, slot, head, &row[first..]) };
        }
    };
    if slots.len() < MIN_TOKENS_TO_SPLIT {
        (0..layout.num_kv_heads).for_each(store_head);
    } else {
        pool.split(layout.num_kv_heads, |heads| heads.for_each(store_head));
    }
}

/// The places of one layer's keys and values.
pub(crate) struct StoredTokens<'a> {
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

impl<'a> StoredTokens<'a> {
    /// Borrows the storage of one layer.
    pub(crate) fn new(storage: &'a mut KvStorage, layer: usize) -> Self {
        Self { layout: *storage.layout(), layer, regions: storage.regions(layer) }
    }

    /// Stores a token's keys and values, `[2, num_kv_heads, head_dim]`, in `slot`.
    ///
    /// # Safety
    /// Meanwhile, no other thread may write to the slot's block.
    pub(crate) unsafe fn write(&self, isa: Isa, slot: SlotId, numbers: &[f32]) {
        for head in 0..self.layout.num_kv_heads {
            // SAFETY: the caller's promise covers all heads of the block.
            unsafe { self.write_head(isa, slot, head, numbers) };
        }
    }

    /// Stores one head of a token's keys and values, `[2, num_kv_heads, head_dim]`, in `slot`.
    ///
    /// # Safety
    /// Meanwhile, no other thread may write to that head of the slot's block.
    unsafe fn write_head(&self, isa: Isa, slot: SlotId, head: usize, numbers: &[f32]) {
        let KvLayout { num_kv_heads, head_dim, .. } = self.layout;
        for (side, first) in [(Side::Keys, 0), (Side::Values, num_kv_heads * head_dim)] {
            let numbers = &numbers[first + head * head_dim..][..head_dim];
            // SAFETY: the caller promises that no other thread has a place of this head, and this
            // one drops each before it takes the next.
            let place = unsafe { self.place(slot, side, head) };
            match self.layout.dtype {
                KvDtype::F32 => place.write(numbers),
                KvDtype::F16 => place.write(&narrowed::<F16>(isa, numbers)[..head_dim]),
                KvDtype::Bf16 => place.write(&narrowed::<Bf16>(isa, numbers)[..head_dim]),
                KvDtype::Int8 => place.write_codes(isa, numbers),
            }
        }
    }

    /// Returns the place of one token's key or value.
    ///
    /// # Safety
    /// While it lives, no other place of the same layer, head and side may exist.
    unsafe fn place(&self, slot: SlotId, side: Side, head: usize) -> TokenPlace<'_> {
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
    /// Writes elements that are floats.
    fn write<T: StoredFloat>(self, numbers: &[T]) {
        let elements = self.layout.scales_start();
        let elements: &mut [T] = bytemuck::cast_slice_mut(&mut self.region[..elements]);
        place(self.layout, self.side, self.offset, elements, numbers);
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
        place(self.layout, self.side, self.offset, elements, codes);
        let scales: &mut [Bf16] = bytemuck::cast_slice_mut(scales);
        scales[self.offset] = scale;
    }
}

/// Puts one token's elements where they belong in a region.
fn place<T: Copy>(layout: KvLayout, side: Side, offset: usize, region: &mut [T], elements: &[T]) {
    let KvLayout { head_dim, dtype, .. } = layout;
    let together = dtype.together();
    match side {
        Side::Keys => {
            let strip = layout.strip();
            let start = offset / strip * head_dim * strip + offset % strip * together;
            let lanes = region[start..].chunks_mut(strip * together);
            for (lane, elements) in lanes.zip(elements.chunks_exact(together)) {
                lane[..together].copy_from_slice(elements);
            }
        }
        Side::Values => {
            let start = offset / together * together * head_dim + offset % together;
            let lanes = region[start..].iter_mut().step_by(together);
            lanes.zip(elements).for_each(|(place, element)| *place = *element);
        }
    }
}

/// Rounds the numbers of a head to their stored form.
fn narrowed<T: NarrowLanes>(isa: Isa, numbers: &[f32]) -> [T; MAX_HEAD_DIM] {
    let mut stored = [T::zeroed(); MAX_HEAD_DIM];
    T::narrow_all(isa, numbers, &mut stored[..numbers.len()]);
    stored
}

/// A float that whole heads are rounded to with an instruction set's vectors.
trait NarrowLanes: StoredFloat {
    fn narrow_all(isa: Isa, numbers: &[f32], stored: &mut [Self]);
}

impl NarrowLanes for F16 {
    fn narrow_all(isa: Isa, numbers: &[f32], stored: &mut [Self]) {
        narrow_f16(isa, numbers, stored);
    }
}

impl NarrowLanes for Bf16 {
    fn narrow_all(isa: Isa, numbers: &[f32], stored: &mut [Self]) {
        narrow_bf16(isa, numbers, stored);
    }
}

for_each_isa! {
    fn narrow_f16(numbers: &[f32], stored: &mut [F16]) = narrow_body
}
for_each_isa! {
    fn narrow_bf16(numbers: &[f32], stored: &mut [Bf16]) = narrow_body
}

#[inline(always)]
fn narrow_body<T: StoredFloat>(numbers: &[f32], stored: &mut [T]) {
    for (stored, x) in stored.iter_mut().zip(numbers) {
        *stored = T::narrow(*x);
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
