//! What rows get from one partition of their context: scores, weights, weighted values.
//!
//! A row is computed from the tokens that it sees and from nothing else: others are not even
//! multiplied by zero where that could be seen, because behind a window, or after a row's own
//! position, a block may hold anything, and NaN times zero is NaN. Operations and their order per
//! row do not depend on the rows beside it:
//!
//! - a product of query and key is a chain of fused multiply-adds over the dimensions;
//! - scores and weights are made of it as [`super::scores`] says;
//! - values are a chain of fused multiply-adds over the tokens.
//!
//! Where keys and values are stored as codes, both chains are exact sums of integers: codes times
//! what queries and weights are rounded to, 16 and 15 bits ([`super::scores::WEIGHT_LIMIT`]).
//!
//! Chains are latency-bound, so a kernel runs as many side by side as registers hold
//! ([`Lanes::ACCUMULATORS`]): rows times strips of keys, or rows times chunks of a value.

use super::PARTITION;
use super::partition_kv::{Ahead, InBlocks, PartitionKv, Place, Widened};
use super::results::RowResults;
use super::rows::{Band, RowTile, Rows, TILE};
use super::scores::{
    Partition, Scales, Scores, clear_unseen, encode_weights, finish_scores, weights,
};
use crate::dispatch::for_each_lanes;
use crate::float_format::{Bf16, F16};
use crate::isa::Isa;
use crate::kv_element::KvElement;
use crate::kv_layout::Side;
use crate::kv_rotation::MAX_HEAD_DIM;
use crate::lanes::{LANES, Lanes};
use crate::prefetch::{CACHE_LINE, prefetch};
use std::ops::Range;

/// Strips of keys that all rows go through before the next ones, so that the keys stay in the L1
/// cache: 64 tokens, 16 KiB for heads of 64 dimensions.
const STRIPS_PER_PASS: usize = 4;

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
    fn copy_widened(
        isa: Isa,
        place: Place<'_, Self>,
        tokens: Range<usize>,
        head_dim: usize,
        widened: &mut Widened,
    );

    /// Computes rows from a widened copy of the keys and values that they see, and asks for what
    /// lies ahead.
    #[expect(clippy::too_many_arguments, reason = "one kernel, no natural grouping")]
    fn attend_widened(
        isa: Isa,
        widened: &Widened,
        partition: Partition<'_>,
        ahead: Option<&Ahead<'_>>,
        rows: &Rows,
        band: Band,
        scores: &mut Scores,
        results: &mut RowResults<'_>,
    );
}

macro_rules! attended_element {
    ($($module:ident: $element:ty, $wide:ident);* $(;)?) => {$(
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

            fn copy_widened(
                isa: Isa,
                place: Place<'_, Self>,
                tokens: Range<usize>,
                head_dim: usize,
                widened: &mut Widened,
            ) {
                $module::widened(isa, place, tokens, head_dim, widened);
            }

            fn attend_widened(
                isa: Isa,
                widened: &Widened,
                partition: Partition<'_>,
                ahead: Option<&Ahead<'_>>,
                rows: &Rows,
                band: Band,
                scores: &mut Scores,
                results: &mut RowResults<'_>,
            ) {
                $wide(isa, widened, partition, ahead, rows, band, scores, results);
            }
        }
    )*};
}

attended_element! {
    of_f32: f32, attend_floats;
    of_f16: F16, attend_floats;
    of_bf16: Bf16, attend_floats;
    of_i8: i8, attend_codes;
}

for_each_lanes! {
    /// Computes rows from widened floats.
    fn attend_floats(widened: &Widened, partition: Partition<'_>, ahead: Option<&Ahead<'_>>, rows: &Rows, band: Band, scores: &mut Scores, results: &mut RowResults<'_>) = attend_widened::<f32>
}
for_each_lanes! {
    /// Computes rows from widened codes.
    fn attend_codes(widened: &Widened, partition: Partition<'_>, ahead: Option<&Ahead<'_>>, rows: &Rows, band: Band, scores: &mut Scores, results: &mut RowResults<'_>) = attend_widened::<i16>
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
    if T::IS_CODE {
        kv.place.ask_for_scales(Side::Values, any.clone());
        kv.place.load_scales::<V>(proof, Side::Keys, any.clone(), &mut scales);
    }
    let scores = scores_of(band, scores);
    multiply::<V, T, _>(proof, kv, partition, None, rows, band, scores);
    let mut value_scales = [0.0; PARTITION];
    if T::IS_CODE {
        kv.place.load_scales::<V>(proof, Side::Values, any, &mut value_scales);
    }
    let scales = [&scales, &value_scales].map(|scales| T::IS_CODE.then_some(scales));
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
fn attend_widened<V: Lanes, T: KvElement>(
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
    multiply::<V, T, _>(proof, widened, partition, ahead, rows, band, scores);
    weigh::<V, T, _>(proof, widened, partition, widened.scales(), rows, band, scores, results);
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
    let num_lanes = head_dim.min(MAX_HEAD_DIM) / T::TOGETHER;
    let queries: [&[T::Multiplier]; R] =
        std::array::from_fn(|r| &bytemuck::cast_slice(&queries[r])[..num_lanes]);
    let mut keys: [&[[T::Lane; LANES]]; S] = [&[]; S];
    let mut ahead: [Option<&[[T::Lane; LANES]]>; S] = [None; S];
    for s in 0..S {
        keys[s] = &kv.strip((first + s) * LANES)[..num_lanes];
        ahead[s] = kv.ahead_of_strip((first + s) * LANES);
    }
    let mut sums = [[T::zero::<V>(proof); S]; R];
    for d in 0..num_lanes {
        // One strip after the other, so that only one takes a register beside the sums.
        for s in 0..S {
            let strip = T::load::<V>(proof, &keys[s][d]);
            if let Some(ahead) = ahead[s]
                && (d * size_of::<[T::Lane; LANES]>()).is_multiple_of(CACHE_LINE)
            {
                prefetch(&ahead[d]);
            }
            for (sums, query) in sums.iter_mut().zip(queries) {
                sums[s] = T::add_products(sums[s], T::splat::<V>(proof, query[d]), strip);
            }
            V::forget_loads();
        }
    }
    for r in 0..R {
        let place = &mut scores[r].as_chunks_mut::<LANES>().0[first..first + S];
        for s in 0..S {
            T::floats::<V>(sums[r][s]).store(&mut place[s]);
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
            if partition.changes(key_scales) {
                let factors = &rows.offset_factors[r];
                let scales = key_scales.map(|scales| (rows.query_scales[r], scales));
                finish_scores::<V>(proof, partition, scales, factors, seen.clone(), scores);
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
        if any.is_empty() {
            continue;
        }
        let values = &mut results.values[first * rows.head_dim..];
        values[..(tile.num_rows + 1) * rows.head_dim].fill(0.0);
        if T::IS_CODE {
            weigh_codes::<V, T, K>(proof, kv, partition, rows, tile, scores, values);
        } else {
            weigh_floats::<V, T, K>(proof, kv, partition, rows, tile, scores, values);
        }
    }
}

/// Rounds the weights of the rows of a tile and adds the values, which are codes, weighted with
/// them.
#[inline(always)]
fn weigh_codes<V: Lanes, T: KvElement, K: PartitionKv<T>>(
    proof: V::Proof,
    kv: K,
    partition: Partition<'_>,
    rows: &Rows,
    tile: RowTile,
    weights: &mut [[f32; PARTITION]],
    values: &mut [f32],
) {
    let (any, _) = rows.seen_by(tile, partition.index);
    let strips = any.start / LANES..any.end.div_ceil(LANES);
    for (r, weights) in (tile.first..).zip(&mut weights[..tile.num_rows]) {
        clear_unseen(weights, &strips, &rows.seen(r, partition.index));
    }
    let mut units = [0.0; TILE];
    match tile.num_rows {
        1 => encode_weights::<V, 1>(proof, weights, strips, &mut units),
        2 | 3 => encode_weights::<V, 3>(proof, weights, strips, &mut units),
        4 => encode_weights::<V, 4>(proof, weights, strips, &mut units),
        _ => encode_weights::<V, 6>(proof, weights, strips, &mut units),
    }
    let tokens = any.start / T::TOGETHER * T::TOGETHER..any.end;
    weigh_tile::<V, T, K>(proof, kv, rows.head_dim, tile, tokens, weights, values);
    for (values, unit) in values.chunks_exact_mut(rows.head_dim).zip(&units[..tile.num_rows]) {
        values.iter_mut().for_each(|value| *value *= unit);
    }
}

/// Adds the weighted values, which are floats, that each row of a tile sees: first those before the
/// tokens that all rows see, then those, then the rest.
#[inline(always)]
fn weigh_floats<V: Lanes, T: KvElement, K: PartitionKv<T>>(
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
    for r in 0..tile.num_rows {
        let seen = rows.seen(tile.first + r, partition.index);
        let before = seen.start..seen.end.min(all.start);
        let values = &mut values[r * head_dim..][..head_dim];
        weigh_row::<V, T, K>(proof, kv, &weights[r], before, values);
    }
    weigh_tile::<V, T, K>(proof, kv, head_dim, tile, all.clone(), weights, values);
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
    let weights: &[T::Multiplier] = bytemuck::cast_slice(weights);
    for token in tokens {
        let weight = T::splat::<V>(proof, weights[token]);
        let stored = kv.values(token).as_chunks().0;
        for (sum, stored) in values.as_chunks_mut().0.iter_mut().zip(stored) {
            let so_far = T::resume::<V>(proof, sum);
            T::floats::<V>(T::add_products(so_far, weight, T::load::<V>(proof, stored))).store(sum);
        }
    }
}

/// Adds the weighted values of `tokens`, from a multiple of [`KvElement::TOGETHER`] on, to those of
/// all rows of a tile.
#[inline(always)]
fn weigh_tile<V: Lanes, T: KvElement, K: PartitionKv<T>>(
    proof: V::Proof,
    kv: K,
    head_dim: usize,
    tile: RowTile,
    tokens: Range<usize>,
    weights: &[[f32; PARTITION]],
    values: &mut [f32],
) {
    for_tile_width!(tile, weigh_rows::<V, T, K>(proof, kv, head_dim, tokens, weights, values));
}

/// Does [`weigh_tile`] for `R` rows.
#[inline(always)]
fn weigh_rows<V: Lanes, T: KvElement, K: PartitionKv<T>, const R: usize>(
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

/// Does [`weigh_rows`] for `C` times sixteen dimensions from chunk `first` on; returns `C`.
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
    let num_weights = PARTITION / T::TOGETHER;
    let weights: [&[T::Multiplier]; R] =
        std::array::from_fn(|r| &bytemuck::cast_slice(&weights[r])[..num_weights]);
    let mut sums = [[T::zero::<V>(proof); C]; R];
    for (sums, values) in sums.iter_mut().zip(values.chunks_exact(head_dim)) {
        let place = &values.as_chunks::<LANES>().0[first..first + C];
        for c in 0..C {
            sums[c] = T::resume::<V>(proof, &place[c]);
        }
    }
    let tokens = tokens.start..tokens.end.min(PARTITION);
    let mut token = tokens.start;
    while token < tokens.end {
        let stored = kv.values(token);
        let ahead = kv.ahead_of_values(token);
        let num_lanes = (stored.len() / head_dim).min((tokens.end - token).div_ceil(T::TOGETHER));
        for (i, stored) in stored.chunks_exact(head_dim).take(num_lanes).enumerate() {
            let stored = &stored.as_chunks::<LANES>().0[first..first + C];
            if let Some(ahead) = ahead {
                for c in 0..C {
                    let place = i * head_dim + (first + c) * LANES;
                    if (place * size_of::<T::Lane>()).is_multiple_of(CACHE_LINE) {
                        prefetch(&ahead[place]);
                    }
                }
            }
            for c in 0..C {
                let chunk = T::load::<V>(proof, &stored[c]);
                for (sums, weights) in sums.iter_mut().zip(weights) {
                    let weight = weights[(token / T::TOGETHER + i) % num_weights];
                    sums[c] = T::add_products(sums[c], T::splat::<V>(proof, weight), chunk);
                }
                V::forget_loads();
            }
        }
        token += num_lanes * T::TOGETHER;
    }
    for (sums, values) in sums.iter().zip(values.chunks_exact_mut(head_dim)) {
        let place = &mut values.as_chunks_mut::<LANES>().0[first..first + C];
        for c in 0..C {
            T::floats::<V>(sums[c]).store(&mut place[c]);
        }
    }
    C
}
