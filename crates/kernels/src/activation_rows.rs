//! Activations quantised to int8, the left side of every integer matrix product.
//!
//! A row is cut into groups of [`GROUP`] values. Each group keeps one f32 scale,
//! `max |x| / 127`. Codes are rounded to nearest even. A group that holds a NaN or an infinity
//! gets a NaN scale, so that a broken row stays visibly broken in every output that reads it.
//!
//! Rows are laid out in blocks of 16, 8, 4, 2 and 1, the row blocks that kernels compute together:
//! `[num_groups, rows of the block]`, so that a kernel reads straight ahead.

use crate::dispatch::for_each_lanes;
use crate::elementwise::exp_constants;
use crate::isa::Isa;
use crate::lanes::Lanes;
use crate::packed_matrix::LANES;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;

/// Values that share one activation scale.
pub const GROUP: usize = 32;
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
    /// `scale` times the sum of the group's codes.
    pub(crate) scaled_sum: f32,
    /// What the zero point of the weights adds to the dot products of the group's two halves:
    /// `-zero_point` times the sum of the half's codes.
    pub(crate) half_offsets: [i32; 2],
    /// The two together.
    pub(crate) offset: i32,
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
    /// In the order of `codes`.
    scales: Vec<GroupScale>,
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
        self.codes.resize(num_groups, GroupCodes::default());
        self.scales.resize(num_groups, GroupScale::default());
        let blocks = &self.blocks;
        let codes = RowView::new(&mut self.codes, num_groups);
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
                let scales = unsafe { scales.piece(0, place, block.num_rows) };
                let column = Column { groups: &groups[first + g..], groups_per_row, zero_point };
                quantize_column(isa, column, codes, scales);
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

    /// Returns the scales of a block, `[num_groups, rows of the block]`.
    pub(crate) fn scales(&self, block: RowBlock) -> &[GroupScale] {
        &self.scales[block.first_row * self.groups_per_row..]
            [..block.num_rows * self.groups_per_row]
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
    zero_point: u8,
}

for_each_lanes! {
    /// Quantises groups; reads 128 bytes and writes 52 for each.
    fn quantize_column(column: Column<'_>, codes: &mut [GroupCodes], scales: &mut [GroupScale]) = quantize_column_body
}

#[inline(always)]
fn quantize_column_body<V: Lanes>(
    proof: V::Proof,
    column: Column<'_>,
    codes: &mut [GroupCodes],
    scales: &mut [GroupScale],
) {
    let zero_point = i32::from(column.zero_point);
    let rows = column.groups.iter().step_by(column.groups_per_row);
    for ((x, codes), scale) in rows.zip(codes).zip(scales) {
        *scale = quantize_group::<V>(proof, x, zero_point, codes);
    }
}

#[inline(always)]
fn quantize_group<V: Lanes>(
    proof: V::Proof,
    x: &[f32; GROUP],
    zero_point: i32,
    words: &mut GroupCodes,
) -> GroupScale {
    // Adding this leaves a small number, rounded to nearest even, in the low bits.
    let round = V::splat(proof, exp_constants::ROUND);
    let halves = x.as_chunks::<LANES>().0;
    let (low, high) = (V::load(proof, &halves[0]), V::load(proof, &halves[1]));
    let largest = low.abs().max(high.abs()).max_lane();
    // `x * 0` is NaN exactly for NaN and infinities, which the maximum may drop.
    let zero = V::splat(proof, 0.0);
    let poison = low.mul_add(zero, high.mul(zero)).sum_lanes();
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    // A subnormal largest value makes the inverse infinite; such a group is zero for all purposes.
    let inverse = V::splat(proof, if inverse.is_finite() { inverse } else { 0.0 });
    let (low, high) = (low.mul_add(inverse, round), high.mul_add(inverse, round));
    let (low_words, high_words) = words.split_at_mut(GROUP_WORDS / 2);
    put_words(low_words, &low.low_bytes());
    put_words(high_words, &high.low_bytes());
    // Sums of at most 16 integers up to 127: exact in f32.
    let sums = [low.sub(round).sum_lanes(), high.sub(round).sum_lanes()];
    let scale = largest / 127.0 + poison;
    #[expect(clippy::cast_possible_truncation, reason = "a small integer; NaN becomes 0")]
    let half_offsets = [-zero_point * sums[0] as i32, -zero_point * sums[1] as i32];
    GroupScale {
        scale,
        scaled_sum: scale * (sums[0] + sums[1]),
        half_offsets,
        offset: half_offsets[0] + half_offsets[1],
    }
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
        let codes: Vec<i32> = codes
            .iter()
            .flat_map(|word| word.to_le_bytes().map(|code| i32::from(code.cast_signed())))
            .collect();
        for (&code, &value) in codes.iter().zip(x) {
            assert!((code as f32 * group.scale - value).abs() <= group.scale * 0.5001);
        }
        let sums = [codes[..16].iter().sum::<i32>(), codes[16..].iter().sum::<i32>()];
        assert_eq!(group.half_offsets, sums.map(|sum| -8 * sum));
        assert_eq!(group.offset, -8 * (sums[0] + sums[1]));
        assert!((group.scaled_sum - group.scale * (sums[0] + sums[1]) as f32).abs() < 1e-6);
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
