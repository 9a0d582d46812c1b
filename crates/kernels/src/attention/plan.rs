//! How the attention of a step is cut into units of work.
//!
//! Many rows of one KV head are cut by rows, the longest contexts first, and each unit goes over
//! its whole context. Few rows, as in decode or a small chunk of a prompt, are cut by context:
//! every partition of every head is a part, and a unit is a run of parts, which its thread reads
//! one after the other. The heads of a partition follow each other, because they are neighbours in
//! a block. Whoever finishes the last part of a sequence merges them in order.
//!
//! Cut by rows, every unit widens the keys and values that it sees; so a chunk whose rows would
//! make small units is cut by context too, where that gives every thread enough parts.

use super::results::RowResults;
use super::rows::{RowRange, TILE};
use super::{PARTITION, Step};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of a sequence's KV head up to which the context is always cut, not the rows.
const FEW_ROWS: usize = 32;
/// Floats that the results of all parts of a step take at most, those of few rows apart: 16 MiB.
const MAX_SPLIT_FLOATS: usize = 4 << 20;
/// Units of many rows that each thread gets at least, where there is enough work.
const UNITS_PER_THREAD: usize = 8;
/// Most rows of a unit: enough that widening keys and values for them costs little.
const MAX_UNIT_ROWS: usize = 288;
/// Runs of parts for each thread.
const RUNS_PER_THREAD: usize = 8;

/// The units of a step. Keeps its memory from one step to the next.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Units of many rows.
    pub(super) ranges: Vec<RowRange>,
    /// Sequences whose context is cut.
    pub(super) split: Vec<SplitSequence>,
    /// Sequences whose rows are cut.
    by_rows: Vec<usize>,
    num_parts: usize,
    num_runs: usize,
    num_threads: usize,
    /// Floats that the results of all parts take.
    pub(super) results_len: usize,
}

/// A sequence whose context is cut into parts.
#[derive(Debug)]
pub(super) struct SplitSequence {
    pub(super) sequence: usize,
    /// Rows of each KV head.
    pub(super) num_rows: usize,
    /// Partitions that some row sees.
    pub(super) partitions: Range<usize>,
    /// Number of its first part; a part is `(partition - first) * num_kv_heads + head`.
    first_part: usize,
    num_parts: usize,
    /// Where its results begin.
    results_start: usize,
    /// Floats of the results of a part.
    result_len: usize,
    /// Parts that nobody has computed yet.
    num_left: AtomicUsize,
}

/// One partition of one head of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Index in [`Plan::split`].
    pub(super) split: usize,
    pub(super) partition: usize,
    pub(super) kv_head: usize,
}

impl SplitSequence {
    /// Returns the rows of one KV head.
    pub(super) fn range(&self, kv_head: usize) -> RowRange {
        RowRange { sequence: self.sequence, kv_head, rows: 0..self.num_rows }
    }

    /// Returns where the results of a part lie.
    pub(super) fn results(&self, part: Part, num_kv_heads: usize) -> Range<usize> {
        let index = (part.partition - self.partitions.start) * num_kv_heads + part.kv_head;
        let start = self.results_start + index * self.result_len;
        start..start + self.result_len
    }

    /// Notes that one more part is computed; returns whether it was the last. What other threads
    /// wrote before they noted theirs is then visible to this one.
    pub(super) fn finish_part(&self) -> bool {
        self.num_left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Plan {
    /// Plans a step.
    pub(super) fn fill(&mut self, step: &Step<'_>, num_threads: usize) {
        self.ranges.clear();
        self.split.clear();
        (self.num_parts, self.results_len) = (0, 0);
        self.num_threads = num_threads;
        let group = step.shape.group();
        self.by_rows.clear();
        let mut num_rows = 0;
        for sequence in 0..step.batch.num_seqs() {
            let sequence_rows = step.batch.sequence(sequence).num_tokens * group;
            let split = self.split_sequence(step, sequence, sequence_rows);
            let results_len = split.num_parts * split.result_len;
            let is_worth_it = sequence_rows <= MAX_UNIT_ROWS
                && split.num_parts >= num_threads * RUNS_PER_THREAD
                && self.results_len + results_len <= MAX_SPLIT_FLOATS;
            if sequence_rows <= FEW_ROWS || is_worth_it {
                self.num_parts += split.num_parts;
                self.results_len += results_len;
                self.split.push(split);
            } else {
                num_rows += sequence_rows;
                self.by_rows.push(sequence);
            }
        }
        self.num_runs = self.num_parts.min(num_threads * RUNS_PER_THREAD);
        let unit_rows = num_rows * step.shape.num_kv_heads / (num_threads * UNITS_PER_THREAD);
        let unit_rows = unit_rows.next_multiple_of(TILE).clamp(FEW_ROWS, MAX_UNIT_ROWS);
        for &sequence in &self.by_rows {
            let sequence_rows = step.batch.sequence(sequence).num_tokens * group;
            for start in (0..sequence_rows).step_by(unit_rows) {
                let rows = start..sequence_rows.min(start + unit_rows);
                self.ranges.extend((0..step.shape.num_kv_heads).map(|kv_head| RowRange {
                    sequence,
                    kv_head,
                    rows: rows.clone(),
                }));
            }
        }
        let cost = |range: &RowRange| range.place(step, range.rows.len() - 1).0;
        let longest = |range: &RowRange| step.batch.positions[cost(range)];
        self.ranges.sort_unstable_by_key(|range| std::cmp::Reverse(longest(range)));
    }

    /// Returns the parts of a sequence, as the next ones of the step.
    fn split_sequence(&self, step: &Step<'_>, sequence: usize, num_rows: usize) -> SplitSequence {
        let span = step.batch.sequence(sequence);
        let first_position = step.batch.positions[span.first_row] as usize;
        let hidden =
            step.shape.window.map_or(0, |window| (first_position + 1).saturating_sub(window));
        let end = (first_position + span.num_tokens).div_ceil(PARTITION);
        let partitions = hidden / PARTITION..end;
        let num_parts = partitions.len() * step.shape.num_kv_heads;
        let result_len = RowResults::num_floats(num_rows, step.shape.head_dim);
        SplitSequence {
            sequence,
            num_rows,
            partitions,
            first_part: self.num_parts,
            num_parts,
            results_start: self.results_len,
            result_len,
            num_left: AtomicUsize::new(num_parts),
        }
    }

    /// Returns the number of runs of parts.
    pub(super) fn num_runs(&self) -> usize {
        self.num_runs
    }

    /// Returns the numbers of the parts of a run.
    pub(super) fn run(&self, index: usize) -> Range<usize> {
        let start = |run: usize| self.num_parts * run / self.num_runs;
        start(index)..start(index + 1)
    }

    /// Returns the number of the part that the thread of a run computes after part `number` of it:
    /// threads that keep pace take every `num_threads`th run.
    pub(super) fn likely_next(&self, run: usize, number: usize) -> Option<usize> {
        let next_run = run + self.num_threads;
        if number + 1 < self.run(run).end {
            Some(number + 1)
        } else {
            (next_run < self.num_runs).then(|| self.run(next_run).start)
        }
    }

    /// Returns a part by its number.
    pub(super) fn part(&self, number: usize, num_kv_heads: usize) -> Part {
        let split =
            self.split.partition_point(|split| split.first_part + split.num_parts <= number);
        let index = number - self.split[split].first_part;
        Part {
            split,
            partition: self.split[split].partitions.start + index / num_kv_heads,
            kv_head: index % num_kv_heads,
        }
    }
}
