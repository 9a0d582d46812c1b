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

use crate::dispatch::for_each_isa;
use crate::elementwise::{exp, sum_lanes};
use crate::float_format::{Bf16, F16, StoredFloat};
use crate::isa::Isa;
use crate::kv_storage::{KvDtype, KvHead, KvStorage, MAX_STRIP};
use crate::packed_matrix::LANES;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use mini_infer_core::{Batch, BlockId};

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
    /// Tokens that each row sees.
    visible: [usize; MAX_ROWS],
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
        }
        rows
    }

    fn scatter(&self, shape: &AttentionShape, unit: &Unit, batch: &Batch, out: &RowView<'_, f32>) {
        for r in 0..unit.num_rows {
            let (token, head) = place(shape, unit, batch, r);
            // SAFETY: each head of each token is a row of exactly one unit, and a unit is claimed
            // by one thread.
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

for_each_isa! {
    fn attend_f32(kv: KvHead<'_, f32>, context: Context<'_>, head_dim: usize, rows: &mut Rows) = attend::<f32>
}
for_each_isa! {
    fn attend_f16(kv: KvHead<'_, F16>, context: Context<'_>, head_dim: usize, rows: &mut Rows) = attend::<F16>
}
for_each_isa! {
    fn attend_bf16(kv: KvHead<'_, Bf16>, context: Context<'_>, head_dim: usize, rows: &mut Rows) = attend::<Bf16>
}

#[inline(always)]
fn attend<T: StoredFloat>(
    kv: KvHead<'_, T>,
    context: Context<'_>,
    head_dim: usize,
    rows: &mut Rows,
) {
    match rows.num_rows {
        1 => attend_rows::<T, 1>(kv, context, head_dim, rows),
        2 => attend_rows::<T, 2>(kv, context, head_dim, rows),
        3 => attend_rows::<T, 3>(kv, context, head_dim, rows),
        4 => attend_rows::<T, 4>(kv, context, head_dim, rows),
        // Rows beyond the unit's see no token, so they change nothing.
        _ => attend_rows::<T, MAX_ROWS>(kv, context, head_dim, rows),
    }
}

#[inline(always)]
fn attend_rows<T: StoredFloat, const R: usize>(
    kv: KvHead<'_, T>,
    context: Context<'_>,
    head_dim: usize,
    rows: &mut Rows,
) {
    let longest = rows.visible.iter().copied().max().unwrap_or(0);
    for start in (0..longest).step_by(PARTITION) {
        let len = PARTITION.min(longest - start);
        let mut scores = [[0.0_f32; PARTITION]; R];
        score_partition(kv, context, head_dim, start, len, rows, &mut scores);
        let mut maximum = [f32::NEG_INFINITY; R];
        let mut sum = [0.0; R];
        for r in 0..R {
            let visible = rows.visible[r].saturating_sub(start).min(len);
            (maximum[r], sum[r]) = exponentials(&mut scores[r], visible);
        }
        let mut values = [[0.0_f32; MAX_HEAD_DIM]; R];
        weigh_partition(kv, context, head_dim, start, len, &scores, &mut values);
        for r in 0..R {
            if rows.visible[r] > start {
                merge(rows, r, maximum[r], sum[r], &values[r][..head_dim]);
            }
        }
    }
}

/// Writes the scores of tokens `start..start + len`, rounded up to whole strips.
#[inline(always)]
fn score_partition<T: StoredFloat, const R: usize>(
    kv: KvHead<'_, T>,
    context: Context<'_>,
    head_dim: usize,
    start: usize,
    len: usize,
    rows: &Rows,
    scores: &mut [[f32; PARTITION]; R],
) {
    let strip = context.block_size.min(MAX_STRIP);
    for first in (0..len).step_by(strip) {
        let token = start + first;
        let keys = kv.keys(context.table[token / context.block_size]);
        let keys = &keys[token % context.block_size * head_dim..][..head_dim * strip];
        if strip == MAX_STRIP {
            score_strip::<T, R, MAX_STRIP>(keys, rows, first, scores);
        } else {
            score_strip::<T, R, 8>(keys, rows, first, scores);
        }
    }
}

#[inline(always)]
fn score_strip<T: StoredFloat, const R: usize, const STRIP: usize>(
    keys: &[T],
    rows: &Rows,
    first: usize,
    scores: &mut [[f32; PARTITION]; R],
) {
    let mut acc = [[0.0_f32; STRIP]; R];
    for (d, lanes) in keys.as_chunks::<STRIP>().0.iter().enumerate().take(MAX_HEAD_DIM) {
        let wide = lanes.map(StoredFloat::widen);
        for r in 0..R {
            let q = rows.queries[r][d];
            for (acc, k) in acc[r].iter_mut().zip(&wide) {
                *acc = k.mul_add(q, *acc);
            }
        }
    }
    for r in 0..R {
        scores[r][first..first + STRIP].copy_from_slice(&acc[r]);
    }
}

/// Turns the first `visible` scores into exponentials below their maximum and the rest into
/// zeros; returns the maximum and the sum.
#[inline(always)]
fn exponentials(scores: &mut [f32; PARTITION], visible: usize) -> (f32, f32) {
    scores[visible..].fill(f32::NEG_INFINITY);
    let chunks = scores.as_chunks_mut::<LANES>().0;
    let chunks = &mut chunks[..visible.div_ceil(LANES)];
    let mut largest = [f32::NEG_INFINITY; LANES];
    for chunk in &*chunks {
        for (largest, score) in largest.iter_mut().zip(chunk) {
            // A NaN score must not vanish: it is kept once seen, since no comparison holds.
            *largest = if *largest >= *score { *largest } else { *score };
        }
    }
    let maximum = largest.iter().fold(f32::NEG_INFINITY, |a, b| if a >= *b { a } else { *b });
    let mut sums = [0.0_f32; LANES];
    for chunk in chunks {
        for (sum, score) in sums.iter_mut().zip(chunk) {
            *score = exp(*score - maximum);
            *sum += *score;
        }
    }
    let tail = visible.div_ceil(LANES) * LANES;
    scores[tail..].fill(0.0);
    (maximum, sum_lanes(&sums))
}

/// Adds the values of tokens `start..start + len`, weighted by `weights`, to `values`.
#[inline(always)]
fn weigh_partition<T: StoredFloat, const R: usize>(
    kv: KvHead<'_, T>,
    context: Context<'_>,
    head_dim: usize,
    start: usize,
    len: usize,
    weights: &[[f32; PARTITION]; R],
    values: &mut [[f32; MAX_HEAD_DIM]; R],
) {
    let mut first_dim = 0;
    while first_dim < head_dim {
        if head_dim - first_dim >= 2 * LANES {
            weigh_dims::<T, R, 2>(kv, context, head_dim, start, len, weights, first_dim, values);
            first_dim += 2 * LANES;
        } else {
            weigh_dims::<T, R, 1>(kv, context, head_dim, start, len, weights, first_dim, values);
            first_dim += LANES;
        }
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the inner half of one loop nest")]
fn weigh_dims<T: StoredFloat, const R: usize, const CHUNKS: usize>(
    kv: KvHead<'_, T>,
    context: Context<'_>,
    head_dim: usize,
    start: usize,
    len: usize,
    weights: &[[f32; PARTITION]; R],
    first_dim: usize,
    values: &mut [[f32; MAX_HEAD_DIM]; R],
) {
    let mut acc = [[[0.0_f32; LANES]; CHUNKS]; R];
    let block_size = context.block_size;
    for first in (0..len).step_by(block_size) {
        let block = kv.values(context.table[(start + first) / block_size]);
        for (t, row) in block.chunks_exact(head_dim).enumerate().take(len - first) {
            let stored = row[first_dim..].as_chunks::<LANES>().0;
            let stored = stored.first_chunk::<CHUNKS>().expect("the caller left CHUNKS chunks");
            let wide = stored.map(|lanes| lanes.map(StoredFloat::widen));
            for r in 0..R {
                let weight = weights[r][(first + t) % PARTITION];
                for c in 0..CHUNKS {
                    for (acc, v) in acc[r][c].iter_mut().zip(&wide[c]) {
                        *acc = v.mul_add(weight, *acc);
                    }
                }
            }
        }
    }
    for r in 0..R {
        let place = values[r][first_dim..].as_chunks_mut::<LANES>().0;
        place[..CHUNKS].copy_from_slice(&acc[r]);
    }
}

/// Adds a partition's result to row `r`, rescaling both to the larger maximum.
#[inline(always)]
fn merge(rows: &mut Rows, r: usize, maximum: f32, sum: f32, values: &[f32]) {
    let larger = if rows.maximum[r] >= maximum { rows.maximum[r] } else { maximum };
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
mod tests {
    use super::*;
    use crate::kv_storage::{KvLayout, store_kv};
    use mini_infer_core::BlockSize;
    use std::num::NonZeroUsize;

    fn pool(num_threads: usize) -> ThreadPool {
        ThreadPool::new(NonZeroUsize::new(num_threads).unwrap())
    }

    /// A sequence of random rows `[queries, keys, values]` and its attention, computed in pieces.
    struct Case {
        shape: AttentionShape,
        dtype: KvDtype,
        block_size: BlockSize,
        rows: Vec<f32>,
        num_tokens: usize,
    }

    impl Case {
        fn new(shape: AttentionShape, dtype: KvDtype, block_size: u32, num_tokens: usize) -> Self {
            let block_size = BlockSize::new(block_size).unwrap();
            let mut state = 12345_u32;
            let width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
            let rows = (0..num_tokens * width)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) as f32 / 8_388_608.0 - 1.0
                })
                .collect();
            Self { shape, dtype, block_size, rows, num_tokens }
        }

        fn width(&self) -> usize {
            self.rows.len() / self.num_tokens
        }

        /// Computes all tokens in chunks of `chunk`, blocks in falling order.
        fn attend(&self, isa: Isa, num_threads: usize, chunk: usize) -> Vec<f32> {
            let pool = pool(num_threads);
            let num_blocks = self.block_size.blocks_for(self.num_tokens as u32) + 1;
            let layout = KvLayout {
                num_layers: 2,
                num_kv_heads: self.shape.num_kv_heads,
                head_dim: self.shape.head_dim,
                block_size: self.block_size,
                dtype: self.dtype,
            };
            let mut storage = KvStorage::reserve(layout, num_blocks).unwrap();
            let table: Vec<_> = (0..num_blocks).rev().map(BlockId).collect();
            let width = self.width();
            let first_key = self.shape.num_heads * self.shape.head_dim;
            let mut all = Vec::new();
            for start in (0..self.num_tokens).step_by(chunk) {
                let len = chunk.min(self.num_tokens - start);
                let mut batch = Batch::default();
                batch.push_sequence(&vec![0; len], start as u32, &table, self.block_size, false);
                let rows = &self.rows[start * width..(start + len) * width];
                store_kv(&pool, &mut storage, 1, &batch.slot_mapping, rows, width, first_key);
                let mut out = vec![f32::NAN; len * first_key];
                attention(isa, &pool, &self.shape, rows, width, 1, &batch, &storage, &mut out);
                all.extend(out);
            }
            all
        }

        /// Plain attention in f64 over the stored form of keys and values.
        fn expected(&self, token: usize, head: usize) -> Vec<f64> {
            let AttentionShape { num_heads, num_kv_heads, head_dim, scale } = self.shape;
            let kv_head = head / (num_heads / num_kv_heads);
            let row = |t: usize, first: usize| {
                &self.rows[t * self.width() + first * head_dim..][..head_dim]
            };
            let stored = |x: &f32| {
                f64::from(match self.dtype {
                    KvDtype::F32 => *x,
                    KvDtype::F16 => F16::narrow(*x).widen(),
                    KvDtype::Bf16 => Bf16::narrow(*x).widen(),
                })
            };
            let scores: Vec<f64> = (0..=token)
                .map(|t| {
                    let keys = row(t, num_heads + kv_head).iter().map(stored);
                    let query = row(token, head).iter();
                    query.zip(keys).map(|(q, k)| f64::from(*q) * k).sum::<f64>() * f64::from(scale)
                })
                .collect();
            let maximum = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - maximum).exp()).collect();
            let total: f64 = weights.iter().sum();
            (0..head_dim)
                .map(|d| {
                    let value = |t| stored(&row(t, num_heads + num_kv_heads + kv_head)[d]);
                    weights.iter().enumerate().map(|(t, w)| w / total * value(t)).sum()
                })
                .collect()
        }

        fn check(&self, out: &[f32]) {
            let AttentionShape { num_heads, head_dim, .. } = self.shape;
            for token in (0..self.num_tokens).step_by(37).chain([self.num_tokens - 1]) {
                for head in 0..num_heads {
                    let got = &out[(token * num_heads + head) * head_dim..][..head_dim];
                    for (got, expected) in got.iter().zip(self.expected(token, head)) {
                        // Values are below 1; a score is off by at most head_dim roundings.
                        let bound = 4.0 * head_dim as f64 * f64::from(f32::EPSILON);
                        assert!((f64::from(*got) - expected).abs() < bound, "{got} {expected}");
                    }
                }
            }
        }
    }

    const SHAPES: [AttentionShape; 4] = [
        AttentionShape { num_heads: 9, num_kv_heads: 3, head_dim: 64, scale: 0.7 },
        AttentionShape { num_heads: 14, num_kv_heads: 2, head_dim: 16, scale: 1.0 },
        AttentionShape { num_heads: 4, num_kv_heads: 4, head_dim: 48, scale: 0.5 },
        AttentionShape { num_heads: 10, num_kv_heads: 1, head_dim: 256, scale: 0.1 },
    ];

    #[test]
    fn attention_matches_f64_softmax_and_is_bit_equal_on_every_isa() {
        for shape in SHAPES {
            for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
                let case = Case::new(shape, dtype, 16, 300);
                let mut first: Option<Vec<f32>> = None;
                for isa in Isa::all_present() {
                    let out = case.attend(isa, 2, 300);
                    case.check(&out);
                    assert_eq!(first.get_or_insert_with(|| out.clone()), &out);
                }
            }
        }
    }

    #[test]
    fn chunks_threads_and_block_size_do_not_change_a_bit() {
        for shape in SHAPES {
            let expected =
                Case::new(shape, KvDtype::Bf16, 16, 530).attend(Isa::all_present()[0], 1, 530);
            for (block_size, num_threads, chunk) in
                [(8, 2, 1), (16, 3, 7), (16, 2, 64), (32, 1, 255), (64, 2, 257)]
            {
                let case = Case::new(shape, KvDtype::Bf16, block_size, 530);
                let out = case.attend(Isa::all_present()[0], num_threads, chunk);
                assert!(out == expected, "block size {block_size}, chunk {chunk} of {shape:?}");
            }
        }
    }

    #[test]
    fn a_broken_key_breaks_only_the_queries_that_see_it() {
        let mut case = Case::new(SHAPES[0], KvDtype::Bf16, 16, 40);
        let good = case.attend(Isa::Scalar, 1, 40);
        let width = case.width();
        case.rows[20 * width + 9 * 64] = f32::NAN;
        let row = 9 * 64;
        for isa in Isa::all_present() {
            let out = case.attend(isa, 2, 40);
            assert_eq!(out[..20 * row], good[..20 * row]);
            assert!(out[20 * row..20 * row + 64].iter().all(|value| value.is_nan()));
        }
    }
}
