//! Rows of attention: each is one head of one query.
//!
//! Rows of one KV head of one sequence are gathered together, scaled so that the weight of a key
//! is two to the power of their product (rotated and rounded where stored keys are). Kernels take up to
//! [`TILE`] of them at a time, and take a [`Band`] of tiles from its scores to its merged results
//! before the next; how rows are cut changes no row's operations.

use super::{AttentionShape, PARTITION, Step};
use crate::key_offset::MAX_PAIRS;
use crate::kv_rotation::{MAX_HEAD_DIM, growth, rotate_query};
use std::ops::Range;

/// Most rows that a kernel takes at a time.
pub(super) const TILE: usize = 6;

/// Most rows of a band. The scores and results of so many, 12 and 6 KiB for 64 dimensions, stay in
/// an L1 cache beside the keys or values that they meet. A multiple of [`TILE`].
pub(super) const BAND: usize = 24;

/// Which rows of a sequence: those of one KV head, of some of its queries.
#[derive(Clone, Debug)]
pub(super) struct RowRange {
    pub(super) sequence: usize,
    pub(super) kv_head: usize,
    /// A row is `query * group + head within the group`, the query counted from the sequence's
    /// first of the step.
    pub(super) rows: Range<usize>,
}

impl RowRange {
    /// Returns the part of the range that a band of its rows is.
    pub(super) fn of_band(&self, band: Band) -> Self {
        let first = self.rows.start + band.first;
        Self { rows: first..first + band.num_rows, ..self.clone() }
    }

    /// Returns the batch row and the query head of the range's row `r`.
    pub(super) fn place(&self, step: &Step<'_>, r: usize) -> (usize, usize) {
        let group = step.shape.group();
        let row = self.rows.start + r;
        let first = step.batch.sequence(self.sequence).first_row;
        (first + row / group, self.kv_head * group + row % group)
    }
}

/// Gathered rows. Every list has one row more than there are, so that a tile of two or five
/// can be computed as one of three or six; what that row holds reaches no result.
#[derive(Debug, Default)]
pub(super) struct Rows {
    num_rows: usize,
    pub(super) head_dim: usize,
    /// Scaled queries.
    pub(super) queries: Vec<[f32; MAX_HEAD_DIM]>,
    /// What the unit of each query stands for, where they are rounded to integers.
    pub(super) query_scales: Vec<f32>,
    /// Factors on the turns of each pair of the key offset.
    pub(super) offset_factors: Vec<[[f32; 2]; MAX_PAIRS]>,
    /// Tokens up to each row's own.
    visible: Vec<usize>,
    /// Tokens before the window of each row.
    hidden: Vec<usize>,
}

/// Up to [`BAND`] neighbouring rows, the first a multiple of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Band {
    pub(super) first: usize,
    pub(super) num_rows: usize,
}

/// Some neighbouring rows that are computed together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RowTile {
    pub(super) first: usize,
    pub(super) num_rows: usize,
}

impl Rows {
    /// Takes up the rows of `range`.
    pub(super) fn gather(&mut self, step: &Step<'_>, range: &RowRange) {
        let AttentionShape { head_dim, window, .. } = *step.shape;
        self.num_rows = range.rows.len();
        self.head_dim = head_dim;
        self.queries.resize(self.num_rows + 1, [0.0; MAX_HEAD_DIM]);
        self.offset_factors.resize(self.num_rows + 1, [[0.0; 2]; MAX_PAIRS]);
        self.visible.clear();
        self.hidden.clear();
        let factor = step.shape.scale * std::f32::consts::LOG2_E;
        let offset = step.offset_pairs(range.kv_head);
        for r in 0..self.num_rows {
            let (token, head) = range.place(step, r);
            let query = &step.queries[token * step.row_width + head * head_dim..][..head_dim];
            let scaled = &mut self.queries[r][..head_dim];
            for (scaled, q) in scaled.iter_mut().zip(query) {
                *scaled = q * factor;
            }
            for (factors, pair) in self.offset_factors[r].iter_mut().zip(offset) {
                *factors = pair.factors(scaled);
            }
            let visible = step.batch.positions[token] as usize + 1;
            self.visible.push(visible);
            self.hidden.push(window.map_or(0, |window| visible.saturating_sub(window)));
        }
    }

    /// Rotates the queries as stored keys are, so that their products with those are right, and
    /// rounds them to 16 bits, which take the places of pairs of numbers, from the first on.
    pub(super) fn encode_queries(&mut self, step: &Step<'_>) {
        let factor = 1.0 / growth(self.head_dim);
        self.query_scales.resize(self.num_rows + 1, 0.0);
        for (query, scale) in
            self.queries.iter_mut().zip(&mut self.query_scales).take(self.num_rows)
        {
            let mut codes = [0; MAX_HEAD_DIM];
            let codes = &mut codes[..self.head_dim];
            *scale = factor * rotate_query(step.isa, &mut query[..self.head_dim], codes);
            bytemuck::cast_slice_mut(query)[..self.head_dim].copy_from_slice(codes);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.num_rows
    }

    /// Returns the partitions that hold a token that some row sees.
    pub(super) fn partitions(&self) -> Range<usize> {
        let first = self.hidden.iter().copied().min().unwrap_or(0) / PARTITION;
        first..self.visible.iter().copied().max().unwrap_or(0).div_ceil(PARTITION)
    }

    /// Returns which tokens of a partition row `r` sees, counted from the partition's start.
    #[inline(always)]
    pub(super) fn seen(&self, r: usize, partition: usize) -> Range<usize> {
        let within = |token: usize| token.saturating_sub(partition * PARTITION).min(PARTITION);
        within(self.hidden[r])..within(self.visible[r])
    }

    /// Returns the tokens of a partition from the first to the last that some row of a tile sees,
    /// and those that all of its rows see.
    #[inline(always)]
    pub(super) fn seen_by(&self, tile: RowTile, partition: usize) -> (Range<usize>, Range<usize>) {
        // Later rows neither see earlier tokens nor fewer late ones, so the outer rows decide.
        let seen = |r: usize| self.seen(r, partition);
        let rows = tile.first..tile.first + tile.num_rows;
        let first = rows.clone().map(seen).find(|seen| !seen.is_empty());
        let last = rows.clone().rev().map(seen).find(|seen| !seen.is_empty());
        let any = first.unwrap_or(0..0).start..last.unwrap_or(0..0).end;
        let all = seen(rows.end - 1).start..seen(rows.start).end;
        let all_start = all.start.clamp(any.start, any.end);
        (any.clone(), all_start..all.end.clamp(all_start, any.end))
    }

    /// Returns the tile of all rows.
    pub(super) fn whole(&self) -> RowTile {
        RowTile { first: 0, num_rows: self.num_rows }
    }

    /// Cuts the rows into bands.
    pub(super) fn bands(&self) -> impl Iterator<Item = Band> + use<> {
        bands(self.num_rows)
    }
}

/// Cuts so many rows into bands.
pub(super) fn bands(num_rows: usize) -> impl Iterator<Item = Band> {
    (0..num_rows)
        .step_by(BAND)
        .map(move |first| Band { first, num_rows: BAND.min(num_rows - first) })
}

impl Band {
    /// Returns the band as a tile.
    pub(super) fn whole(self) -> RowTile {
        RowTile { first: self.first, num_rows: self.num_rows }
    }

    /// Cuts the band into tiles.
    pub(super) fn tiles(self) -> impl Iterator<Item = RowTile> + use<> {
        let (mut first, end) = (self.first, self.first + self.num_rows);
        std::iter::from_fn(move || {
            let num_rows = match end - first {
                0 => return None,
                // Two tiles of at most four instead of a full one and a remainder.
                7 | 8 => 4,
                left => left.min(TILE),
            };
            let tile = RowTile { first, num_rows };
            first += num_rows;
            Some(tile)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_rows_in_order_and_only_the_last_may_need_a_row_more() {
        for num_rows in 1..100 {
            let (mut end, mut band_end) = (0, 0);
            for band in bands(num_rows) {
                assert_eq!((band.first, band.first % BAND), (band_end, 0));
                band_end += band.num_rows;
                for tile in band.tiles() {
                    assert_eq!(tile.first, end);
                    assert!((1..=TILE).contains(&tile.num_rows));
                    end += tile.num_rows;
                    assert!(![2, 5].contains(&tile.num_rows) || end == num_rows);
                }
                assert_eq!(end, band_end);
            }
            assert_eq!(end, num_rows);
        }
    }

    #[test]
    fn what_a_tile_sees_is_the_union_and_the_intersection_of_what_its_rows_see() {
        let rows = Rows {
            num_rows: 3,
            visible: vec![130, 131, 140],
            hidden: vec![0, 126, 129],
            ..Rows::default()
        };
        assert_eq!(rows.partitions(), 0..2);
        assert_eq!(rows.seen(1, 0), 126..128);
        assert_eq!(rows.seen_by(RowTile { first: 0, num_rows: 2 }, 0), (0..128, 126..128));
        assert_eq!(rows.seen_by(RowTile { first: 0, num_rows: 2 }, 1), (0..3, 0..2));
        assert_eq!(rows.seen_by(rows.whole(), 1), (0..12, 1..2));
        let (any, all) = rows.seen_by(RowTile { first: 2, num_rows: 1 }, 0);
        assert!(any.is_empty() && all.is_empty());
    }
}
