//! Activations quantised to int8, the left side of every integer matrix product.
//!
//! A row is cut into groups of [`GROUP`] values. Each group keeps one f32 scale,
//! `max |x| / 127`. Codes are rounded to nearest even. A row that holds a NaN, an infinity or
//! values whose squares overflow gets NaN scales, so that it stays visibly broken in every output.
//!
//! Language models have outlier channels: a few groups of a row hold values many times its root
//! mean square, and the rounding of their neighbours is most of a product's error. In a group
//! whose largest value passes [`OUTLIER_THRESHOLD`] the scale therefore comes from the values
//! outside the word (four values) of the largest one, and that word gets wider codes,
//! `256 * high + low`. Products add the high bytes' share, which costs one word of eight. On
//! activations of SmolLM2 (128 tokens, all products) the mean square error relative to a row's
//! mean square is 7.8e-5 without wide words and 2.7e-5 with them, for 17 % of the groups.
//!
//! Four rows lie together, `[num_quads, num_groups, 4]`, so that a kernel that computes them
//! reads straight ahead; rows that are missing from the last four are zeros.

use crate::dispatch::for_each_lanes;
use crate::exp::ROUND;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
#[cfg(target_arch = "x86_64")]
use crate::matmul::PanelActivations;
use crate::matmul::RowPanels;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;

/// Values that share one activation scale.
pub const GROUP: usize = 32;
/// A group has an outlier when its largest square exceeds the row's mean square this many times.
const OUTLIER_THRESHOLD: f32 = 16.0;
/// Groups up to which the calling thread quantises alone: waking others costs about as much.
const MAX_GROUPS_ALONE: usize = 256;
/// Words of four int8 codes in a group.
pub(crate) const GROUP_WORDS: usize = GROUP / 4;
/// Most rows of a block: accumulators and codes then fill the registers of AVX-512.
pub(crate) const MAX_BLOCK_ROWS: usize = 16;
/// Rows that lie together.
pub(crate) const QUAD: usize = 4;

/// The codes of a group, four to a word, the first in the low byte.
pub(crate) type GroupCodes = [i32; GROUP_WORDS];

/// The high bytes of a group's codes in four rows; only meaningful for words that
/// [`QuadGroup::high_words`] names.
pub(crate) type HighCodes = [GroupCodes; QUAD];

/// One group of four rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct QuadGroup {
    /// The low bytes of the codes.
    pub(crate) codes: [GroupCodes; QUAD],
    /// The value of code 1.
    pub(crate) scales: [f32; QUAD],
    /// What the zero point of the weights adds to the dot products of the parts that
    /// [`PartSums`] names: `-zero_point` times the sum of the part's codes.
    pub(crate) offsets: [[i32; QUAD]; 2],
    /// The sums of the parts' values, as their codes give them.
    pub(crate) sums: [[f32; QUAD]; 2],
    /// Bit `i` is set where word `i` has a high byte in any of the rows.
    pub(crate) high_words: u32,
}

/// Which sums of a group's codes a product needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartSums {
    /// The first of two is that of the whole group, the second 0.
    Group,
    /// One for each half of the group.
    Halves,
}

/// What the weights of a product ask of its activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightOffsets {
    /// The code that stands for 0.
    pub(crate) zero_point: u8,
    /// The sums that it multiplies.
    pub(crate) parts: PartSums,
}

/// Up to [`MAX_BLOCK_ROWS`] rows that kernels compute together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowBlock<'a> {
    /// Rows, from 1 on.
    pub(crate) num_rows: usize,
    groups_per_row: usize,
    quads: &'a [QuadGroup],
    high: &'a [HighCodes],
}

impl<'a> RowBlock<'a> {
    /// Returns the groups of four rows with their high bytes, `[num_groups]` each.
    #[inline(always)]
    pub(crate) fn quad(self, index: usize) -> (&'a [QuadGroup], &'a [HighCodes]) {
        let groups = index * self.groups_per_row..(index + 1) * self.groups_per_row;
        (&self.quads[groups.clone()], &self.high[groups])
    }
}

/// Rows of quantised values, `[num_rows, width]`.
///
/// The memory is reused from product to product.
#[derive(Debug, Default)]
pub struct QuantizedRows {
    num_rows: usize,
    groups_per_row: usize,
    /// `[num_quads, groups_per_row]`
    quads: Vec<QuadGroup>,
    /// In the order of `quads`.
    high: Vec<HighCodes>,
    /// The rows as they are, for float weights.
    pub(crate) panels: RowPanels,
    /// The rows quantised for panels of tiles.
    #[cfg(target_arch = "x86_64")]
    pub(crate) panel_activations: PanelActivations,
}

impl QuantizedRows {
    /// Replaces the content with the rows of `x`, `[num_rows, width]`, for products with weights
    /// of the given offsets.
    ///
    /// # Panics
    /// When `width` is not a multiple of [`GROUP`] or `x` is not whole rows.
    pub(crate) fn quantize(
        &mut self,
        isa: Isa,
        pool: &ThreadPool,
        x: &[f32],
        width: usize,
        offsets: WeightOffsets,
    ) {
        assert!(width > 0 && width.is_multiple_of(GROUP), "width {width} is whole groups");
        assert!(x.len().is_multiple_of(width), "x is whole rows");
        let groups_per_row = width / GROUP;
        self.groups_per_row = groups_per_row;
        self.num_rows = x.len() / width;
        let num_quads = self.num_rows.div_ceil(QUAD);
        self.quads.resize(num_quads * groups_per_row, QuadGroup::default());
        self.high.resize(num_quads * groups_per_row, HighCodes::default());
        if num_quads == 0 {
            return;
        }
        let quads = RowView::new(&mut self.quads, groups_per_row);
        let high = RowView::new(&mut self.high, groups_per_row);
        let quantize = |index: usize| {
            let rows = index * QUAD * width..x.len().min((index + 1) * QUAD * width);
            // SAFETY: each row of the view is asked for once, by the call for its four rows.
            let quads = unsafe { quads.piece(index, 0, groups_per_row) };
            // SAFETY: as above.
            let high = unsafe { high.piece(index, 0, groups_per_row) };
            quantize_quad(isa, &x[rows], offsets, quads, high);
        };
        if x.len() / GROUP <= MAX_GROUPS_ALONE {
            (0..num_quads).for_each(quantize);
        } else {
            pool.split(num_quads, |indices| indices.for_each(&quantize));
        }
    }

    /// Returns the number of rows.
    pub(crate) fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Returns the rows from `first_row` on, up to [`MAX_BLOCK_ROWS`] of them.
    ///
    /// # Panics
    /// When `first_row` is not a multiple of [`QUAD`] below the number of rows.
    pub(crate) fn block(&self, first_row: usize) -> RowBlock<'_> {
        assert!(first_row.is_multiple_of(QUAD) && first_row < self.num_rows);
        let num_rows = MAX_BLOCK_ROWS.min(self.num_rows - first_row);
        let start = first_row / QUAD * self.groups_per_row;
        let len = num_rows.div_ceil(QUAD) * self.groups_per_row;
        RowBlock {
            num_rows,
            groups_per_row: self.groups_per_row,
            quads: &self.quads[start..][..len],
            high: &self.high[start..][..len],
        }
    }
}

for_each_lanes! {
    /// Quantises up to four rows; reads 128 bytes and writes 52 for each group of a row, 84 where
    /// one of the four has wide words.
    fn quantize_quad(x: &[f32], offsets: WeightOffsets, quads: &mut [QuadGroup], high: &mut [HighCodes]) = quantize_quad_body
}

#[inline(always)]
fn quantize_quad_body<V: Lanes>(
    proof: V::Proof,
    x: &[f32],
    offsets: WeightOffsets,
    quads: &mut [QuadGroup],
    high: &mut [HighCodes],
) {
    if x.len() == quads.len() * GROUP {
        quantize_rows::<V, 1>(proof, x, offsets, quads, high);
    } else {
        quantize_rows::<V, QUAD>(proof, x, offsets, quads, high);
    }
}

/// Quantises the first `ROWS` of four rows; those that `x` lacks are zeros.
#[inline(always)]
fn quantize_rows<V: Lanes, const ROWS: usize>(
    proof: V::Proof,
    x: &[f32],
    offsets: WeightOffsets,
    quads: &mut [QuadGroup],
    high: &mut [HighCodes],
) {
    let mut rows: [&[[f32; GROUP]]; ROWS] = [&[]; ROWS];
    let mut limits = [0.0; ROWS];
    for (r, row) in x.chunks_exact(quads.len() * GROUP).enumerate().take(ROWS) {
        rows[r] = row.as_chunks().0;
        limits[r] = outlier_limit::<V>(proof, row);
    }
    for (g, (quad, high)) in quads.iter_mut().zip(high).enumerate() {
        let mut groups = [&[0.0; GROUP]; ROWS];
        for (group, row) in groups.iter_mut().zip(rows) {
            *group = row.get(g).unwrap_or(*group);
        }
        if ROWS < QUAD {
            *quad = QuadGroup::default();
        }
        quantize_group::<V, ROWS>(proof, groups, limits, offsets, quad, high);
    }
}

/// Returns the largest square of a group of the row without an outlier; not finite where a value
/// is not, or its square.
#[inline(always)]
pub(crate) fn outlier_limit<V: Lanes>(proof: V::Proof, row: &[f32]) -> f32 {
    let mut sum = V::splat(proof, 0.0);
    for lanes in row.as_chunks::<LANES>().0 {
        let lanes = V::load(proof, lanes);
        sum = lanes.mul_add(lanes, sum);
    }
    #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
    let mean = sum.sum_lanes() / row.len() as f32;
    mean * OUTLIER_THRESHOLD
}

/// Quantises a group of `ROWS` rows, step by step for all of them, so that the processor has
/// independent work while it waits for a reduction.
#[inline(always)]
pub(crate) fn quantize_group<V: Lanes, const ROWS: usize>(
    proof: V::Proof,
    groups: [&[f32; GROUP]; ROWS],
    limits: [f32; ROWS],
    offsets: WeightOffsets,
    quad: &mut QuadGroup,
    high: &mut HighCodes,
) {
    let mut largest = [0.0; ROWS];
    for r in 0..ROWS {
        let x = load_group::<V>(proof, groups[r]);
        largest[r] = x[0].abs().max(x[1].abs()).max_lane();
    }
    let mut reach = largest;
    let mut outliers = [None; ROWS];
    for r in 0..ROWS {
        if largest[r] * largest[r] > limits[r] {
            let (word, rest) = outlier_word(load_group::<V>(proof, groups[r]));
            outliers[r] = Some(word);
            reach[r] = rest.max(largest[r] * (1.0 / 256.0));
        }
    }
    quad.high_words = 0;
    let mut sums = [[0.0; ROWS]; 2];
    for r in 0..ROWS {
        // A subnormal reach makes the inverse infinite; such a group is zero for all purposes.
        let inverse = 127.0 / reach[r];
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        let x = load_group::<V>(proof, groups[r]);
        let mut rounded = round(proof, x, V::splat(proof, inverse));
        if let Some(word) = outliers[r] {
            if quad.high_words == 0 {
                *high = HighCodes::default();
            }
            quad.high_words |= 1 << word;
            rounded = split_codes(proof, rounded, &mut quad.codes[r], &mut high[r]);
        } else {
            put_codes(proof, rounded, &mut quad.codes[r]);
        }
        // Sums of at most 32 integers below 2^15: exact in f32.
        match offsets.parts {
            PartSums::Group => sums[0][r] = rounded[0].add(rounded[1]).sum_lanes(),
            PartSums::Halves => {
                sums[0][r] = rounded[0].sum_lanes();
                sums[1][r] = rounded[1].sum_lanes();
            }
        }
    }
    for r in 0..ROWS {
        quad.scales[r] = if limits[r].is_finite() { reach[r] / 127.0 } else { f32::NAN };
        for (part, sums) in sums.iter().enumerate() {
            #[expect(clippy::cast_possible_truncation, reason = "a small integer; NaN becomes 0")]
            let codes = sums[r] as i32;
            quad.offsets[part][r] = -i32::from(offsets.zero_point) * codes;
            quad.sums[part][r] = quad.scales[r] * sums[r];
        }
    }
}

#[inline(always)]
fn load_group<V: Lanes>(proof: V::Proof, x: &[f32; GROUP]) -> [V; 2] {
    let halves = x.as_chunks::<LANES>().0;
    [V::load(proof, &halves[0]), V::load(proof, &halves[1])]
}

/// Returns the word of the largest value, and the largest value of the other words.
#[inline(always)]
fn outlier_word<V: Lanes>(x: [V; 2]) -> (usize, f32) {
    let mut lanes = [[0.0; LANES]; 2];
    x[0].abs().store(&mut lanes[0]);
    x[1].abs().store(&mut lanes[1]);
    let (mut word, mut largest, mut rest) = (0, 0.0_f32, 0.0_f32);
    for (i, values) in lanes.as_flattened().as_chunks::<4>().0.iter().enumerate() {
        let value = values[0].max(values[1]).max(values[2].max(values[3]));
        if value > largest {
            (word, rest, largest) = (i, largest, value);
        } else {
            rest = rest.max(value);
        }
    }
    (word, rest)
}

/// Returns `x * inverse`, rounded.
#[inline(always)]
fn round<V: Lanes>(proof: V::Proof, x: [V; 2], inverse: V) -> [V; 2] {
    let shift = V::splat(proof, ROUND);
    [x[0].mul_add(inverse, shift).sub(shift), x[1].mul_add(inverse, shift).sub(shift)]
}

/// Writes integers of up to 15 bits and a sign as `256 * high + low`; returns what was written.
///
/// Low bytes stay within ±127, which moves one integer in 256 by one.
#[inline(always)]
fn split_codes<V: Lanes>(
    proof: V::Proof,
    codes: [V; 2],
    low: &mut GroupCodes,
    high: &mut GroupCodes,
) -> [V; 2] {
    let highs = round(proof, codes, V::splat(proof, 1.0 / 256.0));
    let byte = V::splat(proof, 256.0);
    let lows = [low_codes(proof, codes[0], highs[0]), low_codes(proof, codes[1], highs[1])];
    put_codes(proof, highs, high);
    put_codes(proof, lows, low);
    [highs[0].mul_add(byte, lows[0]), highs[1].mul_add(byte, lows[1])]
}

/// Returns `codes - 256 * highs`, within ±127.
#[inline(always)]
fn low_codes<V: Lanes>(proof: V::Proof, codes: V, highs: V) -> V {
    let low = highs.mul_add(V::splat(proof, -256.0), codes);
    let least = V::splat(proof, -127.0);
    let negative = V::splat(proof, -1.0);
    low.mul(negative).max(least).mul(negative).max(least)
}

/// Writes integers of seven bits and a sign.
#[inline(always)]
fn put_codes<V: Lanes>(proof: V::Proof, codes: [V; 2], words: &mut GroupCodes) {
    // Adding this leaves a small integer in the low bits.
    let shift = V::splat(proof, ROUND);
    let (low_words, high_words) = words.split_at_mut(GROUP_WORDS / 2);
    put_words(low_words, &codes[0].add(shift).low_bytes());
    put_words(high_words, &codes[1].add(shift).low_bytes());
}

#[inline(always)]
fn put_words(words: &mut [i32], codes: &[i8; LANES]) {
    for (word, four) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
        *word = i32::from_le_bytes(four.map(i8::cast_unsigned));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    const OFFSETS: WeightOffsets = WeightOffsets { zero_point: 8, parts: PartSums::Halves };

    fn quantized(isa: Isa, x: &[f32], width: usize, offsets: WeightOffsets) -> QuantizedRows {
        let pool = ThreadPool::new(NonZeroUsize::new(2).unwrap());
        let mut rows = QuantizedRows::default();
        rows.quantize(isa, &pool, x, width, offsets);
        rows
    }

    /// The codes of a group of a row, with their high bytes.
    fn codes(rows: &QuantizedRows, row: usize, g: usize) -> ([i32; GROUP], QuadGroup) {
        let (quads, high) = rows.block(row / QUAD * QUAD).quad(0);
        let byte = |words: &GroupCodes, i: usize| {
            i32::from(words[i / 4].to_le_bytes()[i % 4].cast_signed())
        };
        let r = row % QUAD;
        let code = |i: usize| {
            let is_wide = quads[g].high_words & (1 << (i / 4)) != 0;
            let high = if is_wide { byte(&high[g][r], i) } else { 0 };
            byte(&quads[g].codes[r], i) + 256 * high
        };
        (std::array::from_fn(code), quads[g])
    }

    #[test]
    fn codes_times_scale_are_within_half_a_step_on_every_isa() {
        let width = 96;
        let x: Vec<f32> =
            (0..21 * width).map(|i| (i as f32 * 0.7).sin() * (i % 41) as f32).collect();
        for isa in Isa::all_present() {
            let rows = quantized(isa, &x, width, OFFSETS);
            let sizes: Vec<_> = (0..2).map(|block| rows.block(block * 16).num_rows).collect();
            assert_eq!(sizes, [16, 5]);
            for row in 0..21 {
                for (g, x) in x[row * width..][..width].as_chunks::<GROUP>().0.iter().enumerate() {
                    let (codes, quad) = codes(&rows, row, g);
                    check_group(&codes, &quad, row % QUAD, x);
                }
            }
        }
    }

    fn check_group(codes: &[i32; GROUP], quad: &QuadGroup, r: usize, x: &[f32; GROUP]) {
        let scale = quad.scales[r];
        for (&code, &value) in codes.iter().zip(x) {
            let steps = if code.abs() > 127 { 1.01 } else { 0.5001 };
            assert!((code as f32 * scale - value).abs() <= scale * steps);
        }
        let sums = [codes[..16].iter().sum::<i32>(), codes[16..].iter().sum::<i32>()];
        assert_eq!([quad.offsets[0][r], quad.offsets[1][r]], sums.map(|sum| -8 * sum));
        assert_eq!([quad.sums[0][r], quad.sums[1][r]], sums.map(|sum| scale * sum as f32));
    }

    #[test]
    fn the_parts_sums_are_those_that_the_weights_ask_for() {
        let x: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
        let whole = WeightOffsets { zero_point: 3, parts: PartSums::Group };
        for isa in Isa::all_present() {
            let (codes, quad) = codes(&quantized(isa, &x, 64, whole), 0, 1);
            let sum = codes.iter().sum::<i32>();
            assert_eq!([quad.offsets[0][0], quad.offsets[1][0]], [-3 * sum, 0]);
            assert_eq!([quad.sums[0][0], quad.sums[1][0]], [quad.scales[0] * sum as f32, 0.0]);
        }
    }

    #[test]
    fn the_word_of_an_outlier_is_wide_and_its_neighbours_keep_fine_steps() {
        let width = 320;
        let mut x: Vec<f32> = (0..width).map(|i| (i as f32 * 0.7).sin()).collect();
        x[40] = -37.5;
        x[41] = 18.0;
        for isa in Isa::all_present() {
            let rows = quantized(isa, &x, width, OFFSETS);
            for g in 0..width / GROUP {
                let (codes, quad) = codes(&rows, 0, g);
                assert_eq!(quad.high_words, if g == 1 { 1 << 2 } else { 0 }, "group {g}");
                assert!(quad.scales[0] <= 1.0 / 127.0);
                check_group(&codes, &quad, 0, x[g * GROUP..].first_chunk().unwrap());
            }
        }
    }

    #[test]
    fn a_lone_outlier_fills_the_wide_codes_and_no_more() {
        let mut x = [0.0; 20 * GROUP];
        for value in [1e-10, 3.0, -1e18] {
            x[37] = value;
            for isa in Isa::all_present() {
                let (codes, quad) = codes(&quantized(isa, &x, x.len(), OFFSETS), 0, 1);
                assert_eq!(codes[5], if value < 0.0 { -127 * 256 } else { 127 * 256 });
                assert!((codes[5] as f32 * quad.scales[0] / value - 1.0).abs() < 1e-6);
                assert!(codes.iter().enumerate().all(|(i, code)| i == 5 || *code == 0));
            }
        }
    }

    #[test]
    fn low_bytes_stay_within_127() {
        // Integers of every remainder: the largest of the rest is 127 steps.
        let mut x = [0.0; 40 * GROUP];
        x[4] = 127.0;
        for first in (200..32_000).step_by(101) {
            let wide: [f32; 4] = std::array::from_fn(|i| (first + i * 64 % 256) as f32);
            x[..4].copy_from_slice(&wide);
            let isa = Isa::all_present()[0];
            let rows = quantized(isa, &x, x.len(), OFFSETS);
            let (codes, quad) = codes(&rows, 0, 0);
            assert_eq!(quad.high_words, 1);
            let low = quad.codes[0][0].to_le_bytes().map(u8::cast_signed);
            assert!(low.iter().all(|low| *low != i8::MIN));
            for (code, value) in codes.iter().zip(wide) {
                assert!((*code as f32 - value).abs() <= 1.0, "{code} for {value}");
            }
        }
    }

    #[test]
    fn rows_that_are_missing_from_the_last_four_are_zeros() {
        let x: Vec<f32> = (0..64 * 6).map(|i| (i as f32 * 0.3).cos()).collect();
        for isa in Isa::all_present() {
            let pool = ThreadPool::new(NonZeroUsize::new(1).unwrap());
            let mut rows = QuantizedRows::default();
            // The memory has held other rows before.
            rows.quantize(isa, &pool, &x, 32, OFFSETS);
            rows.quantize(isa, &pool, &x, 64, OFFSETS);
            for group in rows.block(4).quad(0).0 {
                for r in 0..QUAD {
                    assert_eq!(group.codes[r] == GroupCodes::default(), r >= 2);
                    assert_eq!(group.scales[r] == 0.0, r >= 2);
                    assert!(r < 2 || group.offsets.iter().all(|offsets| offsets[r] == 0));
                    assert!(r < 2 || group.sums.iter().all(|sums| sums[r] == 0.0));
                }
            }
        }
    }

    #[test]
    fn rows_of_zeros_subnormals_and_broken_values_are_told_apart() {
        let scales = |isa, x: &[f32; 64]| {
            let rows = quantized(isa, x, 64, OFFSETS);
            [0, 1].map(|g| codes(&rows, 0, g).1.scales[0])
        };
        for isa in Isa::all_present() {
            assert_eq!(scales(isa, &[0.0; 64]), [0.0; 2]);
            let mut tiny = [0.0; 64];
            tiny[3] = f32::from_bits(1);
            assert!(scales(isa, &tiny)[0].is_finite());
            for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
                let mut x = [1.0; 64];
                x[40] = broken;
                assert!(scales(isa, &x).iter().all(|scale| scale.is_nan()));
            }
        }
    }
}
