//! The passes of attention over the partitions of a context.
//!
//! A row is computed from the tokens that it sees and from nothing else: others are not even
//! multiplied by zero, because behind a window, or after a row's own position, a block may hold
//! anything, and NaN times zero is NaN. Operations and their order per row do not depend on the
//! rows beside it.

use super::{MAX_ROWS, Rows};
use crate::dispatch::for_each_lanes;
use crate::exp::{exp, exp_lanes};
use crate::float_format::{Bf16, F16};
use crate::key_offset::OffsetPair;
use crate::kv_element::KvElement;
use crate::kv_layout::Side;
use crate::kv_rotation::MAX_HEAD_DIM;
use crate::kv_storage::{KvHead, KvRegion};
use crate::lanes::{LANES, Lanes};
use mini_infer_core::BlockId;
use std::array;
use std::ops::Range;

/// Tokens whose scores are normalised together before merging: part of the numeric definition.
const PARTITION: usize = 256;

/// Where a sequence's tokens lie.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) table: &'a [BlockId],
    pub(super) block_size: usize,
    /// What the stored keys lack.
    pub(super) offset: &'a [OffsetPair],
}

impl Context<'_> {
    /// Returns the block of a token, and the token's index in it.
    #[inline(always)]
    fn locate(&self, token: usize) -> (BlockId, usize) {
        (self.table[token / self.block_size], token % self.block_size)
    }

    /// Returns the block after the one that holds `token`; the same one at the end of the table.
    #[inline(always)]
    fn block_after(&self, token: usize) -> BlockId {
        let block = token / self.block_size;
        self.table[(block + 1).min(self.table.len() - 1)]
    }
}

for_each_lanes! {
    pub(super) fn attend_f32(kv: KvHead<'_, f32>, context: Context<'_>, head_dim: usize, rows: &mut Rows) = attend::<f32>
}
for_each_lanes! {
    pub(super) fn attend_f16(kv: KvHead<'_, F16>, context: Context<'_>, head_dim: usize, rows: &mut Rows) = attend::<F16>
}
for_each_lanes! {
    pub(super) fn attend_bf16(kv: KvHead<'_, Bf16>, context: Context<'_>, head_dim: usize, rows: &mut Rows) = attend::<Bf16>
}
for_each_lanes! {
    pub(super) fn attend_i8(kv: KvHead<'_, i8>, context: Context<'_>, head_dim: usize, rows: &mut Rows) = attend::<i8>
}

#[inline(always)]
fn attend<V: Lanes, T: KvElement>(
    proof: V::Proof,
    kv: KvHead<'_, T>,
    context: Context<'_>,
    head_dim: usize,
    rows: &mut Rows,
) {
    match rows.num_rows {
        1 => attend_rows::<V, T, 1>(proof, kv, context, head_dim, rows),
        2 => attend_rows::<V, T, 2>(proof, kv, context, head_dim, rows),
        3 => attend_rows::<V, T, 3>(proof, kv, context, head_dim, rows),
        4 => attend_rows::<V, T, 4>(proof, kv, context, head_dim, rows),
        // Rows beyond the unit's see no token, so they change nothing.
        _ => attend_rows::<V, T, MAX_ROWS>(proof, kv, context, head_dim, rows),
    }
}

/// Runs over the partitions of the context for the first `R` rows.
#[inline(always)]
fn attend_rows<V: Lanes, T: KvElement, const R: usize>(
    proof: V::Proof,
    kv: KvHead<'_, T>,
    context: Context<'_>,
    head_dim: usize,
    rows: &mut Rows,
) {
    let longest = rows.visible.iter().copied().max().unwrap_or(0);
    // Partitions keep their places where those that no row sees are left out.
    let hidden = rows.hidden[..rows.num_rows].iter().copied().min().unwrap_or(0);
    let first = hidden / PARTITION * PARTITION;
    for start in (first..longest).step_by(PARTITION) {
        let span = Span::<R>::new(context, head_dim, start, rows);
        let mut weights = [[0.0_f32; PARTITION]; R];
        score_partition::<V, T, R>(proof, kv, &span, rows, &mut weights);
        let mut maximum = [f32::NEG_INFINITY; R];
        let mut sum = [0.0; R];
        for r in 0..R {
            let seen = span.seen[r].clone();
            (maximum[r], sum[r]) = exponentials::<V>(proof, &mut weights[r], seen);
        }
        if T::IS_SCALED {
            scale_weights::<V, T, R>(proof, kv, &span, &mut weights);
        }
        let mut values = [[0.0_f32; MAX_HEAD_DIM]; R];
        weigh_partition::<V, T, R>(proof, kv, &span, &weights, &mut values);
        for r in 0..R {
            if !span.seen[r].is_empty() {
                merge(rows, r, maximum[r], sum[r], &values[r][..head_dim]);
            }
        }
    }
}

/// One partition of a sequence's context. Tokens are counted from its start.
struct Span<'a, const R: usize> {
    context: Context<'a>,
    head_dim: usize,
    /// First token of the partition.
    start: usize,
    /// Tokens that each row sees.
    seen: [Range<usize>; R],
    /// From the first to the last token that some row sees.
    any: Range<usize>,
    /// Tokens that all rows see.
    all: Range<usize>,
}

impl<'a, const R: usize> Span<'a, R> {
    #[inline(always)]
    fn new(context: Context<'a>, head_dim: usize, start: usize, rows: &Rows) -> Self {
        let seen: [Range<usize>; R] = array::from_fn(|r| rows.seen(r, start, PARTITION));
        let of_unit = &seen[..rows.num_rows.min(R)];
        let nonempty = || of_unit.iter().filter(|seen| !seen.is_empty());
        let first = nonempty().map(|seen| seen.start).min().unwrap_or(0);
        let end = nonempty().map(|seen| seen.end).max().unwrap_or(0);
        let all_first = of_unit.iter().map(|seen| seen.start).max().unwrap_or(0).clamp(first, end);
        let all_end = of_unit.iter().map(|seen| seen.end).min().unwrap_or(0).clamp(all_first, end);
        Self { context, head_dim, start, seen, any: first..end, all: all_first..all_end }
    }

    /// Returns the strips of sixteen tokens, by their first, that hold a token that a row sees.
    #[inline(always)]
    fn strips(&self) -> impl Iterator<Item = usize> + use<R> {
        (self.any.start / LANES * LANES..self.any.end).step_by(LANES)
    }

    /// Returns the scales of the sixteen tokens from `first` on.
    #[inline(always)]
    fn scales<V: Lanes, T: KvElement>(
        &self,
        proof: V::Proof,
        kv: KvHead<'_, T>,
        side: Side,
        first: usize,
    ) -> V {
        let context = &self.context;
        let (block, offset) = context.locate(self.start + first);
        let scales = kv.region(block, side).scales;
        if context.block_size >= LANES {
            V::load_bf16(proof, &scales[offset..].as_chunks().0[0])
        } else {
            let second = kv.region(context.block_after(self.start + first), side).scales;
            V::load_bf16(proof, &join(&scales.as_chunks().0[0], &second.as_chunks().0[0]))
        }
    }
}

/// Returns two runs of eight as one of sixteen.
#[inline(always)]
fn join<T: Copy>(low: &[T; LANES / 2], high: &[T; LANES / 2]) -> [T; LANES] {
    let mut lanes = [low[0]; LANES];
    lanes[..LANES / 2].copy_from_slice(low);
    lanes[LANES / 2..].copy_from_slice(high);
    lanes
}

/// Writes the scores of the strips that hold a token that a row sees.
#[inline(always)]
fn score_partition<V: Lanes, T: KvElement, const R: usize>(
    proof: V::Proof,
    kv: KvHead<'_, T>,
    span: &Span<'_, R>,
    rows: &Rows,
    scores: &mut [[f32; PARTITION]; R],
) {
    let Span { context, head_dim, start, .. } = span;
    for first in span.strips() {
        let mut acc = [V::splat(proof, 0.0); R];
        let (block, offset) = context.locate(start + first);
        let KvRegion { elements, .. } = kv.region(block, Side::Keys);
        if context.block_size >= LANES {
            let strip = elements[offset * head_dim..].as_chunks::<LANES>().0;
            for (d, lanes) in strip[..*head_dim].iter().enumerate() {
                score_dimension(proof, T::load(proof, lanes), d, rows, &mut acc);
            }
        } else {
            // Two strips of eight make sixteen lanes; past the last block the first stands in for
            // the second, whose scores nobody sees.
            let second = kv.region(context.block_after(start + first), Side::Keys).elements;
            let strips = elements.as_chunks::<8>().0.iter().zip(second.as_chunks::<8>().0);
            for (d, (low, high)) in strips.enumerate().take(*head_dim) {
                score_dimension(proof, T::load(proof, &join(low, high)), d, rows, &mut acc);
            }
        }
        if T::IS_SCALED {
            let scales: V = span.scales(proof, kv, Side::Keys, first);
            for acc in &mut acc {
                *acc = acc.mul(scales);
            }
        }
        for (p, pair) in context.offset.iter().enumerate() {
            let (cos, sin) = pair.turns.strip(start + first);
            let (cos, sin) = (V::load(proof, cos), V::load(proof, sin));
            for (acc, factors) in acc.iter_mut().zip(&rows.offset_factors) {
                let [on_cos, on_sin] = factors[p];
                *acc = cos.mul_add(V::splat(proof, on_cos), *acc);
                *acc = sin.mul_add(V::splat(proof, on_sin), *acc);
            }
        }
        for r in 0..R {
            let place = &mut scores[r].as_chunks_mut::<LANES>().0[first / LANES];
            acc[r].store(place);
        }
    }
}

/// Adds dimension `d` of sixteen keys to the scores of each row.
#[inline(always)]
fn score_dimension<V: Lanes, const R: usize>(
    proof: V::Proof,
    keys: V,
    d: usize,
    rows: &Rows,
    acc: &mut [V; R],
) {
    let d = d % MAX_HEAD_DIM;
    for (acc, query) in acc.iter_mut().zip(&rows.queries) {
        *acc = keys.mul_add(V::splat(proof, query[d]), *acc);
    }
}

/// Turns the scores in `seen` into exponentials below their maximum and the rest into zeros;
/// returns the maximum and the sum.
#[inline(always)]
fn exponentials<V: Lanes>(
    proof: V::Proof,
    scores: &mut [f32; PARTITION],
    seen: Range<usize>,
) -> (f32, f32) {
    if seen.is_empty() {
        scores.fill(0.0);
        return (f32::NEG_INFINITY, 0.0);
    }
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    let (used, unused) = scores.as_chunks_mut::<LANES>().0.split_at_mut(seen.end.div_ceil(LANES));
    let mut largest = V::splat(proof, f32::NEG_INFINITY);
    for chunk in &*used {
        // A NaN may be dropped here; it comes back in the sum, whose exponential it makes NaN.
        largest = largest.max(V::load(proof, chunk));
    }
    let maximum = largest.max_lane();
    let mut sum = V::splat(proof, 0.0);
    for chunk in used {
        let exponential = exp_lanes(proof, V::load(proof, chunk).sub(V::splat(proof, maximum)));
        sum = sum.add(exponential);
        exponential.store(chunk);
    }
    unused.as_flattened_mut().fill(0.0);
    (maximum, sum.sum_lanes())
}

/// Multiplies the weights of each row by the scales of the values that they weigh.
#[inline(always)]
fn scale_weights<V: Lanes, T: KvElement, const R: usize>(
    proof: V::Proof,
    kv: KvHead<'_, T>,
    span: &Span<'_, R>,
    weights: &mut [[f32; PARTITION]; R],
) {
    for first in span.strips() {
        let scales: V = span.scales(proof, kv, Side::Values, first);
        for weights in &mut *weights {
            let weights = &mut weights.as_chunks_mut::<LANES>().0[first / LANES];
            V::load(proof, weights).mul(scales).store(weights);
        }
    }
}

/// Adds the values of the tokens that each row sees, weighted by `weights`, to `values`.
#[inline(always)]
fn weigh_partition<V: Lanes, T: KvElement, const R: usize>(
    proof: V::Proof,
    kv: KvHead<'_, T>,
    span: &Span<'_, R>,
    weights: &[[f32; PARTITION]; R],
    values: &mut [[f32; MAX_HEAD_DIM]; R],
) {
    let num_chunks = span.head_dim / LANES;
    for chunk in (0..num_chunks).step_by(2) {
        if chunk + 2 <= num_chunks {
            weigh_chunks::<V, T, R, 2>(proof, kv, span, weights, chunk, values);
        } else {
            weigh_chunks::<V, T, R, 1>(proof, kv, span, weights, chunk, values);
        }
    }
}

/// Does [`weigh_partition`] for `CHUNKS` times sixteen dimensions from chunk `first` on.
#[inline(always)]
fn weigh_chunks<V: Lanes, T: KvElement, const R: usize, const CHUNKS: usize>(
    proof: V::Proof,
    kv: KvHead<'_, T>,
    span: &Span<'_, R>,
    weights: &[[f32; PARTITION]; R],
    first: usize,
    values: &mut [[f32; MAX_HEAD_DIM]; R],
) {
    let mut acc = [[V::splat(proof, 0.0); CHUNKS]; R];
    let Range { start, end } = span.any;
    let all = span.all.clone();
    for (tokens, is_shared) in
        [(start..all.start, false), (all.clone(), true), (all.end..end, false)]
    {
        if is_shared {
            weigh_tokens::<V, T, R, CHUNKS, true>(
                proof, kv, span, tokens, weights, first, &mut acc,
            );
        } else {
            weigh_tokens::<V, T, R, CHUNKS, false>(
                proof, kv, span, tokens, weights, first, &mut acc,
            );
        }
    }
    for (acc, values) in acc.iter().zip(values) {
        let place = &mut values.as_chunks_mut::<LANES>().0[first..first + CHUNKS];
        for (acc, place) in acc.iter().zip(place) {
            acc.store(place);
        }
    }
}

/// Adds the weighted values of `tokens` to `acc`; `SHARED` where all rows of the unit see them.
#[inline(always)]
fn weigh_tokens<V: Lanes, T: KvElement, const R: usize, const CHUNKS: usize, const SHARED: bool>(
    proof: V::Proof,
    kv: KvHead<'_, T>,
    span: &Span<'_, R>,
    tokens: Range<usize>,
    weights: &[[f32; PARTITION]; R],
    first: usize,
    acc: &mut [[V; CHUNKS]; R],
) {
    let Span { context, head_dim, start, .. } = span;
    let mut token = tokens.start;
    while token < tokens.end {
        let (block, offset) = context.locate(start + token);
        let values = kv.region(block, Side::Values).elements;
        let rows = values[offset * head_dim..].chunks_exact(*head_dim).take(tokens.end - token);
        for row in rows {
            let stored = &row.as_chunks::<LANES>().0[first..first + CHUNKS];
            let mut value = [V::splat(proof, 0.0); CHUNKS];
            for c in 0..CHUNKS {
                value[c] = T::load(proof, &stored[c]);
            }
            for r in 0..R {
                if SHARED || span.seen[r].contains(&token) {
                    let weight = V::splat(proof, weights[r][token % PARTITION]);
                    for c in 0..CHUNKS {
                        acc[r][c] = value[c].mul_add(weight, acc[r][c]);
                    }
                }
            }
            token += 1;
        }
    }
}

/// Adds a partition's result to row `r`, rescaling both to the larger maximum.
#[inline(always)]
fn merge(rows: &mut Rows, r: usize, maximum: f32, sum: f32, values: &[f32]) {
    let larger = if rows.maximum[r] > maximum { rows.maximum[r] } else { maximum };
    // Before the first partition the maximum is -inf and `exp` gives 0, which drops the empty state.
    let old_factor = exp(rows.maximum[r] - larger);
    let new_factor = exp(maximum - larger);
    rows.maximum[r] = larger;
    rows.sum[r] = rows.sum[r].mul_add(old_factor, sum * new_factor);
    for (total, value) in rows.values[r].iter_mut().zip(values) {
        *total = total.mul_add(old_factor, value * new_factor);
    }
}
