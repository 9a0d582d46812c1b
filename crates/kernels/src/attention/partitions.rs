//! What rows get from one partition of their context: scores, weights, weighted values.
//!
//! A row is computed from the tokens that it sees and from nothing else: others are not even
//! multiplied by zero, because behind a window, or after a row's own position, a block may hold
//! anything, and NaN times zero is NaN. Operations and their order per row do not depend on the
//! rows beside it:
//!
//! - a score is a chain of fused multiply-adds over the dimensions, times the key's scale, plus
//!   what the key offset adds, squeezed below the soft cap where there is one;
//! - a weight is two to the power of the score less the partition's largest; weights are summed by
//!   lane, then over the lanes;
//! - values are a chain of fused multiply-adds over the tokens.
//!
//! Both chains are latency-bound, so a kernel runs as many side by side as registers hold
//! ([`Lanes::ACCUMULATORS`]): rows times strips of keys, or rows times chunks of a value.

use super::PARTITION;
use super::partition_kv::{Ahead, InBlocks, PartitionKv, Place, Widened, strips};
use super::results::RowResults;
use super::rows::{Band, RowTile, Rows};
use crate::aligned_floats::AlignedFloats;
use crate::dispatch::for_each_lanes;
use crate::exp::exp2_lanes;
use crate::float_format::{Bf16, F16};
use crate::isa::Isa;
use crate::key_offset::OffsetPair;
use crate::kv_element::KvElement;
use crate::kv_layout::Side;
use crate::kv_rotation::MAX_HEAD_DIM;
use crate::lanes::{LANES, Lanes};
use crate::prefetch::{CACHE_LINE, prefetch};
use crate::tanh::soft_cap_lanes;
use std::ops::Range;

/// Strips of keys that all rows go through before the next ones, so that the keys stay in the L1
/// cache: 64 tokens, 16 KiB for heads of 64 dimensions.
const STRIPS_PER_PASS: usize = 4;

/// A partition of some rows' context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition<'a> {
    /// Its place in the context, counted in partitions.
    pub(super) index: usize,
    /// What the stored keys lack.
    pub(super) offset: &'a [OffsetPair],
    /// What scores are squeezed below, in their unit: the weight is two to the power of a score.
    pub(super) soft_cap: Option<f32>,
}

impl Partition<'_> {
    /// Returns whether scores are anything but the products with the keys, which have `scales`.
    fn changes(&self, scales: Scales<'_>) -> bool {
        scales.is_some() || !self.offset.is_empty() || self.soft_cap.is_some()
    }
}

/// The scores of each row with the tokens of a partition, then their weights.
pub(super) type Scores = AlignedFloats;

/// Scales of a partition's keys or values; `None` where elements have none.
type Scales<'a> = Option<&'a [f32; PARTITION]>;

/// A stored form with its kernels.
pub(super) trait AttendedElement: KvElement {
    /// Computes few rows, reading each key and value once, in place.
    fn attend_in_blocks(
        isa: Isa,
        kv: InBlocks<'_, Self>,
        partition: Partition<'_>,
        rows: &Rows,
        scores: &mut Scores,
        results: RowResults<'_>,
    );

    /// Makes `widened` a copy of the tokens of `place` that hold `tokens`.
    fn widen(
        isa: Isa,
        place: Place<'_, Self>,
        tokens: Range<usize>,
        head_dim: usize,
        widened: &mut Widened,
    );
}

macro_rules! attended_element {
    ($($module:ident: $element:ty),*) => {$(
        mod $module {
            use super::*;

            for_each_lanes! {
                pub(super) fn in_blocks(kv: InBlocks<'_, $element>, partition: Partition<'_>, rows: &Rows, scores: &mut Scores, results: RowResults<'_>) = attend_in_blocks::<$element>
            }
            for_each_lanes! {
                pub(super) fn widened(place: Place<'_, $element>, tokens: Range<usize>, head_dim: usize, widened: &mut Widened) = widen::<$element>
            }
        }

        impl AttendedElement for $element {
            fn attend_in_blocks(
                isa: Isa,
                kv: InBlocks<'_, Self>,
                partition: Partition<'_>,
                rows: &Rows,
                scores: &mut Scores,
                results: RowResults<'_>,
            ) {
                $module::in_blocks(isa, kv, partition, rows, scores, results);
            }

            fn widen(
                isa: Isa,
                place: Place<'_, Self>,
                tokens: Range<usize>,
                head_dim: usize,
                widened: &mut Widened,
            ) {
                $module::widened(isa, place, tokens, head_dim, widened);
            }
        }
    )*};
}

attended_element!(of_f32: f32, of_f16: F16, of_bf16: Bf16, of_i8: i8);

for_each_lanes! {
    /// Computes rows from a widened copy of the keys and values that they see, and asks for what
    /// lies ahead.
    pub(super) fn attend_widened(widened: &Widened, partition: Partition<'_>, ahead: Option<&Ahead<'_>>, rows: &Rows, band: Band, scores: &mut Scores, results: &mut RowResults<'_>) = attend_widened_body
}

#[inline(always)]
fn attend_in_blocks<V: Lanes, T: KvElement>(
    proof: V::Proof,
    kv: InBlocks<'_, T>,
    partition: Partition<'_>,
    rows: &Rows,
    scores: &mut Scores,
    mut results: RowResults<'_>,
) {
    let band = rows.bands().next().expect("few rows");
    let (any, _) = rows.seen_by(band.whole(), partition.index);
    let mut scales = [0.0; PARTITION];
    if T::IS_SCALED {
        kv.place.ask_for_scales(Side::Values, any.clone());
        kv.place.load_scales::<V>(proof, Side::Keys, any.clone(), &mut scales);
    }
    let scores = scores_of(band, scores);
    multiply::<V, T, _>(proof, kv, partition, None, rows, band, scores);
    let mut value_scales = [0.0; PARTITION];
    if T::IS_SCALED {
        kv.place.load_scales::<V>(proof, Side::Values, any, &mut value_scales);
    }
    let scales = [&scales, &value_scales].map(|scales| T::IS_SCALED.then_some(scales));
    weigh::<V, T, _>(proof, kv, partition, scales, rows, band, scores, &mut results);
}

#[inline(always)]
fn widen<V: Lanes, T: KvElement>(
    proof: V::Proof,
    place: Place<'_, T>,
    tokens: Range<usize>,
    head_dim: usize,
    widened: &mut Widened,
) {
    widened.load::<V, T>(proof, &place, tokens, head_dim);
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one kernel, no natural grouping")]
fn attend_widened_body<V: Lanes>(
    proof: V::Proof,
    widened: &Widened,
    partition: Partition<'_>,
    ahead: Option<&Ahead<'_>>,
    rows: &Rows,
    band: Band,
    scores: &mut Scores,
    results: &mut RowResults<'_>,
) {
    let scores = scores_of(band, scores);
    multiply::<V, f32, _>(proof, widened, partition, ahead, rows, band, scores);
    weigh::<V, f32, _>(proof, widened, partition, widened.scales(), rows, band, scores, results);
}

/// Returns where the scores of a band lie, and those of one row more.
fn scores_of(band: Band, scores: &mut Scores) -> &mut [[f32; PARTITION]] {
    scores.first_mut((band.num_rows + 1) * PARTITION).as_chunks_mut().0
}

/// Calls a function with the number of rows of a tile as a constant.
macro_rules! for_tile_width {
    ($tile:expr, $function:ident::<$v:ty, $t:ty, $k:ty>($($argument:expr),* $(,)?)) => {
        match $tile.num_rows {
            1 => $function::<$v, $t, $k, 1>($($argument),*),
            2 | 3 => $function::<$v, $t, $k, 3>($($argument),*),
            4 => $function::<$v, $t, $k, 4>($($argument),*),
            _ => $function::<$v, $t, $k, 6>($($argument),*),
        }
    };
}

/// Writes the products of the rows with the keys of the strips that hold a token that some row of
/// a tile sees; asks for what lies ahead, little by little.
#[inline(always)]
fn multiply<V: Lanes, T: KvElement, K: PartitionKv<T>>(
    proof: V::Proof,
    kv: K,
    partition: Partition<'_>,
    ahead: Option<&Ahead<'_>>,
    rows: &Rows,
    band: Band,
    scores: &mut [[f32; PARTITION]],
) {
    for pass in (0..PARTITION / LANES).step_by(STRIPS_PER_PASS) {
        for tile in band.tiles() {
            if let (Some(ahead), 0) = (ahead, pass) {
                ahead.ask_for_shares(tile.first..tile.first + tile.num_rows, rows.len());
            }
            let (any, _) = rows.seen_by(tile, partition.index);
            let first = (any.start / LANES).max(pass);
            let end = any.end.div_ceil(LANES).min(pass + STRIPS_PER_PASS);
            if first < end {
                let queries = &rows.queries[tile.first..];
                let scores = &mut scores[tile.first - band.first..];
                for_tile_width!(
                    tile,
                    multiply_tile::<V, T, K>(proof, kv, rows.head_dim, queries, first..end, scores)
                );
            }
        }
    }
}

/// Writes the products of a tile with some strips.
#[inline(always)]
fn multiply_tile<V: Lanes, T: KvElement, K: PartitionKv<T>, const R: usize>(
    proof: V::Proof,
    kv: K,
    head_dim: usize,
    queries: &[[f32; MAX_HEAD_DIM]],
    mut strips: Range<usize>,
    scores: &mut [[f32; PARTITION]],
) {
    let queries = queries.first_chunk::<R>().expect("a row more than there are");
    let scores = scores.first_chunk_mut::<R>().expect("a row more than there are");
    macro_rules! multiply_strips {
        ($num_strips:literal) => {{
            let first = strips.start;
            multiply_strips::<V, T, K, R, $num_strips>(proof, kv, head_dim, queries, first, scores)
        }};
    }
    // Conditions of constants alone, so that no code is generated for what registers cannot hold.
    while !strips.is_empty() {
        strips.start += if const { V::ACCUMULATORS / R >= 4 } {
            if strips.len() >= 4 { multiply_strips!(4) } else { multiply_strips!(1) }
        } else if const { V::ACCUMULATORS / R >= 2 } {
            if strips.len() >= 2 { multiply_strips!(2) } else { multiply_strips!(1) }
        } else {
            multiply_strips!(1)
        };
    }
}

/// Writes the products of `R` queries with the keys of `S` strips; returns `S`.
#[inline(always)]
fn multiply_strips<V: Lanes, T: KvElement, K: PartitionKv<T>, const R: usize, const S: usize>(
    proof: V::Proof,
    kv: K,
    head_dim: usize,
    queries: &[[f32; MAX_HEAD_DIM]; R],
    first: usize,
    scores: &mut [[f32; PARTITION]; R],
) -> usize {
    let head_dim = head_dim.min(MAX_HEAD_DIM);
    let mut keys: [&[[T; LANES]]; S] = [&[]; S];
    let mut ahead: [Option<&[[T; LANES]]>; S] = [None; S];
    for s in 0..S {
        keys[s] = &kv.strip((first + s) * LANES)[..head_dim];
        ahead[s] = kv.ahead_of_strip((first + s) * LANES);
    }
    let mut acc = [[V::splat(proof, 0.0); S]; R];
    for d in 0..head_dim {
        // One strip after the other, so that only one takes a register beside the sums.
        for s in 0..S {
            let strip = T::load(proof, &keys[s][d]);
            if let Some(ahead) = ahead[s]
                && (d * size_of::<[T; LANES]>()).is_multiple_of(CACHE_LINE)
            {
                prefetch(&ahead[d]);
            }
            for (acc, query) in acc.iter_mut().zip(queries) {
                acc[s] = V::splat(proof, query[d]).mul_add(strip, acc[s]);
            }
            V::forget_loads();
        }
    }
    for r in 0..R {
        let place = &mut scores[r].as_chunks_mut::<LANES>().0[first..first + S];
        for s in 0..S {
            acc[r][s].store(&mut place[s]);
        }
    }
    S
}

/// Makes scores of the products, weights of the scores, and weighs the values with them.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one kernel, no natural grouping")]
fn weigh<V: Lanes, T: KvElement, K: PartitionKv<T>>(
    proof: V::Proof,
    kv: K,
    partition: Partition<'_>,
    scales: [Scales<'_>; 2],
    rows: &Rows,
    band: Band,
    scores: &mut [[f32; PARTITION]],
    results: &mut RowResults<'_>,
) {
    let [key_scales, value_scales] = scales;
    for tile in band.tiles() {
        let first = tile.first - band.first;
        let scores = &mut scores[first..];
        let (any, all) = rows.seen_by(tile, partition.index);
        for (r, scores) in (tile.first..).zip(&mut scores[..tile.num_rows]) {
            let seen = rows.seen(r, partition.index);
            let factors = &rows.offset_factors[r];
            if partition.changes(key_scales) {
                finish_scores::<V>(proof, partition, key_scales, factors, seen.clone(), scores);
            }
            if all.len() < PARTITION {
                scores[..seen.start].fill(f32::NEG_INFINITY);
                scores[seen.end..].fill(f32::NEG_INFINITY);
            }
        }
        let strips = any.start / LANES..any.end.div_ceil(LANES);
        let (maximum, sum) = (&mut results.maximum[first..], &mut results.sum[first..]);
        match tile.num_rows {
            1 => weights::<V, 1>(proof, scores, strips, value_scales, maximum, sum),
            2 | 3 => weights::<V, 3>(proof, scores, strips, value_scales, maximum, sum),
            4 => weights::<V, 4>(proof, scores, strips, value_scales, maximum, sum),
            _ => weights::<V, 6>(proof, scores, strips, value_scales, maximum, sum),
        }
        if all.is_empty() {
            for r in first..first + tile.num_rows {
                if rows.seen(band.first + r, partition.index).is_empty() {
                    (results.maximum[r], results.sum[r]) = (f32::NEG_INFINITY, 0.0);
                }
            }
        }
        if !any.is_empty() {
            let values = &mut results.values[first * rows.head_dim..];
            weigh_tile::<V, T, K>(proof, kv, partition, rows, tile, scores, values);
        }
    }
}

/// Makes scores of a row's products with the tokens that it sees: times the key's scale, with what
/// stored keys lack, and below the soft cap.
#[inline(always)]
fn finish_scores<V: Lanes>(
    proof: V::Proof,
    partition: Partition<'_>,
    scales: Scales<'_>,
    factors: &[[f32; 2]],
    seen: Range<usize>,
    scores: &mut [f32; PARTITION],
) {
    for first in strips(seen) {
        let place = &mut scores.as_chunks_mut::<LANES>().0[first / LANES];
        let mut score = V::load(proof, place);
        if let Some(scales) = scales {
            score = score.mul(V::load(proof, &scales.as_chunks().0[first / LANES]));
        }
        for (pair, [on_cos, on_sin]) in partition.offset.iter().zip(factors) {
            let (cos, sin) = pair.turns.strip(partition.index * PARTITION + first);
            score = V::load(proof, cos).mul_add(V::splat(proof, *on_cos), score);
            score = V::load(proof, sin).mul_add(V::splat(proof, *on_sin), score);
        }
        if let Some(cap) = partition.soft_cap {
            score = soft_cap_lanes(proof, cap, score);
        }
        score.store(place);
    }
}

/// Turns the scores of `R` rows in some strips into weights; writes the largest score and the sum
/// of the weights of each row, which are nobody's where it sees nothing. With `scales`, each weight
/// is then multiplied by its token's.
///
/// A token that the row does not see has the weight `2^-126`, which changes no bit of the sum,
/// because the largest weight is 1: how many such tokens the strips hold does not matter.
#[inline(always)]
fn weights<V: Lanes, const R: usize>(
    proof: V::Proof,
    scores: &mut [[f32; PARTITION]],
    strips: Range<usize>,
    scales: Scales<'_>,
    maximum: &mut [f32],
    sum: &mut [f32],
) {
    let scores = scores.first_chunk_mut::<R>().expect("a row more than there are");
    let strips = strips.start..strips.end.min(PARTITION / LANES);
    let mut largest = [V::splat(proof, f32::NEG_INFINITY); R];
    for strip in strips.clone() {
        for r in 0..R {
            // A NaN may be dropped here; it comes back in the sum, as its weight is NaN.
            let score = V::load(proof, &scores[r].as_chunks().0[strip]);
            largest[r] = largest[r].max(score);
        }
    }
    let mut total = [V::splat(proof, 0.0); R];
    for (largest, maximum) in largest.iter_mut().zip(maximum) {
        *maximum = largest.max_lane();
        *largest = V::splat(proof, *maximum);
    }
    for strip in strips {
        for r in 0..R {
            let place = &mut scores[r].as_chunks_mut::<LANES>().0[strip];
            let mut weight = exp2_lanes(proof, V::load(proof, place).sub(largest[r]));
            total[r] = total[r].add(weight);
            if let Some(scales) = scales {
                weight = weight.mul(V::load(proof, &scales.as_chunks().0[strip]));
            }
            weight.store(place);
        }
    }
    for (total, sum) in total.iter().zip(sum) {
        *sum = total.sum_lanes();
    }
}

/// Writes the weighted sums of the values that each row of a tile sees: first those before the
/// tokens that all rows see, then those, then the rest.
#[inline(always)]
fn weigh_tile<V: Lanes, T: KvElement, K: PartitionKv<T>>(
    proof: V::Proof,
    kv: K,
    partition: Partition<'_>,
    rows: &Rows,
    tile: RowTile,
    weights: &[[f32; PARTITION]],
    values: &mut [f32],
) {
    let head_dim = rows.head_dim;
    let (_, all) = rows.seen_by(tile, partition.index);
    values[..(tile.num_rows + 1) * head_dim].fill(0.0);
    for r in 0..tile.num_rows {
        let seen = rows.seen(tile.first + r, partition.index);
        let before = seen.start..seen.end.min(all.start);
        let values = &mut values[r * head_dim..][..head_dim];
        weigh_row::<V, T, K>(proof, kv, &weights[r], before, values);
    }
    for_tile_width!(
        tile,
        weigh_shared::<V, T, K>(proof, kv, head_dim, all.clone(), weights, values)
    );
    for r in 0..tile.num_rows {
        let seen = rows.seen(tile.first + r, partition.index);
        let after = seen.start.max(all.end)..seen.end;
        let values = &mut values[r * head_dim..][..head_dim];
        weigh_row::<V, T, K>(proof, kv, &weights[r], after, values);
    }
}

/// Adds the weighted values of some tokens to one row's `values`.
#[inline(always)]
fn weigh_row<V: Lanes, T: KvElement, K: PartitionKv<T>>(
    proof: V::Proof,
    kv: K,
    weights: &[f32; PARTITION],
    tokens: Range<usize>,
    values: &mut [f32],
) {
    for token in tokens {
        let weight = V::splat(proof, weights[token]);
        let stored = kv.values(token).as_chunks().0;
        for (sum, stored) in values.as_chunks_mut().0.iter_mut().zip(stored) {
            T::load::<V>(proof, stored).mul_add(weight, V::load(proof, sum)).store(sum);
        }
    }
}

/// Adds the weighted values of tokens that all rows of a tile see to `values`.
#[inline(always)]
fn weigh_shared<V: Lanes, T: KvElement, K: PartitionKv<T>, const R: usize>(
    proof: V::Proof,
    kv: K,
    head_dim: usize,
    tokens: Range<usize>,
    weights: &[[f32; PARTITION]],
    values: &mut [f32],
) {
    let weights = weights.first_chunk::<R>().expect("a row more than there are");
    let num_chunks = head_dim / LANES;
    let mut chunk = 0;
    macro_rules! weigh_chunks {
        ($num_chunks:literal) => {
            weigh_chunks::<V, T, K, R, $num_chunks>(
                proof,
                kv,
                head_dim,
                tokens.clone(),
                weights,
                chunk,
                values,
            )
        };
    }
    while chunk < num_chunks {
        chunk += if const { V::ACCUMULATORS / R >= 4 } {
            if chunk + 4 <= num_chunks { weigh_chunks!(4) } else { weigh_chunks!(1) }
        } else if const { V::ACCUMULATORS / R >= 2 } {
            if chunk + 2 <= num_chunks { weigh_chunks!(2) } else { weigh_chunks!(1) }
        } else {
            weigh_chunks!(1)
        };
    }
}

/// Does [`weigh_shared`] for `C` times sixteen dimensions from chunk `first` on; returns `C`.
#[inline(always)]
fn weigh_chunks<V: Lanes, T: KvElement, K: PartitionKv<T>, const R: usize, const C: usize>(
    proof: V::Proof,
    kv: K,
    head_dim: usize,
    tokens: Range<usize>,
    weights: &[[f32; PARTITION]; R],
    first: usize,
    values: &mut [f32],
) -> usize {
    let mut acc = [[V::splat(proof, 0.0); C]; R];
    for (acc, values) in acc.iter_mut().zip(values.chunks_exact(head_dim)) {
        let place = &values.as_chunks::<LANES>().0[first..first + C];
        for c in 0..C {
            acc[c] = V::load(proof, &place[c]);
        }
    }
    let tokens = tokens.start..tokens.end.min(PARTITION);
    let mut token = tokens.start;
    while token < tokens.end {
        let stored = kv.values(token);
        let ahead = kv.ahead_of_values(token);
        let end = (token + stored.len() / head_dim).min(tokens.end);
        for (i, stored) in stored.chunks_exact(head_dim).take(end - token).enumerate() {
            let stored = &stored.as_chunks::<LANES>().0[first..first + C];
            if let Some(ahead) = ahead {
                for c in 0..C {
                    let place = i * head_dim + (first + c) * LANES;
                    if (place * size_of::<T>()).is_multiple_of(CACHE_LINE) {
                        prefetch(&ahead[place]);
                    }
                }
            }
            for c in 0..C {
                let chunk = T::load(proof, &stored[c]);
                for (acc, weights) in acc.iter_mut().zip(weights) {
                    let weight = V::splat(proof, weights[(token + i) % PARTITION]);
                    acc[c] = weight.mul_add(chunk, acc[c]);
                }
                V::forget_loads();
            }
        }
        token = end;
    }
    for (acc, values) in acc.iter().zip(values.chunks_exact_mut(head_dim)) {
        let place = &mut values.as_chunks_mut::<LANES>().0[first..first + C];
        for c in 0..C {
            acc[c].store(&mut place[c]);
        }
    }
    C
}
