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

mod partitions;

use crate::isa::Isa;
use crate::key_offset::{KeyOffset, MAX_PAIRS, OffsetPair};
use crate::kv_layout::KvDtype;
use crate::kv_rotation::{MAX_HEAD_DIM, growth, rotate_head, rotate_head_back};
use crate::kv_storage::KvStorage;
use crate::lanes::LANES;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use mini_infer_core::Batch;
use partitions::{Context, attend_bf16, attend_f16, attend_f32, attend_i8};
use std::ops::Range;

/// Rows that share a pass over keys and values.
const MAX_ROWS: usize = 8;

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
/// Where stored keys lack something that is known, `key_offset` says what.
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
    key_offset: Option<&KeyOffset>,
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
        let offset = key_offset.map_or(&[][..], |offset| offset.pairs(unit.kv_head));
        let mut rows = Rows::gather(shape, unit, queries, row_width, batch);
        rows.multiply_offset(offset);
        let table = batch.sequence(unit.sequence).block_table;
        let block_size = storage.layout().block_size.tokens() as usize;
        let context = Context { table, block_size, offset };
        let (head_dim, kv_head) = (shape.head_dim, unit.kv_head);
        match storage.layout().dtype {
            KvDtype::F32 => {
                attend_f32(isa, storage.head(layer, kv_head), context, head_dim, &mut rows);
            }
            KvDtype::F16 => {
                attend_f16(isa, storage.head(layer, kv_head), context, head_dim, &mut rows);
            }
            KvDtype::Bf16 => {
                attend_bf16(isa, storage.head(layer, kv_head), context, head_dim, &mut rows);
            }
            KvDtype::Int8 => {
                rows.rotate_queries(isa, head_dim);
                attend_i8(isa, storage.head(layer, kv_head), context, head_dim, &mut rows);
                rows.rotate_values_back(isa, head_dim);
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
    /// Factors on the turns of each pair of the key offset.
    offset_factors: [[[f32; 2]; MAX_PAIRS]; MAX_ROWS],
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
            offset_factors: [[[0.0; 2]; MAX_PAIRS]; MAX_ROWS],
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

    /// Prepares the products of the queries with what the stored keys lack.
    fn multiply_offset(&mut self, offset: &[OffsetPair]) {
        for r in 0..self.num_rows {
            for (factors, pair) in self.offset_factors[r].iter_mut().zip(offset) {
                *factors = pair.factors(&self.queries[r]);
            }
        }
    }

    /// Rotates the queries as stored keys are, so that their products with those are right.
    fn rotate_queries(&mut self, isa: Isa, head_dim: usize) {
        let factor = 1.0 / growth(head_dim);
        for query in &mut self.queries[..self.num_rows] {
            rotate_head(isa, &mut query[..head_dim]);
            query[..head_dim].iter_mut().for_each(|q| *q *= factor);
        }
    }

    /// Makes values of sums of rotated ones.
    fn rotate_values_back(&mut self, isa: Isa, head_dim: usize) {
        let factor = 1.0 / growth(head_dim);
        for values in &mut self.values[..self.num_rows] {
            rotate_head_back(isa, &mut values[..head_dim]);
            values[..head_dim].iter_mut().for_each(|value| *value *= factor);
        }
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

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "test sizes are small")]
mod tests;
