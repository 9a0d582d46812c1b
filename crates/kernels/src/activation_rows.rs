//! Activations quantised to int8, the left side of every integer matrix product.
//!
//! A row is cut into groups of [`GROUP`] values. Each group keeps one f32 scale,
//! `max |x| / 127`, and the sums of its codes, which products with offset weights need. Codes are
//! rounded to nearest even. A group that holds a NaN or an infinity gets a NaN scale, so that a
//! broken row stays visibly broken in every output that reads it.

use crate::dispatch::for_each_isa;
use crate::isa::Isa;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;

/// Values that share one activation scale.
pub const GROUP: usize = 32;
/// Words of four int8 codes in a group.
pub(crate) const GROUP_WORDS: usize = GROUP / 4;

/// What a group carries beside its codes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GroupScale {
    /// The value of code 1.
    pub(crate) scale: f32,
    /// `scale` times the sum of the group's codes.
    pub(crate) scaled_sum: f32,
    /// Sums of the codes of the group's two halves.
    pub(crate) half_sums: [i32; 2],
}

/// Rows of int8 codes with their group scales, `[num_rows, width]`.
///
/// The memory is reused from product to product.
#[derive(Debug, Default)]
pub struct QuantizedRows {
    num_rows: usize,
    groups_per_row: usize,
    /// `[num_rows, groups_per_row]`, four codes to a word, the first in the low byte.
    words: Vec<[i32; GROUP_WORDS]>,
    /// `[num_rows, groups_per_row]`.
    scales: Vec<GroupScale>,
}

impl QuantizedRows {
    /// Replaces the content with the rows of `x`, `[num_rows, width]`.
    ///
    /// # Panics
    /// When `width` is not a multiple of [`GROUP`] or `x` is not whole rows.
    pub fn quantize(&mut self, isa: Isa, pool: &ThreadPool, x: &[f32], width: usize) {
        assert!(width > 0 && width.is_multiple_of(GROUP), "width {width} is whole groups");
        assert!(x.len().is_multiple_of(width), "x is whole rows");
        self.num_rows = x.len() / width;
        self.groups_per_row = width / GROUP;
        let num_groups = self.num_rows * self.groups_per_row;
        self.words.resize(num_groups, [0; GROUP_WORDS]);
        self.scales.resize(num_groups, GroupScale::default());
        if num_groups == 0 {
            return;
        }
        let groups = x.as_chunks::<GROUP>().0;
        let words = RowView::new(&mut self.words, num_groups);
        let scales = RowView::new(&mut self.scales, num_groups);
        pool.split(num_groups, |range| {
            // SAFETY: `split` gives each range to one call only.
            let words = unsafe { words.piece(0, range.start, range.len()) };
            // SAFETY: as above.
            let scales = unsafe { scales.piece(0, range.start, range.len()) };
            quantize_groups(isa, &groups[range], words, scales);
        });
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Returns the number of groups in a row.
    pub(crate) fn groups_per_row(&self) -> usize {
        self.groups_per_row
    }

    /// Returns the code words of `row`.
    pub(crate) fn words(&self, row: usize) -> &[[i32; GROUP_WORDS]] {
        &self.words[row * self.groups_per_row..(row + 1) * self.groups_per_row]
    }

    /// Returns the group scales of `row`.
    pub(crate) fn scales(&self, row: usize) -> &[GroupScale] {
        &self.scales[row * self.groups_per_row..(row + 1) * self.groups_per_row]
    }
}

for_each_isa! {
    /// Quantises groups; reads 128 bytes and writes 48 for each.
    fn quantize_groups(groups: &[[f32; GROUP]], words: &mut [[i32; GROUP_WORDS]], scales: &mut [GroupScale]) = quantize_groups_body
}

#[inline(always)]
fn quantize_groups_body(
    groups: &[[f32; GROUP]],
    words: &mut [[i32; GROUP_WORDS]],
    scales: &mut [GroupScale],
) {
    for ((x, words), scale) in groups.iter().zip(words).zip(scales) {
        *scale = quantize_group(x, words);
    }
}

#[inline(always)]
fn quantize_group(x: &[f32; GROUP], words: &mut [i32; GROUP_WORDS]) -> GroupScale {
    // Adding this to a value below 2^22 leaves the value, rounded to nearest even, in the low bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let mut largest = 0.0_f32;
    // `x * 0` is NaN exactly for NaN and infinities, which `max` would drop.
    let mut poison = 0.0_f32;
    for &value in x {
        largest = largest.max(value.abs());
        poison += value * 0.0;
    }
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    // A subnormal largest value makes the inverse infinite; such a group is zero for all purposes.
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let mut codes = [0_i8; GROUP];
    for (code, &value) in codes.iter_mut().zip(x) {
        #[expect(clippy::cast_possible_truncation, reason = "the code is in the low byte")]
        let rounded = (value.mul_add(inverse, ROUND)).to_bits() as i8;
        *code = rounded;
    }
    let mut half_sums = [0_i32; 2];
    for (i, &code) in codes.iter().enumerate() {
        half_sums[i / (GROUP / 2)] += i32::from(code);
    }
    for (word, four) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
        *word = i32::from_le_bytes(four.map(i8::cast_unsigned));
    }
    let scale = largest / 127.0 + poison;
    #[expect(clippy::cast_precision_loss, reason = "at most 32 * 127, exact in f32")]
    let sum = (half_sums[0] + half_sums[1]) as f32;
    GroupScale { scale, scaled_sum: scale * sum, half_sums }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn quantized(isa: Isa, x: &[f32], width: usize) -> QuantizedRows {
        let pool = ThreadPool::new(NonZeroUsize::new(2).unwrap());
        let mut rows = QuantizedRows::default();
        rows.quantize(isa, &pool, x, width);
        rows
    }

    #[test]
    fn codes_times_scale_are_within_half_a_step_on_every_isa() {
        let x: Vec<f32> = (0..96_u8).map(|i| (f32::from(i) * 0.7).sin() * f32::from(i)).collect();
        for isa in Isa::all_present() {
            let rows = quantized(isa, &x, 96);
            for (g, group) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                let GroupScale { scale, scaled_sum, half_sums } = rows.scales(0)[g];
                let codes: Vec<i8> = rows.words(0)[g]
                    .iter()
                    .flat_map(|word| word.to_le_bytes().map(u8::cast_signed))
                    .collect();
                for (&code, &value) in codes.iter().zip(group) {
                    assert!((f32::from(code) * scale - value).abs() <= scale * 0.5001);
                }
                let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
                assert_eq!(half_sums[0] + half_sums[1], sum);
                assert!((scaled_sum - scale * sum as f32).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn groups_of_zeros_subnormals_and_broken_values_are_told_apart() {
        for isa in Isa::all_present() {
            assert_eq!(quantized(isa, &[0.0; 32], 32).scales(0)[0], GroupScale::default());
            let mut tiny = [0.0; 32];
            tiny[3] = f32::from_bits(1);
            assert!(quantized(isa, &tiny, 32).scales(0)[0].scale.is_finite());
            for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = [1.0; 64];
                x[40] = broken;
                let rows = quantized(isa, &x, 64);
                assert!(rows.scales(0)[0].scale.is_finite());
                assert!(rows.scales(0)[1].scale.is_nan());
            }
        }
    }
}
