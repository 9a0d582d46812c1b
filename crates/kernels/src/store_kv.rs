//! Writing keys and values into their slots.
//!
//! A token's stored form depends on its own numbers alone, never on the tokens beside it, so that
//! it is the same bits whatever step, chunk or block it is written in. Threads take one head each.

use crate::float_format::{Bf16, F16, StoredFloat};
use crate::kv_layout::{KvDtype, Side};
use crate::kv_storage::KvStorage;
use crate::thread_pool::ThreadPool;
use mini_infer_core::SlotId;

/// Tokens below which storing stays on the calling thread.
const MIN_TOKENS_TO_SPLIT: usize = 4;

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
    match storage.layout().dtype {
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
    let layout = *storage.layout();
    let head_dim = layout.head_dim;
    let regions = storage.regions(layer);
    let store_head = |head: usize| {
        for (row, &slot) in rows.chunks_exact(width).zip(slots) {
            let (block, offset) = layout.block_size.split(slot);
            let offset = offset as usize;
            let (keys, values) = row[first..].split_at(layout.num_kv_heads * head_dim);
            let key_region = layout.region_index(block, layer, Side::Keys, head);
            let strip = layout.strip();
            let strip_len = head_dim * strip * size_of::<T>();
            // SAFETY: a region belongs to one head, each head is stored by one thread, and the
            // piece is dropped before this thread takes the next one.
            let place = unsafe { regions.piece(key_region, offset / strip * strip_len, strip_len) };
            let place: &mut [T] = bytemuck::cast_slice_mut(place);
            let lanes = place[offset % strip..].iter_mut().step_by(strip);
            for (place, key) in lanes.zip(&keys[head * head_dim..][..head_dim]) {
                *place = T::narrow(*key);
            }
            let value_region = layout.region_index(block, layer, Side::Values, head);
            let row_len = head_dim * size_of::<T>();
            // SAFETY: as above.
            let place = unsafe { regions.piece(value_region, offset * row_len, row_len) };
            let place: &mut [T] = bytemuck::cast_slice_mut(place);
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
    use crate::kv_layout::{KvLayout, SlidingPattern};
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
