//! Paged attention: queries over keys and values read in place from their blocks.
//!
//! For one query the operations are the same whatever else the step holds. Its context is cut
//! into partitions of [`PARTITION`] tokens from position 0 on. Each partition is computed by
//! itself (scores, their maximum, weights, weighted values), and partitions are merged in order,
//! rescaling to the larger maximum. Results do not depend on block size, chunk borders, neighbours
//! or threads.
//!
//! A row is one head of one query; the rows of a KV head of a sequence share a pass over its keys
//! and values. For `rows` of them and `context` tokens that is
//! `4 * rows * context * head_dim` operations on `2 * context * head_dim` elements: bound by memory
//! where rows are few (decode), and by arithmetic where they are many (prefill).

mod partition_kv;
mod partitions;
mod plan;
mod results;
mod rows;
mod scores;

use crate::aligned_floats::AlignedFloats;
use crate::float_format::{Bf16, F16};
use crate::isa::Isa;
use crate::key_offset::{KeyOffset, OffsetPair};
use crate::kv_layout::KvDtype;
use crate::kv_rotation::MAX_HEAD_DIM;
use crate::kv_storage::KvStorage;
use crate::lanes::LANES;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use mini_infer_core::Batch;
use partition_kv::{Ahead, InBlocks, Place, Widened};
use partitions::AttendedElement;
use plan::{Part, Plan};
use results::{Rotated, RowResults, merge};
use rows::{RowRange, Rows, bands};
use scores::{Partition, Scores};
use std::cell::RefCell;

/// Tokens whose scores are normalised together before merging: part of the numeric definition.
/// Their widened keys of one head, 32 KiB for 64 dimensions, fit an L1 cache.
const PARTITION: usize = 128;
/// Rows that read keys and values in place: more are worth a widened copy.
const MAX_ROWS_IN_BLOCKS: usize = 8;

thread_local! {
    static PLAN: RefCell<(Plan, AlignedFloats)> = RefCell::default();
    static WORKER: RefCell<Worker> = RefCell::default();
}

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
    /// What scores are squeezed below: `cap * tanh(score / cap)`; `None` where they are not.
    pub soft_cap: Option<f32>,
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

    /// Returns the query heads that share a KV head.
    const fn group(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }
}

/// What one call of [`attention`] reads.
#[derive(Clone, Copy, Debug)]
struct Step<'a> {
    isa: Isa,
    shape: &'a AttentionShape,
    queries: &'a [f32],
    row_width: usize,
    layer: usize,
    key_offset: Option<&'a KeyOffset>,
    batch: &'a Batch,
    storage: &'a KvStorage,
}

impl<'a> Step<'a> {
    fn offset_pairs(&self, kv_head: usize) -> &'a [OffsetPair] {
        self.key_offset.map_or(&[], |offset| offset.pairs(kv_head))
    }

    fn partition(&self, index: usize, kv_head: usize) -> Partition<'a> {
        let soft_cap = self.shape.soft_cap.map(|cap| cap * std::f32::consts::LOG2_E);
        Partition { index, offset: self.offset_pairs(kv_head), soft_cap }
    }

    /// Returns where a partition of a sequence lies; `None` past its end.
    fn place<T: AttendedElement>(
        &self,
        sequence: usize,
        kv_head: usize,
        index: usize,
    ) -> Place<'a, T> {
        let block_size = self.storage.layout().block_size;
        let first_block = index * PARTITION / block_size.tokens() as usize;
        let table = &self.batch.sequence(sequence).block_table[first_block..];
        Place { kv: self.storage.head(self.layer, kv_head), table, block_size }
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
    let step = Step { isa, shape, queries, row_width, layer, key_offset, batch, storage };
    match storage.layout().dtype {
        KvDtype::F32 => attend::<f32>(&step, pool, out),
        KvDtype::F16 => attend::<F16>(&step, pool, out),
        KvDtype::Bf16 => attend::<Bf16>(&step, pool, out),
        KvDtype::Int8 => attend::<i8>(&step, pool, out),
    }
}

/// Runs the units of a step.
fn attend<T: AttendedElement>(step: &Step<'_>, pool: &ThreadPool, out: &mut [f32]) {
    let out = RowView::new(out, step.shape.num_heads * step.shape.head_dim);
    PLAN.with_borrow_mut(|(plan, results)| {
        plan.fill(step, pool.num_threads());
        let results_len = plan.results_len.max(1);
        let results = RowView::new(results.first_mut(results_len), results_len);
        let plan = &*plan;
        pool.claim(plan.ranges.len() + plan.num_runs(), |index| {
            WORKER.with_borrow_mut(|worker| {
                if let Some(range) = plan.ranges.get(index) {
                    worker.attend_range::<T>(step, range, &out);
                } else {
                    let run = index - plan.ranges.len();
                    worker.attend_run::<T>(step, plan, run, &results, &out);
                }
            });
        });
    });
}

/// What a thread computes units in. Keeps its memory from one unit to the next.
#[derive(Debug, Default)]
struct Worker {
    widened: Widened,
    scores: Scores,
    /// Rows of a unit, or of each KV head of a sequence.
    rows: Vec<Rows>,
    /// The sequence, as an index in [`Plan::split`], whose rows of each KV head are gathered.
    gathered: Vec<Option<usize>>,
    /// Results of all partitions so far.
    total: AlignedFloats,
    /// Results of a band in one partition.
    results: AlignedFloats,
}

impl Worker {
    /// Gathers the rows of `range` as number `index`.
    fn gather<T: AttendedElement>(&mut self, step: &Step<'_>, range: &RowRange, index: usize) {
        if self.rows.len() <= index {
            self.rows.resize_with(index + 1, Rows::default);
        }
        let rows = &mut self.rows[index];
        rows.gather(step, range);
        if T::IS_CODE {
            rows.encode_queries(step);
        }
    }

    /// Computes many rows over their whole context.
    fn attend_range<T: AttendedElement>(
        &mut self,
        step: &Step<'_>,
        range: &RowRange,
        out: &RowView<'_, f32>,
    ) {
        self.gather::<T>(step, range, 0);
        let (num_rows, head_dim) = (range.rows.len(), step.shape.head_dim);
        let Self { widened, scores, rows, total, results, .. } = self;
        let rows = &rows[0];
        let total = total.first_mut(RowResults::num_floats(num_rows, head_dim));
        for band in rows.bands() {
            RowResults::of_band(total, band, head_dim).clear();
        }
        for index in rows.partitions() {
            let place: Place<'_, T> = step.place(range.sequence, range.kv_head, index);
            let partition = step.partition(index, range.kv_head);
            let (tokens, _) = rows.seen_by(rows.whole(), index);
            T::copy_widened(step.isa, place, tokens, head_dim, widened);
            let ahead = (index + 1 < rows.partitions().end).then(|| {
                let place: Place<'_, T> = step.place(range.sequence, range.kv_head, index + 1);
                Ahead::new(&place, rows.seen_by(rows.whole(), index + 1).0)
            });
            let ahead = ahead.as_ref();
            for band in rows.bands() {
                let results = results.first_mut(RowResults::num_floats(band.num_rows, head_dim));
                let mut results = RowResults::within(results, band.num_rows, head_dim);
                T::attend_widened(
                    step.isa,
                    widened,
                    partition,
                    ahead,
                    rows,
                    band,
                    scores,
                    &mut results,
                );
                let mut total = RowResults::of_band(total, band, head_dim);
                merge(step.isa, &mut total, &results, band.num_rows, head_dim);
            }
        }
        for band in rows.bands() {
            let mut total = RowResults::of_band(total, band, head_dim);
            // SAFETY: sequences share no token, as `attention` asserts, so each head of each token
            // is a row of exactly one unit, and a unit is claimed by one thread.
            unsafe { total.write(step, &range.of_band(band), Rotated::of::<T>(), out) };
        }
    }

    /// Computes a run of parts.
    fn attend_run<T: AttendedElement>(
        &mut self,
        step: &Step<'_>,
        plan: &Plan,
        run: usize,
        results: &RowView<'_, f32>,
        out: &RowView<'_, f32>,
    ) {
        let num_kv_heads = step.shape.num_kv_heads;
        self.gathered.clear();
        self.gathered.resize(num_kv_heads, None);
        for number in plan.run(run) {
            let part = plan.part(number, num_kv_heads);
            let split = &plan.split[part.split];
            if self.gathered[part.kv_head].replace(part.split) != Some(part.split) {
                self.gather::<T>(step, &split.range(part.kv_head), part.kv_head);
            }
            let next = plan.likely_next(run, number).map(|next| plan.part(next, num_kv_heads));
            self.attend_part::<T>(step, plan, part, next, results);
            if split.finish_part() {
                self.merge_parts::<T>(step, plan, part.split, results, out);
            }
        }
    }

    fn attend_part<T: AttendedElement>(
        &mut self,
        step: &Step<'_>,
        plan: &Plan,
        part: Part,
        next: Option<Part>,
        results: &RowView<'_, f32>,
    ) {
        let place = |part: Part| -> Place<'_, T> {
            step.place(plan.split[part.split].sequence, part.kv_head, part.partition)
        };
        let Self { widened, scores, rows, .. } = self;
        let rows = &rows[part.kv_head];
        let split = &plan.split[part.split];
        let floats = split.results(part, step.shape.num_kv_heads);
        // SAFETY: each part has its own stretch of the results and is computed once; nobody reads
        // it before `finish_part` was called for it.
        let floats = unsafe { results.piece(0, floats.start, floats.len()) };
        let partition = step.partition(part.partition, part.kv_head);
        let head_dim = step.shape.head_dim;
        let own_place = place(part);
        let has_whole_strips = own_place.block_size.tokens() as usize >= LANES;
        if rows.len() <= MAX_ROWS_IN_BLOCKS && has_whole_strips {
            let kv = InBlocks { place: own_place, next: next.map(place), head_dim };
            let results = RowResults::within(floats, rows.len(), head_dim);
            T::attend_in_blocks(step.isa, kv, partition, rows, scores, results);
        } else {
            let (tokens, _) = rows.seen_by(rows.whole(), part.partition);
            T::copy_widened(step.isa, own_place, tokens, head_dim, widened);
            // The next part of the same sequence, whose rows of all heads see the same tokens.
            let next = next.filter(|next| next.split == part.split);
            let ahead = next.map(|next| {
                let (tokens, _) = rows.seen_by(rows.whole(), next.partition);
                Ahead::new(&place(next), tokens)
            });
            let ahead = ahead.as_ref();
            for band in rows.bands() {
                let mut results = RowResults::of_band(floats, band, head_dim);
                T::attend_widened(
                    step.isa,
                    widened,
                    partition,
                    ahead,
                    rows,
                    band,
                    scores,
                    &mut results,
                );
            }
        }
    }

    /// Merges all parts of a sequence, in order.
    fn merge_parts<T: AttendedElement>(
        &mut self,
        step: &Step<'_>,
        plan: &Plan,
        split_index: usize,
        results: &RowView<'_, f32>,
        out: &RowView<'_, f32>,
    ) {
        let (num_kv_heads, head_dim) = (step.shape.num_kv_heads, step.shape.head_dim);
        let split = &plan.split[split_index];
        let num_floats = RowResults::num_floats(split.num_rows, head_dim);
        let total = self.total.first_mut(num_floats);
        for kv_head in 0..num_kv_heads {
            for band in bands(split.num_rows) {
                RowResults::of_band(total, band, head_dim).clear();
            }
            for partition in split.partitions.clone() {
                let part = Part { split: split_index, partition, kv_head };
                let floats = split.results(part, num_kv_heads);
                // SAFETY: all parts of the sequence are computed, as the only call of
                // `finish_part` that returned true has shown, so nobody else holds their results.
                let floats = unsafe { results.piece(0, floats.start, floats.len()) };
                for band in bands(split.num_rows) {
                    let of_partition = RowResults::of_band(floats, band, head_dim);
                    let mut total = RowResults::of_band(total, band, head_dim);
                    merge(step.isa, &mut total, &of_partition, band.num_rows, head_dim);
                }
            }
            for band in bands(split.num_rows) {
                let range = split.range(kv_head).of_band(band);
                let mut total = RowResults::of_band(total, band, head_dim);
                // SAFETY: sequences share no token, as `attention` asserts, so each head of each
                // token is a row of one sequence, and only one thread merges that.
                unsafe { total.write(step, &range, Rotated::of::<T>(), out) };
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "test sizes are small")]
mod tests;
