//! Where a kernel reads the keys and values of one partition.
//!
//! Few rows read them in place, block by block, once ([`InBlocks`]); while they read one part of
//! them they ask the processor for the next, which lies in another block. Many rows share one
//! widened copy ([`Widened`]): floats as f32, codes as 16-bit integers. Widening is exact, so both
//! give the same results.

use super::PARTITION;
use crate::aligned_floats::AlignedFloats;
use crate::float_format::StoredFloat;
use crate::kv_element::KvElement;
use crate::kv_layout::Side;
use crate::kv_rotation::MAX_HEAD_DIM;
use crate::kv_storage::{KvHead, KvRegion};
use crate::lanes::{LANES, Lanes};
use crate::prefetch::{CACHE_LINE, prefetch, prefetch_for_later};
use mini_infer_core::{BlockId, BlockSize};
use std::ops::Range;

/// The keys and values of one partition of one head. Tokens are counted from its start.
pub(super) trait PartitionKv<T: KvElement>: Copy {
    /// Returns the keys of the sixteen tokens from `first` on, a multiple of sixteen:
    /// `[head_dim / TOGETHER][LANES]`.
    fn strip(&self, first: usize) -> &[[T::Lane; LANES]];

    /// Returns what to ask for while [`Self::strip`] is read, of the same shape.
    fn ahead_of_strip(&self, first: usize) -> Option<&[[T::Lane; LANES]]>;

    /// Returns the values from `token` on, a multiple of [`KvElement::TOGETHER`], that lie
    /// together: `[num_tokens / TOGETHER][head_dim]`.
    fn values(&self, token: usize) -> &[T::Lane];

    /// Returns what to ask for while [`Self::values`] are read, of the same shape.
    fn ahead_of_values(&self, token: usize) -> Option<&[T::Lane]>;
}

/// Keys and values in their blocks of sixteen tokens or more.
#[derive(Clone, Copy, Debug)]
pub(super) struct InBlocks<'a, T> {
    pub(super) place: Place<'a, T>,
    /// What is likely to be read after this.
    pub(super) next: Option<Place<'a, T>>,
    pub(super) head_dim: usize,
}

/// Where one partition of a sequence lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a, T> {
    pub(super) kv: KvHead<'a, T>,
    /// The sequence's blocks from the start of the partition on.
    pub(super) table: &'a [BlockId],
    pub(super) block_size: BlockSize,
}

impl<'a, T: KvElement> Place<'a, T> {
    /// Returns the region that holds a token, and the token's index in it.
    #[inline(always)]
    fn locate(&self, token: usize, side: Side) -> Option<(KvRegion<'a, T>, usize)> {
        let shift = self.block_size.tokens().trailing_zeros();
        let block = *self.table.get(token >> shift)?;
        Some((self.kv.region(block, side), token & ((1 << shift) - 1)))
    }

    /// Returns the region of a token that exists.
    #[inline(always)]
    fn region(&self, token: usize, side: Side) -> (KvRegion<'a, T>, usize) {
        self.locate(token, side).expect("the block table reaches every token that is seen")
    }

    /// Asks for the scales of the strips that hold `tokens`.
    #[inline(always)]
    pub(super) fn ask_for_scales(&self, side: Side, tokens: Range<usize>) {
        for first in strips(tokens) {
            let (region, offset) = self.region(first, side);
            prefetch(&region.scales[offset]);
        }
    }

    /// Widens the scales of the strips that hold the tokens `tokens`.
    #[inline(always)]
    pub(super) fn load_scales<V: Lanes>(
        &self,
        proof: V::Proof,
        side: Side,
        tokens: Range<usize>,
        scales: &mut [f32; PARTITION],
    ) {
        for first in strips(tokens) {
            let (KvRegion { scales: stored, .. }, offset) = self.region(first, side);
            let place = &mut scales.as_chunks_mut::<LANES>().0[first / LANES];
            if let Some(stored) = stored[offset..].first_chunk() {
                V::load_bf16(proof, stored).store(place);
            } else {
                // A block of eight; past the last block the scales are nobody's.
                let second = self.locate(first + LANES / 2, side);
                let second = second.map_or(&[][..], |(region, _)| region.scales);
                place.fill(0.0);
                let stored = stored.iter().chain(second);
                place.iter_mut().zip(stored).for_each(|(scale, stored)| *scale = stored.widen());
            }
        }
    }
}

/// The keys and values of a partition that is widened later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead<'a> {
    /// Elements of its blocks' keys and values.
    regions: [&'a [u8]; MAX_REGIONS],
    num_regions: usize,
}

/// Blocks of a partition, the smallest that there are, with keys and values.
const MAX_REGIONS: usize = 2 * PARTITION / 8;

impl<'a> Ahead<'a> {
    /// Returns where the blocks lie that hold `tokens`.
    pub(super) fn new<T: KvElement>(place: &Place<'a, T>, tokens: Range<usize>) -> Self {
        let mut ahead = Self { regions: [&[]; MAX_REGIONS], num_regions: 0 };
        let block_size = place.block_size.tokens() as usize;
        for token in (tokens.start / block_size * block_size..tokens.end).step_by(block_size) {
            for side in [Side::Keys, Side::Values] {
                let (region, _) = place.region(token, side);
                ahead.regions[ahead.num_regions] = bytemuck::cast_slice(region.elements);
                ahead.num_regions += 1;
            }
        }
        ahead
    }

    /// Asks for some of `num_shares` equal shares.
    #[inline(always)]
    pub(super) fn ask_for_shares(&self, shares: Range<usize>, num_shares: usize) {
        let region_lines = self.regions[0].len().div_ceil(CACHE_LINE);
        let num_lines = self.num_regions * region_lines;
        let first = num_lines * shares.start / num_shares;
        let mut num_left = num_lines * shares.end / num_shares - first;
        let mut skipped = first % region_lines * CACHE_LINE;
        for region in &self.regions[first / region_lines..self.num_regions] {
            let lines = region[skipped..].chunks(CACHE_LINE).take(num_left);
            num_left -= lines.len();
            lines.for_each(|line| prefetch_for_later(&line[0]));
            skipped = 0;
        }
    }
}

/// Returns the first token of each strip that holds one of `tokens`.
#[inline(always)]
pub(super) fn strips(tokens: Range<usize>) -> impl Iterator<Item = usize> {
    (tokens.start / LANES * LANES..tokens.end).step_by(LANES)
}

/// Returns the keys of sixteen tokens.
#[inline(always)]
fn strip_of<T: KvElement>(elements: &[T], offset: usize, head_dim: usize) -> &[[T::Lane; LANES]] {
    let elements = &elements[offset * head_dim..][..LANES * head_dim];
    bytemuck::cast_slice::<T, T::Lane>(elements).as_chunks().0
}

/// Returns the values of the tokens from `offset` on.
#[inline(always)]
fn values_from<T: KvElement>(elements: &[T], offset: usize, head_dim: usize) -> &[T::Lane] {
    debug_assert!(offset.is_multiple_of(T::TOGETHER));
    bytemuck::cast_slice(&elements[offset * head_dim..])
}

impl<T: KvElement> PartitionKv<T> for InBlocks<'_, T> {
    #[inline(always)]
    fn strip(&self, first: usize) -> &[[T::Lane; LANES]] {
        let (region, offset) = self.place.region(first, Side::Keys);
        strip_of(region.elements, offset, self.head_dim)
    }

    #[inline(always)]
    fn ahead_of_strip(&self, first: usize) -> Option<&[[T::Lane; LANES]]> {
        let (region, offset) = self.place.region(first, Side::Values);
        Some(strip_of(region.elements, offset, self.head_dim))
    }

    #[inline(always)]
    fn values(&self, token: usize) -> &[T::Lane] {
        let (region, offset) = self.place.region(token, Side::Values);
        values_from(region.elements, offset, self.head_dim)
    }

    #[inline(always)]
    fn ahead_of_values(&self, token: usize) -> Option<&[T::Lane]> {
        let (region, offset) = self.next.as_ref()?.locate(token, Side::Keys)?;
        if let Some(scale) = region.scales.get(offset) {
            prefetch(scale);
        }
        Some(values_from(region.elements, offset, self.head_dim))
    }
}

/// A widened copy of a partition.
#[derive(Debug, Default)]
pub(super) struct Widened {
    head_dim: usize,
    /// As in a strip: `[PARTITION / LANES][head_dim / TOGETHER][LANES][TOGETHER]`, of
    /// [`KvElement::Wide`].
    keys: AlignedFloats,
    /// `[PARTITION / TOGETHER][head_dim][TOGETHER]`, of [`KvElement::Wide`].
    values: AlignedFloats,
    /// Scales of the keys and of the values, where elements have them.
    scales: Option<[[f32; PARTITION]; 2]>,
}

impl Widened {
    /// Copies the keys and values of the strips that hold `tokens`.
    #[inline(always)]
    pub(super) fn load<V: Lanes, T: KvElement>(
        &mut self,
        proof: V::Proof,
        place: &Place<'_, T>,
        tokens: Range<usize>,
        head_dim: usize,
    ) {
        self.head_dim = head_dim;
        self.load_keys::<V, T>(proof, place, tokens.clone());
        self.load_values::<V, T>(proof, place, tokens.clone());
        self.scales = None;
        if T::IS_CODE {
            let [keys, values] = self.scales.insert([[0.0; PARTITION]; 2]);
            place.load_scales::<V>(proof, Side::Keys, tokens.clone(), keys);
            place.load_scales::<V>(proof, Side::Values, tokens, values);
        }
    }

    /// Returns the scales of the keys and of the values.
    pub(super) fn scales(&self) -> [Option<&[f32; PARTITION]>; 2] {
        let [keys, values] = self.scales.as_ref().map_or([None; 2], |[k, v]| [Some(k), Some(v)]);
        [keys, values]
    }

    /// Copies the keys of the strips that hold `tokens`.
    #[inline(always)]
    fn load_keys<V: Lanes, T: KvElement>(
        &mut self,
        proof: V::Proof,
        place: &Place<'_, T>,
        tokens: Range<usize>,
    ) {
        let head_dim = self.head_dim;
        let keys = wide_of::<T>(&mut self.keys, head_dim);
        let mut joined = [T::zeroed(); LANES * MAX_HEAD_DIM];
        for first in strips(tokens) {
            let (region, offset) = place.region(first, Side::Keys);
            let stored = if place.block_size.tokens() as usize >= LANES {
                &region.elements[offset * head_dim..][..LANES * head_dim]
            } else {
                // Two strips of eight make one of sixteen; past the last block the first stands in
                // for the second, whose scores nobody sees.
                let second = place.locate(first + LANES / 2, Side::Keys);
                let second = second.map_or(region.elements, |(second, _)| second.elements);
                let joined = &mut joined[..LANES * head_dim];
                join(region.elements, second, LANES / 2 * T::TOGETHER, joined);
                joined
            };
            let widened = &mut keys[first * head_dim..][..LANES * head_dim];
            let widened = widened.as_chunks_mut().0.iter_mut();
            for (widened, stored) in widened.zip(stored.as_chunks().0) {
                T::widen::<V>(proof, stored, widened);
            }
        }
    }

    /// Copies the values of `tokens`.
    #[inline(always)]
    fn load_values<V: Lanes, T: KvElement>(
        &mut self,
        proof: V::Proof,
        place: &Place<'_, T>,
        tokens: Range<usize>,
    ) {
        let head_dim = self.head_dim;
        let values = wide_of::<T>(&mut self.values, head_dim);
        let end = tokens.end.next_multiple_of(T::TOGETHER);
        let mut token = tokens.start / T::TOGETHER * T::TOGETHER;
        while token < end {
            let (region, offset) = place.region(token, Side::Values);
            let stored = &region.elements[offset * head_dim..];
            let num_tokens = (stored.len() / head_dim).min(end - token);
            let widened = &mut values[token * head_dim..][..num_tokens * head_dim];
            let widened = widened.as_chunks_mut().0.iter_mut();
            for (widened, stored) in widened.zip(stored.as_chunks().0) {
                T::widen::<V>(proof, stored, widened);
            }
            token += num_tokens;
        }
    }
}

/// Returns the place of a partition's keys or values in their wide form.
#[inline(always)]
fn wide_of<T: KvElement>(place: &mut AlignedFloats, head_dim: usize) -> &mut [T::Wide] {
    let num_floats = PARTITION * head_dim * size_of::<T::Wide>() / size_of::<f32>();
    bytemuck::cast_slice_mut(place.first_mut(num_floats))
}

/// Writes runs of `run` elements, one of `first` and one of `second` in turn.
#[inline(always)]
fn join<T: Copy>(first: &[T], second: &[T], run: usize, joined: &mut [T]) {
    let runs = first.chunks_exact(run).zip(second.chunks_exact(run));
    for (joined, (first, second)) in joined.chunks_exact_mut(2 * run).zip(runs) {
        joined[..run].copy_from_slice(first);
        joined[run..].copy_from_slice(second);
    }
}

/// `T` is the wide form of what was copied.
impl<T: KvElement> PartitionKv<T> for &Widened {
    #[inline(always)]
    fn strip(&self, first: usize) -> &[[T::Lane; LANES]] {
        strip_of::<T>(bytemuck::cast_slice(&self.keys), first, self.head_dim)
    }

    #[inline(always)]
    fn ahead_of_strip(&self, _first: usize) -> Option<&[[T::Lane; LANES]]> {
        None
    }

    #[inline(always)]
    fn values(&self, token: usize) -> &[T::Lane] {
        values_from::<T>(bytemuck::cast_slice(&self.values), token, self.head_dim)
    }

    #[inline(always)]
    fn ahead_of_values(&self, _token: usize) -> Option<&[T::Lane]> {
        None
    }
}
