//! Paged attention: queries over keys and values read in place from their blocks.
//!
//! For one query the operations are the same whatever else the step holds. Its context is cut
//! into partitions of [`PARTITION`] tokens from position 0 on. Each partition is computed by
//! itself (scores, their maximum, exponentials, weighted values), and partitions are merged in
//! order, rescaling to the larger maximum (Dao et al., FlashAttention-2, section 3.1, with a fixed
//! tile). Results do not depend on block size, chunk borders, neighbours or threads.
//!
//! Up to [`MAX_ROWS`] rows, a row being one head of one query, share a pass over the keys and
//! values of their common KV head. A unit of work reads `2 * context * head_dim` elements and does
//! `4 * rows * context * head_dim` operations.

use crate::dispatch::for_each_lanes;
use crate::exp::{exp, exp_lanes};
use crate::float_format::{Bf16, F16};
use crate::isa::Isa;
use crate::kv_layout::KvDtype;
use crate::kv_storage::{KvHead, KvStorage};
use crate::lanes::{LANES, LaneFloat, Lanes};
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use mini_infer_core::{Batch, BlockId};
use std::ops::Range;

/// Tokens whose scores are normalised together before merging: part of the numeric definition.
const PARTITION: usize = 256;
/// Rows that share a pass over keys and values.
const MAX_ROWS: usize = 8;
/// Widest head: bounds the stack memory of a unit.
const MAX_HEAD_DIM: usize = 256;

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Dimensions of a head: a multiple of 16, at most 256.
    pub head_dim: usize,
    /// Factor on query-key products.
    pub scale: f32,
    /// Most recent tokens that a query sees, itself included; `None` for all.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// Returns whether the kernel can compute heads of this shape.
    #[must_use]
    pub const fn is_supported(&self) -> bool {
        self.head_dim > 0
            && self.head_dim.is_multiple_of(LANES)
            && self.head_dim <= MAX_HEAD_DIM
            && self.num_kv_heads > 0
            && self.num_heads.is_multiple_of(self.num_kv_heads)
    }
}

/// Attends each query of the batch to its sequence's stored keys and values up to its position.
///
/// `queries` has a row of `row_width` elements per token of the batch, the query heads first;
/// `out` is `[num_tokens, num_heads * head_dim]`.
///
/// # Panics
/// When the shape is not supported or does not fit the storage, or a length is wrong.
#[expect(clippy::too_many_arguments, reason = "one kernel call, no natural grouping")]
pub fn attention(
    isa: Isa,
    pool: &ThreadPool,
    shape: &AttentionShape,
    queries: &[f32],
    row_width: usize,
    layer: usize,
    batch: &Batch,
    storage: &KvStorage,
    out: &mut [f32],
) {
    assert!(shape.is_supported(), "attention over {shape:?}");
    assert_eq!(storage.layout().head_dim, shape.head_dim);
    assert_eq!(storage.layout().num_kv_heads, shape.num_kv_heads);
    assert_eq!(queries.len(), batch.num_tokens() * row_width);
    assert_eq!(out.len(), batch.num_tokens() * shape.num_heads * shape.head_dim);
    assert!(batch.query_start_loc.is_sorted(), "no token belongs to two sequences");
    if batch.num_tokens() == 0 {
        return;
    }
    let units = units(shape, batch);
    let out = RowView::new(out, shape.num_heads * shape.head_dim);
    pool.claim(units.len(), |index| {
        let unit = &units[index];
        let mut rows = Rows::gather(shape, unit, queries, row_width, batch);
        let table = batch.sequence(unit.sequence).block_table;
        let context = Context { table, block_size: storage.layout().block_size.tokens() as usize };
        match storage.layout().dtype {
            KvDtype::F32 => {
                attend_f32(
                    isa,
                    storage.head(layer, unit.kv_head),
                    context,
                    shape.head_dim,
                    &mut rows,
                );
            }
            KvDtype::F16 => {
                attend_f16(
                    isa,
                    storage.head(layer, unit.kv_head),
                    context,
                    shape.head_dim,
                    &mut rows,
                );
            }
            KvDtype::Bf16 => {
                attend_bf16(
                    isa,
                    storage.head(layer, unit.kv_head),
                    context,
                    shape.head_dim,
                    &mut rows,
                );
            }
        }
        rows.scatter(shape, unit, batch, &out);
    });
}

/// Rows of one KV head of one sequence that are computed together.
#[derive(Clone, Copy, Debug)]
struct Unit {
    sequence: usize,
    kv_head: usize,
    /// First row of the unit: `token * group + head within the group`.
    first_row: usize,
    num_rows: usize,
}

/// Cuts the batch into units, the longest contexts of a sequence last.
fn units(shape: &AttentionShape, batch: &Batch) -> Vec<Unit> {
    let group = shape.num_heads / shape.num_kv_heads;
    let mut units = Vec::new();
    for sequence in 0..batch.num_seqs() {
        let total = batch.sequence(sequence).num_tokens * group;
        for kv_head in 0..shape.num_kv_heads {
            units.extend((0..total).step_by(MAX_ROWS).map(|first_row| Unit {
                sequence,
                kv_head,
                first_row,
                num_rows: MAX_ROWS.min(total - first_row),
            }));
        }
    }
    units
}

/// The queries, softmax state and results of a unit.
struct Rows {
    num_rows: usize,
    /// Scaled queries.
    queries: [[f32; MAX_HEAD_DIM]; MAX_ROWS],
    /// Tokens up to each row's own.
    visible: [usize; MAX_ROWS],
    /// Tokens before the window of each row.
    hidden: [usize; MAX_ROWS],
    /// Largest score so far.
    maximum: [f32; MAX_ROWS],
    /// Sum of exponentials so far.
    sum: [f32; MAX_ROWS],
    /// Weighted sum of values so far; the attention's result at the end.
    values: [[f32; MAX_HEAD_DIM]; MAX_ROWS],
}

impl Rows {
    fn gather(
        shape: &AttentionShape,
        unit: &Unit,
        queries: &[f32],
        row_width: usize,
        batch: &Batch,
    ) -> Self {
        let mut rows = Self {
            num_rows: unit.num_rows,
            queries: [[0.0; MAX_HEAD_DIM]; MAX_ROWS],
            visible: [0; MAX_ROWS],
            hidden: [0; MAX_ROWS],
            maximum: [f32::NEG_INFINITY; MAX_ROWS],
            sum: [0.0; MAX_ROWS],
            values: [[0.0; MAX_HEAD_DIM]; MAX_ROWS],
        };
        for r in 0..unit.num_rows {
            let (token, head) = place(shape, unit, batch, r);
            let query = &queries[token * row_width + head * shape.head_dim..][..shape.head_dim];
            for (scaled, q) in rows.queries[r].iter_mut().zip(query) {
                *scaled = q * shape.scale;
            }
            rows.visible[r] = batch.positions[token] as usize + 1;
            rows.hidden[r] =
                shape.window.map_or(0, |window| rows.visible[r].saturating_sub(window));
        }
        rows
    }

    /// Returns which of the tokens `start..start + len` row `r` sees, counted from `start`.
    fn seen(&self, r: usize, start: usize, len: usize) -> Range<usize> {
        let within = |token: usize| token.saturating_sub(start).min(len);
        within(self.hidden[r])..within(self.visible[r])
    }

    fn scatter(&self, shape: &AttentionShape, unit: &Unit, batch: &Batch, out: &RowView<'_, f32>) {
        for r in 0..unit.num_rows {
            let (token, head) = place(shape, unit, batch, r);
            // SAFETY: sequences share no token, as `attention` asserts, so each head of each token
            // is a row of exactly one unit, and a unit is claimed by one thread.
            let out = unsafe { out.piece(token, head * shape.head_dim, shape.head_dim) };
            for (out, value) in out.iter_mut().zip(&self.values[r]) {
                *out = value / self.sum[r];
            }
        }
    }
}

/// Returns the batch row and the query head of row `r` of a unit.
fn place(shape: &AttentionShape, unit: &Unit, batch: &Batch, r: usize) -> (usize, usize) {
    let group = shape.num_heads / shape.num_kv_heads;
    let row = unit.first_row + r;
    let token = batch.sequence(unit.sequence).first_row + row / group;
    (token, unit.kv_head * group + row % group)
}

/// Where a sequence's tokens lie.
#[derive(Clone, Copy)]
struct Context<'a> {
    table: &'a [BlockId],
    block_size: usize,
}

for_each_lanes! {
    fn attend_f32(kv: KvHead<'_, f32>, context: Context<'_>, head_dim: usize, rows: &mut Rows) = attend::<f32>
}
for_each_lanes! {
    fn attend_f16(kv: KvHead<'_, F16>, context: Context<'_>, head_dim: usize, rows: &mut Rows) = attend::<F16>
}
for_each_lanes! {
    fn attend_bf16(kv: KvHead<'_, Bf16>, context: Context<'_>, head_dim: usize, rows: &mut Rows) = attend::<Bf16>
}

#[inline(always)]
fn attend<V: Lanes, T: LaneFloat>(
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
fn attend_rows<V: Lanes, T: LaneFloat, const R: usize>(
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
        let span = Span { context, head_dim, start, len: PARTITION.min(longest - start) };
        let mut weights = [[0.0_f32; PARTITION]; R];
        score_partition::<V, T, R>(proof, kv, span, rows, &mut weights);
        let mut maximum = [f32::NEG_INFINITY; R];
        let mut sum = [0.0; R];
        for r in 0..R {
            let seen = rows.seen(r, start, span.len);
            (maximum[r], sum[r]) = exponentials::<V>(proof, &mut weights[r], seen);
        }
        let mut values = [[0.0_f32; MAX_HEAD_DIM]; R];
        weigh_partition::<V, T, R>(proof, kv, span, &weights, &mut values);
        for r in 0..R {
            if !rows.seen(r, start, span.len).is_empty() {
                merge(rows, r, maximum[r], sum[r], &values[r][..head_dim]);
            }
        }
    }
}

/// One partition of a sequence's context.
#[derive(Clone, Copy)]
struct Span<'a> {
    context: Context<'a>,
    head_dim: usize,
    /// First token.
    start: usize,
    /// Tokens, at most [`PARTITION`].
    len: usize,
}

/// Writes the scores of the span's tokens, rounded up to sixteen.
#[inline(always)]
fn score_partition<V: Lanes, T: LaneFloat, const R: usize>(
    proof: V::Proof,
    kv: KvHead<'_, T>,
    span: Span<'_>,
    rows: &Rows,
    scores: &mut [[f32; PARTITION]; R],
) {
    let Span { context, head_dim, start, len } = span;
    for first in (0..len).step_by(LANES) {
        let mut acc = [V::splat(proof, 0.0); R];
        let block = (start + first) / context.block_size;
        let keys = kv.keys(context.table[block]);
        if context.block_size >= LANES {
            let offset = (start + first) % context.block_size * head_dim;
            let strip = keys[offset..].as_chunks::<LANES>().0;
            for (d, lanes) in strip[..head_dim].iter().enumerate() {
                score_dimension(proof, T::load(proof, lanes), d, rows, &mut acc);
            }
        } else {
            // Two strips of eight make sixteen lanes; past the last block the first stands in for
            // the second, whose scores nobody sees.
            let second = context.table.get(block + 1).map_or(keys, |block| kv.keys(*block));
            let strips = keys.as_chunks::<8>().0.iter().zip(second.as_chunks::<8>().0);
            for (d, (low, high)) in strips.enumerate().take(head_dim) {
                let mut lanes = [low[0]; LANES];
                lanes[..8].copy_from_slice(low);
                lanes[8..].copy_from_slice(high);
                score_dimension(proof, T::load(proof, &lanes), d, rows, &mut acc);
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

/// Adds the values of the span's tokens, weighted by `weights`, to `values`.
#[inline(always)]
fn weigh_partition<V: Lanes, T: LaneFloat, const R: usize>(
    proof: V::Proof,
    kv: KvHead<'_, T>,
    span: Span<'_>,
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
fn weigh_chunks<V: Lanes, T: LaneFloat, const R: usize, const CHUNKS: usize>(
    proof: V::Proof,
    kv: KvHead<'_, T>,
    span: Span<'_>,
    weights: &[[f32; PARTITION]; R],
    first: usize,
    values: &mut [[f32; MAX_HEAD_DIM]; R],
) {
    let Span { context, head_dim, start, len } = span;
    let mut acc = [[V::splat(proof, 0.0); CHUNKS]; R];
    for token in (0..len).step_by(context.block_size) {
        let block = kv.values(context.table[(start + token) / context.block_size]);
        let rows = block.chunks_exact(head_dim).take(len - token);
        for (offset, row) in rows.enumerate() {
            let stored = &row.as_chunks::<LANES>().0[first..first + CHUNKS];
            let mut value = [V::splat(proof, 0.0); CHUNKS];
            for c in 0..CHUNKS {
                value[c] = T::load(proof, &stored[c]);
            }
            for r in 0..R {
                let weight = V::splat(proof, weights[r][(token + offset) % PARTITION]);
                for c in 0..CHUNKS {
                    acc[r][c] = value[c].mul_add(weight, acc[r][c]);
                }
            }
        }
    }
    for (acc, values) in acc.iter().zip(values) {
        let place = &mut values.as_chunks_mut::<LANES>().0[first..first + CHUNKS];
        for (acc, place) in acc.iter().zip(place) {
            acc.store(place);
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

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "test sizes are small")]
mod tests;
