//! Activations quantised to int8, the left side of every integer matrix product.
//!
//! A row is cut into groups of [`GROUP`] values. Each group keeps one f32 scale,
//! `max |x| / 127`. Codes are rounded to nearest even. A group that holds a NaN or an infinity
//! gets a NaN scale, so that a broken row stays visibly broken in every output that reads it.
//!
//! Language models have outlier channels: a few groups of a row hold values many times its root
//! mean square, and the rounding of those groups is most of a product's error. A group whose
//! largest value passes [`RESIDUAL_THRESHOLD`] therefore keeps what rounding lost as a second set
//! of codes at 1/254 of the scale, which products add. On SmolLM2 Q4_1 over 1,024 tokens, with the
//! rounding imitated on float weights and compared with exact activations: without residuals mean
//! KL divergence 2.8e-3 and top-1 agreement 97.0 %; with them 3.9e-4 and 99.2 %, for 19 % of the
//! groups.
//!
//! Rows are laid out in blocks of 16, 8, 4, 2 and 1, the row blocks that kernels compute together:
//! `[num_groups, rows of the block]`, so that a kernel reads straight ahead.

use crate::dispatch::for_each_lanes;
use crate::exp::ROUND;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::matmul::RowPanels;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;

/// Values that share one activation scale.
pub const GROUP: usize = 32;
/// A group gets a residual when its largest square exceeds the row's mean square this many times.
const RESIDUAL_THRESHOLD: f32 = 16.0;
/// Rows up to which the calling thread computes mean squares alone.
const MAX_ROWS_ALONE: usize = 16;
/// Words of four int8 codes in a group.
pub(crate) const GROUP_WORDS: usize = GROUP / 4;
/// Most rows of a block: accumulators and codes then fill the registers of AVX-512.
pub(crate) const MAX_BLOCK_ROWS: usize = 16;

/// The codes of a group, four to a word, the first in the low byte.
pub(crate) type GroupCodes = [i32; GROUP_WORDS];

/// What a group carries beside its codes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GroupScale {
    /// The value of code 1.
    pub(crate) scale: f32,
    /// The value of residual code 1; 0 for a group without a residual.
    pub(crate) residual_scale: f32,
    /// The sum of the group's values, as their codes give them.
    pub(crate) scaled_sum: f32,
    /// What the zero point of the weights adds to the dot products of the group's two halves:
    /// `-zero_point` times the sum of the half's codes.
    pub(crate) half_offsets: [i32; 2],
    /// The same for the residual codes.
    pub(crate) residual_offsets: [i32; 2],
}

impl GroupScale {
    /// Returns what the zero point adds to the dot product of the whole group.
    #[inline(always)]
    pub(crate) fn offset(&self) -> i32 {
        self.half_offsets[0] + self.half_offsets[1]
    }

    /// Returns the same for the residual codes.
    #[inline(always)]
    pub(crate) fn residual_offset(&self) -> i32 {
        self.residual_offsets[0] + self.residual_offsets[1]
    }

    /// Returns whether the group has residual codes.
    #[inline(always)]
    pub(crate) fn has_residual(&self) -> bool {
        self.residual_scale != 0.0
    }
}

/// Rows that kernels compute together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowBlock {
    /// First row.
    pub(crate) first_row: usize,
    /// 16, 8, 4, 2 or 1.
    pub(crate) num_rows: usize,
}

/// Rows of int8 codes with their group scales, `[num_rows, width]`.
///
/// The memory is reused from product to product.
#[derive(Debug, Default)]
pub struct QuantizedRows {
    groups_per_row: usize,
    blocks: Vec<RowBlock>,
    /// Block after block, `[groups_per_row, rows of the block]`.
    codes: Vec<GroupCodes>,
    /// In the order of `codes`; only meaningful where the group has a residual.
    residuals: Vec<GroupCodes>,
    /// Largest square of a group without a residual, `[num_rows]`.
    limits: Vec<f32>,
    /// In the order of `codes`.
    scales: Vec<GroupScale>,
    /// The rows as they are, for float weights.
    pub(crate) panels: RowPanels,
}

impl QuantizedRows {
    /// Replaces the content with the rows of `x`, `[num_rows, width]`, for products with weights
    /// whose codes have the given zero point.
    ///
    /// # Panics
    /// When `width` is not a multiple of [`GROUP`] or `x` is not whole rows.
    pub(crate) fn quantize(
        &mut self,
        isa: Isa,
        pool: &ThreadPool,
        x: &[f32],
        width: usize,
        zero_point: u8,
    ) {
        assert!(width > 0 && width.is_multiple_of(GROUP), "width {width} is whole groups");
        assert!(x.len().is_multiple_of(width), "x is whole rows");
        let groups_per_row = width / GROUP;
        self.groups_per_row = groups_per_row;
        self.set_blocks(x.len() / width);
        let num_groups = x.len() / GROUP;
        if num_groups == 0 {
            return;
        }
        self.set_limits(isa, pool, x, width);
        self.codes.resize(num_groups, GroupCodes::default());
        self.residuals.resize(num_groups, GroupCodes::default());
        self.scales.resize(num_groups, GroupScale::default());
        let (blocks, limits) = (&self.blocks, &self.limits);
        let codes = RowView::new(&mut self.codes, num_groups);
        let residuals = RowView::new(&mut self.residuals, num_groups);
        let scales = RowView::new(&mut self.scales, num_groups);
        let groups = x.as_chunks::<GROUP>().0;
        pool.split(blocks.len() * groups_per_row, |units| {
            for unit in units {
                let (block, g) = (blocks[unit / groups_per_row], unit % groups_per_row);
                let first = block.first_row * groups_per_row;
                let place = first + g * block.num_rows;
                // SAFETY: a unit is one group of one block; `split` gives it to one call, and the
                // pieces of different units do not overlap.
                let codes = unsafe { codes.piece(0, place, block.num_rows) };
                // SAFETY: as above.
                let residuals = unsafe { residuals.piece(0, place, block.num_rows) };
                // SAFETY: as above.
                let scales = unsafe { scales.piece(0, place, block.num_rows) };
                let limits = &limits[block.first_row..];
                let groups = &groups[first + g..];
                let column = Column { groups, groups_per_row, limits, zero_point };
                quantize_column(isa, column, codes, residuals, scales);
            }
        });
    }

    /// Returns the row blocks in order.
    pub(crate) fn blocks(&self) -> &[RowBlock] {
        &self.blocks
    }

    /// Returns the codes of a block, `[num_groups, rows of the block]`.
    pub(crate) fn codes(&self, block: RowBlock) -> &[GroupCodes] {
        &self.codes[block.first_row * self.groups_per_row..][..block.num_rows * self.groups_per_row]
    }

    /// Returns the residual codes of a block, `[num_groups, rows of the block]`.
    pub(crate) fn residuals(&self, block: RowBlock) -> &[GroupCodes] {
        &self.residuals[block.first_row * self.groups_per_row..]
            [..block.num_rows * self.groups_per_row]
    }

    /// Returns the scales of a block, `[num_groups, rows of the block]`.
    pub(crate) fn scales(&self, block: RowBlock) -> &[GroupScale] {
        &self.scales[block.first_row * self.groups_per_row..]
            [..block.num_rows * self.groups_per_row]
    }

    fn set_limits(&mut self, isa: Isa, pool: &ThreadPool, x: &[f32], width: usize) {
        let num_rows = x.len() / width;
        self.limits.resize(num_rows, 0.0);
        if num_rows <= MAX_ROWS_ALONE {
            residual_limits(isa, x, width, &mut self.limits);
            return;
        }
        let limits = RowView::new(&mut self.limits, num_rows);
        pool.split(num_rows, |rows| {
            // SAFETY: `split` gives each row to one call only.
            let limits = unsafe { limits.piece(0, rows.start, rows.len()) };
            residual_limits(isa, &x[rows.start * width..rows.end * width], width, limits);
        });
    }

    fn set_blocks(&mut self, num_rows: usize) {
        self.blocks.clear();
        let mut first_row = 0;
        let mut size = MAX_BLOCK_ROWS;
        while first_row < num_rows {
            if num_rows - first_row < size {
                size /= 2;
                continue;
            }
            self.blocks.push(RowBlock { first_row, num_rows: size });
            first_row += size;
        }
    }
}

/// One group of every row of a block.
#[derive(Clone, Copy)]
struct Column<'a> {
    /// The first row's group, and all that follow it.
    groups: &'a [[f32; GROUP]],
    /// Distance to the next row's.
    groups_per_row: usize,
    /// Largest square of a group without a residual, for each row of the block.
    limits: &'a [f32],
    zero_point: u8,
}

for_each_lanes! {
    /// Writes the largest square of a group without a residual, for each row.
    fn residual_limits(x: &[f32], width: usize, limits: &mut [f32]) = residual_limits_body
}

#[inline(always)]
fn residual_limits_body<V: Lanes>(proof: V::Proof, x: &[f32], width: usize, limits: &mut [f32]) {
    for (row, limit) in x.chunks_exact(width).zip(limits) {
        let mut sum = V::splat(proof, 0.0);
        for lanes in row.as_chunks::<LANES>().0 {
            let lanes = V::load(proof, lanes);
            sum = lanes.mul_add(lanes, sum);
        }
        #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
        let mean = sum.sum_lanes() / width as f32;
        *limit = mean * RESIDUAL_THRESHOLD;
    }
}

for_each_lanes! {
    /// Quantises groups; reads 128 bytes and writes 60 for each, 92 for one with a residual.
    fn quantize_column(column: Column<'_>, codes: &mut [GroupCodes], residuals: &mut [GroupCodes], scales: &mut [GroupScale]) = quantize_column_body
}

#[inline(always)]
fn quantize_column_body<V: Lanes>(
    proof: V::Proof,
    column: Column<'_>,
    codes: &mut [GroupCodes],
    residuals: &mut [GroupCodes],
    scales: &mut [GroupScale],
) {
    let zero_point = i32::from(column.zero_point);
    let rows = column.groups.iter().step_by(column.groups_per_row).zip(column.limits);
    for (((x, limit), codes), (residual, scale)) in
        rows.zip(codes).zip(residuals.iter_mut().zip(scales))
    {
        *scale = quantize_group::<V>(proof, x, *limit, zero_point, codes, residual);
    }
}

#[inline(always)]
fn quantize_group<V: Lanes>(
    proof: V::Proof,
    x: &[f32; GROUP],
    limit: f32,
    zero_point: i32,
    codes: &mut GroupCodes,
    residual: &mut GroupCodes,
) -> GroupScale {
    let halves = x.as_chunks::<LANES>().0;
    let x = [V::load(proof, &halves[0]), V::load(proof, &halves[1])];
    let largest = x[0].abs().max(x[1].abs()).max_lane();
    // `x * 0` is NaN exactly for NaN and infinities, which the maximum may drop.
    let zero = V::splat(proof, 0.0);
    let poison = x[0].mul_add(zero, x[1].mul(zero)).sum_lanes();
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    // A subnormal largest value makes the inverse infinite; such a group is zero for all purposes.
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let scale = largest / 127.0 + poison;
    let (rounded, sums) = round_codes(proof, x, inverse, codes);
    let mut group = GroupScale {
        scale,
        residual_scale: 0.0,
        scaled_sum: scale * (sums[0] + sums[1]),
        half_offsets: offsets(sums, zero_point),
        residual_offsets: [0; 2],
    };
    if largest * largest > limit && inverse > 0.0 {
        // What rounding lost is at most half of `scale`, so its codes stay within 127.
        let negative = V::splat(proof, -scale);
        let lost = [rounded[0].mul_add(negative, x[0]), rounded[1].mul_add(negative, x[1])];
        let (_, sums) = round_codes(proof, lost, inverse * 254.0, residual);
        group.residual_scale = scale / 254.0;
        group.scaled_sum = (sums[0] + sums[1]).mul_add(group.residual_scale, group.scaled_sum);
        group.residual_offsets = offsets(sums, zero_point);
    }
    group
}

/// Writes `x * inverse`, rounded, as codes; returns the rounded values and the sums of the halves.
#[inline(always)]
fn round_codes<V: Lanes>(
    proof: V::Proof,
    x: [V; 2],
    inverse: f32,
    codes: &mut GroupCodes,
) -> ([V; 2], [f32; 2]) {
    // Adding this leaves a small number, rounded to nearest even, in the low bits.
    let round = V::splat(proof, ROUND);
    let inverse = V::splat(proof, inverse);
    let shifted = [x[0].mul_add(inverse, round), x[1].mul_add(inverse, round)];
    let (low_words, high_words) = codes.split_at_mut(GROUP_WORDS / 2);
    put_words(low_words, &shifted[0].low_bytes());
    put_words(high_words, &shifted[1].low_bytes());
    let rounded = [shifted[0].sub(round), shifted[1].sub(round)];
    // Sums of at most 16 integers up to 127: exact in f32.
    (rounded, [rounded[0].sum_lanes(), rounded[1].sum_lanes()])
}

#[inline(always)]
fn offsets(sums: [f32; 2], zero_point: i32) -> [i32; 2] {
    #[expect(clippy::cast_possible_truncation, reason = "a small integer; NaN becomes 0")]
    [-zero_point * sums[0] as i32, -zero_point * sums[1] as i32]
}

#[inline(always)]
fn put_words(words: &mut [i32], codes: &[i8; LANES]) {
    for (word, four) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
        *word = i32::from_le_bytes([
            four[0].cast_unsigned(),
            four[1].cast_unsigned(),
            four[2].cast_unsigned(),
            four[3].cast_unsigned(),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn quantized(isa: Isa, x: &[f32], width: usize) -> QuantizedRows {
        let pool = ThreadPool::new(NonZeroUsize::new(2).unwrap());
        let mut rows = QuantizedRows::default();
        rows.quantize(isa, &pool, x, width, 8);
        rows
    }

    #[test]
    fn codes_times_scale_are_within_half_a_step_on_every_isa() {
        let width = 96;
        let x: Vec<f32> =
            (0..21 * width).map(|i| (i as f32 * 0.7).sin() * (i % 41) as f32).collect();
        for isa in Isa::all_present() {
            let rows = quantized(isa, &x, width);
            let sizes: Vec<_> = rows.blocks().iter().map(|block| block.num_rows).collect();
            assert_eq!(sizes, [16, 4, 1]);
            for &block in rows.blocks() {
                for (i, codes) in rows.codes(block).iter().enumerate() {
                    let (g, row) = (i / block.num_rows, block.first_row + i % block.num_rows);
                    let group = &x[row * width + g * GROUP..][..GROUP];
                    check_group(codes, rows.scales(block)[i], group);
                }
            }
        }
    }

    fn check_group(codes: &GroupCodes, group: GroupScale, x: &[f32]) {
        let codes = unpacked(codes);
        for (&code, &value) in codes.iter().zip(x) {
            assert!((code as f32 * group.scale - value).abs() <= group.scale * 0.5001);
        }
        let sums = [codes[..16].iter().sum::<i32>(), codes[16..].iter().sum::<i32>()];
        assert_eq!(group.half_offsets, sums.map(|sum| -8 * sum));
        if !group.has_residual() {
            assert_eq!(group.residual_offsets, [0; 2]);
            assert!((group.scaled_sum - group.scale * (sums[0] + sums[1]) as f32).abs() < 1e-5);
        }
    }

    fn unpacked(codes: &GroupCodes) -> Vec<i32> {
        let bytes = codes.iter().flat_map(|word| word.to_le_bytes());
        bytes.map(|code| i32::from(code.cast_signed())).collect()
    }

    #[test]
    fn a_group_with_an_outlier_keeps_what_rounding_lost() {
        let width = 320;
        let mut x: Vec<f32> = (0..width).map(|i| (i as f32 * 0.7).sin()).collect();
        x[40] = -37.5;
        for isa in Isa::all_present() {
            let rows = quantized(isa, &x, width);
            let block = rows.blocks()[0];
            for (g, group) in rows.scales(block).iter().enumerate() {
                assert_eq!(group.has_residual(), g == 1, "group {g}");
            }
            let group = rows.scales(block)[1];
            let codes = unpacked(&rows.codes(block)[1]);
            let residuals = unpacked(&rows.residuals(block)[1]);
            let mut sum = 0.0;
            for (i, value) in x[32..64].iter().enumerate() {
                let coarse = codes[i] as f32 * group.scale;
                let fine = residuals[i] as f32 * group.residual_scale;
                assert!((coarse + fine - value).abs() <= group.residual_scale * 0.51);
                sum += coarse + fine;
            }
            assert!((group.scaled_sum - sum).abs() < 1e-4);
            let sums = [residuals[..16].iter().sum::<i32>(), residuals[16..].iter().sum::<i32>()];
            assert_eq!(group.residual_offsets, sums.map(|sum| -8 * sum));
        }
    }

    #[test]
    fn groups_of_zeros_subnormals_and_broken_values_are_told_apart() {
        let scale = |isa, x: &[f32; 64], g: usize| {
            let rows = quantized(isa, x, 64);
            rows.scales(rows.blocks()[0])[g]
        };
        for isa in Isa::all_present() {
            assert_eq!(scale(isa, &[0.0; 64], 1), GroupScale::default());
            let mut tiny = [0.0; 64];
            tiny[3] = f32::from_bits(1);
            assert!(scale(isa, &tiny, 0).scale.is_finite());
            for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = [1.0; 64];
                x[40] = broken;
                assert!(scale(isa, &x, 0).scale.is_finite());
                assert!(scale(isa, &x, 1).scale.is_nan());
            }
        }
    }
}
