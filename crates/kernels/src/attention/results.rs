//! What rows got from a part of their context, and merging it with what they got before.
//!
//! Merging rescales both sides to the larger maximum (Dao et al., FlashAttention-2, section 3.1).
//! Partitions are merged in their order, whoever computed them. Merging costs two exponentials and
//! `2 * head_dim` multiplications per row.

use super::Step;
use super::rows::{BAND, Band, RowRange, bands};
use crate::dispatch::for_each_lanes;
use crate::exp::exp2_lanes;
use crate::isa::Isa;
use crate::kv_element::KvElement;
use crate::kv_rotation::{growth, rotate_head_back};
use crate::lanes::{LANES, Lanes};
use crate::row_view::RowView;

/// Results of the rows of a band, their numbers rounded up to whole tiles and lanes.
#[derive(Debug)]
pub(super) struct RowResults<'a> {
    /// Largest score of each row, a multiple of sixteen of them; minus infinity where nothing was
    /// seen.
    pub(super) maximum: &'a mut [f32],
    /// Sum of the weights of each row; zero where nothing was seen, at least about one otherwise.
    pub(super) sum: &'a mut [f32],
    /// Weighted sum of values, `[num_rows + 1, head_dim]`.
    pub(super) values: &'a mut [f32],
}

impl<'a> RowResults<'a> {
    /// Returns how many numbers the results of so many rows take.
    pub(super) fn num_floats(num_rows: usize, head_dim: usize) -> usize {
        bands(num_rows).map(|band| Self::num_band_floats(band.num_rows, head_dim)).sum()
    }

    fn num_band_floats(num_rows: usize, head_dim: usize) -> usize {
        2 * num_rows.next_multiple_of(LANES) + (num_rows + 1) * head_dim
    }

    /// Returns the results of a band among those of all rows.
    pub(super) fn of_band(floats: &'a mut [f32], band: Band, head_dim: usize) -> Self {
        let start = band.first / BAND * Self::num_band_floats(BAND, head_dim);
        Self::within(&mut floats[start..], band.num_rows, head_dim)
    }

    /// Reads `floats` as results of a band of `num_rows` rows.
    pub(super) fn within(floats: &'a mut [f32], num_rows: usize, head_dim: usize) -> Self {
        let floats = &mut floats[..Self::num_band_floats(num_rows, head_dim)];
        let num_lanes = num_rows.next_multiple_of(LANES);
        let (maximum, rest) = floats.split_at_mut(num_lanes);
        let (sum, values) = rest.split_at_mut(num_lanes);
        Self { maximum, sum, values }
    }

    /// Makes these the results of rows that saw nothing yet.
    pub(super) fn clear(&mut self) {
        self.maximum.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }

    /// Writes the attention of each row to its place in the output.
    ///
    /// # Safety
    /// While it runs, nobody else may hold those places.
    pub(super) unsafe fn write(
        &mut self,
        step: &Step<'_>,
        range: &RowRange,
        is_rotated: Rotated,
        out: &RowView<'_, f32>,
    ) {
        let head_dim = step.shape.head_dim;
        for (r, values) in self.values.chunks_exact_mut(head_dim).take(range.rows.len()).enumerate()
        {
            if is_rotated == Rotated::Yes {
                let factor = 1.0 / growth(head_dim);
                rotate_head_back(step.isa, values);
                values.iter_mut().for_each(|value| *value *= factor);
            }
            let (token, head) = range.place(step, r);
            // SAFETY: the caller's promise covers this row of the range.
            let out = unsafe { out.piece(token, head * head_dim, head_dim) };
            for (out, value) in out.iter_mut().zip(values) {
                *out = *value / self.sum[r];
            }
        }
    }
}

/// Whether values are those of rotated heads (see [`crate::kv_rotation`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rotated {
    Yes,
    No,
}

impl Rotated {
    /// Returns whether values stored as `T` are rotated.
    pub(super) fn of<T: KvElement>() -> Self {
        if T::IS_CODE { Self::Yes } else { Self::No }
    }
}

/// Adds the results of the next partition to those of the ones before it.
pub(super) fn merge(
    isa: Isa,
    total: &mut RowResults<'_>,
    partition: &RowResults<'_>,
    num_rows: usize,
    head_dim: usize,
) {
    merge_rows(isa, total, partition, num_rows, head_dim);
}

for_each_lanes! {
    fn merge_rows(total: &mut RowResults<'_>, partition: &RowResults<'_>, num_rows: usize, head_dim: usize) = merge_body
}

#[inline(always)]
fn merge_body<V: Lanes>(
    proof: V::Proof,
    total: &mut RowResults<'_>,
    partition: &RowResults<'_>,
    num_rows: usize,
    head_dim: usize,
) {
    for first in (0..num_rows).step_by(LANES) {
        let old = V::load(proof, &total.maximum.as_chunks().0[first / LANES]);
        let new = V::load(proof, &partition.maximum.as_chunks().0[first / LANES]);
        let larger = old.max(new);
        let (mut maximum, mut old_factors, mut new_factors) =
            ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        larger.store(&mut maximum);
        // Before the first partition the old maximum is minus infinity, and what it multiplies is
        // zero.
        exp2_lanes(proof, old.sub(larger)).store(&mut old_factors);
        exp2_lanes(proof, new.sub(larger)).store(&mut new_factors);
        for r in first..num_rows.min(first + LANES) {
            if partition.sum[r] == 0.0 {
                continue;
            }
            let (old_factor, new_factor) = (old_factors[r % LANES], new_factors[r % LANES]);
            total.maximum[r] = maximum[r % LANES];
            total.sum[r] = total.sum[r].mul_add(old_factor, partition.sum[r] * new_factor);
            let old_factor = V::splat(proof, old_factor);
            let new_factor = V::splat(proof, new_factor);
            let row = r * head_dim..(r + 1) * head_dim;
            let values = partition.values[row.clone()].as_chunks().0;
            for (sum, value) in total.values[row].as_chunks_mut().0.iter_mut().zip(values) {
                let value = V::load(proof, value).mul(new_factor);
                V::load(proof, sum).mul_add(old_factor, value).store(sum);
            }
        }
    }
}
