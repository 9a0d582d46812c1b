//! Activations as panels read them: the numbers of [`crate::activation_rows`] in other places.
//!
//! Codes are unsigned here, 128 ([`ZERO`]) standing for 0, and weights are signed; what that adds
//! to a dot product depends on the weights alone, so a panel has it ready for all rows, whatever
//! the weights' zero point. (Some products want signed codes, see [`ActivationForm`].) Wide words
//! lie in lists of their own, so that the loop over the groups need not look for them.

use super::PanelIsa;
use crate::activation_rows::{GROUP, GROUP_WORDS, GroupCodes, PartSums, QUAD};
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use std::ops::Range;

/// The byte that stands for 0 where codes are unsigned.
pub(super) const ZERO: u8 = 128;
/// Groups of a stretch: with three tiles 35 KiB, which leaves room for rows in an L1 of 48 KiB.
const MAX_GROUPS: usize = 18;
/// Wide words that a group of four rows has at most.
pub(super) const MAX_WIDE: usize = QUAD;

/// What a product asks of its activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActivationForm {
    /// The sums that the weights' minimums are multiplied with, if there are any.
    pub(super) sums: Option<PartSums>,
    /// The byte that stands for 0: [`ZERO`], or 0 where codes are signed.
    pub(super) zero: u8,
}

/// How a row's groups are cut into stretches, through which all rows pass one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretches {
    num_groups: usize,
}

impl Stretches {
    /// Cuts `num_groups` groups.
    pub(super) fn of(num_groups: usize) -> Self {
        Self { num_groups }
    }

    /// Returns the number of stretches.
    pub(super) fn len(self) -> usize {
        self.num_groups.div_ceil(MAX_GROUPS)
    }

    /// Returns the groups of a stretch.
    pub(super) fn groups(self, index: usize) -> Range<usize> {
        let start = |index: usize| self.num_groups * index / self.len();
        start(index)..start(index + 1)
    }
}

/// One group of four rows.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(super) struct PanelGroup {
    /// The low bytes of the codes, four to a word, [`ActivationForm::zero`] more than they are.
    pub(super) codes: [GroupCodes; QUAD],
    /// The value of code 1.
    pub(super) scales: [f32; QUAD],
    /// Which of the stretch's starts the dot products begin with: the group's own, or, where the
    /// row has a wide word, the one that the word adds behind those of all groups.
    pub(super) slots: [u32; QUAD],
    /// The sums of the parts' values, as their codes give them, where the weights have minimums.
    pub(super) sums: [[f32; QUAD]; 2],
}

impl PanelGroup {
    /// A group of zeros.
    pub(super) const ZEROS: Self = Self {
        codes: [[i32::from_le_bytes([ZERO; 4]); GROUP_WORDS]; QUAD],
        scales: [0.0; QUAD],
        slots: [0; QUAD],
        sums: [[0.0; QUAD]; 2],
    };
}

/// The high bytes of a word of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WideWord {
    /// The group in its stretch.
    pub(super) group: u16,
    /// The word in the group.
    pub(super) word: u16,
    /// The high bytes, signed.
    pub(super) high: i32,
    /// `-128` times their sum.
    pub(super) offset: i32,
}

impl WideWord {
    /// Returns the entry for the high bytes of a word of a group of the stretch.
    pub(super) fn new(group: usize, word: usize, high: i32) -> Self {
        let sum: i32 = high.to_le_bytes().iter().map(|byte| i32::from(byte.cast_signed())).sum();
        let small = |number: usize| u16::try_from(number).expect("a stretch is short");
        Self { group: small(group), word: small(word), high, offset: -i32::from(ZERO) * sum }
    }
}

/// Returns an entry of [`PanelGroup::slots`].
pub(super) fn slot(index: usize) -> u32 {
    u32::try_from(index).expect("a stretch is short")
}

/// Where four rows go.
pub(super) struct QuadRows<'a> {
    /// `[num_groups]`
    pub(super) groups: &'a mut [PanelGroup],
    /// `[num_groups, MAX_WIDE]`, those of a stretch at its first group's place.
    pub(super) wide: &'a mut [WideWord],
    /// `[num_stretches]`
    pub(super) num_wide: &'a mut [u32],
}

/// Rows of quantised values, four together, `[num_quads, num_groups, 4]`; rows that are missing
/// from the last four are zeros. The memory is reused from product to product.
#[derive(Debug, Default)]
pub(crate) struct PanelActivations {
    num_rows: usize,
    num_groups: usize,
    groups: Vec<PanelGroup>,
    /// `[num_quads, num_groups, MAX_WIDE]`, those of a stretch at its first groups' place.
    wide: Vec<WideWord>,
    /// Wide words of each stretch, `[num_quads, num_stretches]`.
    num_wide: Vec<u32>,
}

impl PanelActivations {
    /// Replaces the content with the rows of `x`, `[num_rows, width]`.
    pub(in crate::matmul) fn quantize(
        &mut self,
        isa: PanelIsa,
        pool: &ThreadPool,
        x: &[f32],
        width: usize,
        form: ActivationForm,
    ) {
        assert!(width > 0 && width.is_multiple_of(GROUP), "width {width} is whole groups");
        assert!(x.len().is_multiple_of(width), "x is whole rows");
        let num_groups = width / GROUP;
        let stretches = Stretches::of(num_groups);
        (self.num_rows, self.num_groups) = (x.len() / width, num_groups);
        let num_quads = self.num_rows.div_ceil(QUAD);
        self.groups.resize(num_quads * num_groups, PanelGroup::ZEROS);
        self.wide.resize(num_quads * num_groups * MAX_WIDE, WideWord::default());
        self.num_wide.resize(num_quads * stretches.len(), 0);
        let groups = RowView::new(&mut self.groups, num_groups);
        let wide = RowView::new(&mut self.wide, num_groups * MAX_WIDE);
        let num_wide = RowView::new(&mut self.num_wide, stretches.len());
        pool.split(num_quads, |indices| {
            for index in indices {
                let rows = |index: usize| {
                    let end = |index: usize| x.len().min(index * QUAD * width);
                    &x[end(index)..end(index + 1)]
                };
                // SAFETY: each row of the view is asked for once, by the thread that has its index.
                let groups = unsafe { groups.piece(index, 0, num_groups) };
                // SAFETY: as above.
                let wide = unsafe { wide.piece(index, 0, num_groups * MAX_WIDE) };
                // SAFETY: as above.
                let num_wide = unsafe { num_wide.piece(index, 0, stretches.len()) };
                let quad = QuadRows { groups, wide, num_wide };
                isa.quantize_quad([rows(index), rows(index + 1)], form, stretches, quad);
            }
        });
    }

    /// Returns the number of rows.
    pub(super) fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Returns how rows are cut.
    pub(super) fn stretches(&self) -> Stretches {
        Stretches::of(self.num_groups)
    }

    /// Returns a stretch of all rows.
    pub(super) fn stretch(&self, index: usize) -> RowStretch<'_> {
        let stretches = self.stretches();
        RowStretch {
            rows: self,
            index,
            num_stretches: stretches.len(),
            range: stretches.groups(index),
        }
    }
}

/// The same groups of all rows.
pub(super) struct RowStretch<'a> {
    rows: &'a PanelActivations,
    index: usize,
    num_stretches: usize,
    range: Range<usize>,
}

impl<'a> RowStretch<'a> {
    /// Returns the groups' places in their rows.
    pub(super) fn groups(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns four rows.
    #[inline]
    pub(super) fn quad(&self, index: usize) -> (&'a [PanelGroup], &'a [WideWord]) {
        let first = index * self.rows.num_groups + self.range.start;
        let num_wide = self.rows.num_wide[index * self.num_stretches + self.index] as usize;
        let groups = &self.rows.groups[first..][..self.range.len()];
        (groups, &self.rows.wide[first * MAX_WIDE..][..num_wide])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation_rows::{QuantizedRows, WeightOffsets};
    use crate::isa::Isa;
    use std::num::NonZeroUsize;

    /// What a group of a row holds: codes, the bits of its scale, and of its sums.
    type Group = ([i32; GROUP], u32, [u32; 2]);

    fn bytes(words: &GroupCodes) -> impl Iterator<Item = u8> {
        words.iter().flat_map(|word| word.to_le_bytes())
    }

    fn panel_groups(rows: &PanelActivations, row: usize, zero: u8) -> Vec<Group> {
        let r = row % QUAD;
        let mut found = Vec::new();
        for stretch in 0..rows.stretches().len() {
            let (groups, wide) = rows.stretch(stretch).quad(row / QUAD);
            for (g, group) in groups.iter().enumerate() {
                let mut codes = [0; GROUP];
                for (code, byte) in codes.iter_mut().zip(bytes(&group.codes[r])) {
                    *code =
                        if zero == 0 { byte.cast_signed().into() } else { i32::from(byte) - 128 };
                }
                if group.slots[r] as usize != g {
                    let word = wide[group.slots[r] as usize - groups.len()];
                    assert_eq!(usize::from(word.group), g);
                    let high = word.high.to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
                    assert_eq!(word.offset, -128 * high.iter().sum::<i32>());
                    let codes = &mut codes.as_chunks_mut::<4>().0[usize::from(word.word)];
                    codes.iter_mut().zip(high).for_each(|(code, high)| *code += 256 * high);
                }
                found.push((codes, group.scales[r].to_bits(), group.sums.map(|s| s[r].to_bits())));
            }
        }
        found
    }

    /// The same from rows that are quantised for tiles.
    fn tile_groups(rows: &QuantizedRows, row: usize) -> Vec<Group> {
        let r = row % QUAD;
        let (quads, high) = rows.block(row / QUAD * QUAD).quad(0);
        let mut found = Vec::new();
        for (quad, high) in quads.iter().zip(high) {
            let mut codes = [0; GROUP];
            let pairs = bytes(&quad.codes[r]).zip(bytes(&high[r])).enumerate();
            for (k, (low, high)) in pairs {
                let is_wide = quad.high_words & (1 << (k / 4)) != 0;
                let high = if is_wide { i32::from(high.cast_signed()) } else { 0 };
                codes[k] = i32::from(low.cast_signed()) + 256 * high;
            }
            found.push((codes, quad.scales[r].to_bits(), quad.sums.map(|s| s[r].to_bits())));
        }
        found
    }

    fn check(x: &[f32], width: usize) {
        for isa in Isa::all_present().into_iter().filter_map(PanelIsa::of) {
            for parts in [PartSums::Group, PartSums::Halves] {
                // Signed codes are AVX2's alone.
                let zeros = if matches!(isa, PanelIsa::Avx2(_)) { &[ZERO, 0][..] } else { &[ZERO] };
                for &zero in zeros {
                    check_form(isa, x, width, parts, zero);
                }
            }
        }
    }

    fn check_form(isa: PanelIsa, x: &[f32], width: usize, parts: PartSums, zero: u8) {
        let pool = ThreadPool::new(NonZeroUsize::new(2).unwrap());
        let (mut panel, mut tiles) = (PanelActivations::default(), QuantizedRows::default());
        // The memory has held other rows before.
        let before = ActivationForm { sums: None, zero };
        panel.quantize(isa, &pool, &[1e3; 20 * GROUP], GROUP, before);
        panel.quantize(isa, &pool, x, width, ActivationForm { sums: Some(parts), zero });
        tiles.quantize(Isa::Scalar, &pool, x, width, WeightOffsets { zero_point: 0, parts });
        for row in 0..(x.len() / width).next_multiple_of(QUAD) {
            let (got, expected) = (panel_groups(&panel, row, zero), tile_groups(&tiles, row));
            assert_eq!(got.len(), width / GROUP);
            for (g, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let context = format!("{isa:?}, zero {zero}, row {row}, group {g}");
                if f32::from_bits(expected.1).is_nan() {
                    assert!(f32::from_bits(got.1).is_nan(), "{context}");
                } else {
                    assert_eq!(got, expected, "{context}");
                }
            }
        }
    }

    #[test]
    fn groups_are_those_of_activation_rows_bit_for_bit() {
        for groups in [1, 2, 3, 4, 5, 18, 19, 48] {
            for rows in [1, 3, 4, 7] {
                let width = groups * GROUP;
                // Every 29th value stands out, more and more.
                let outlier = |i: usize| if i.is_multiple_of(29) { i as f32 * 0.1 } else { 1.0 };
                let x: Vec<_> =
                    (0..rows * width).map(|i| (i as f32 * 0.7).sin() * outlier(i)).collect();
                check(&x, width);
            }
        }
    }

    #[test]
    fn edges_are_those_of_activation_rows() {
        let width = 20 * GROUP;
        let mut x = vec![0.0; 12 * width];
        for (row, value) in
            [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e18, 1e-10, f32::from_bits(1)]
                .into_iter()
                .enumerate()
        {
            x[row * width + 37] = value;
            x[row * width + 70] = 1.0;
        }
        x[7 * width + 37] = -1e18;
        // Two words with the same largest value: the first is the wide one.
        (x[8 * width + 3], x[8 * width + 20]) = (-5.0, 5.0);
        x[9 * width..10 * width].fill(-0.0);
        x[10 * width..11 * width].fill(f32::MIN_POSITIVE);
        check(&x, width);
    }
}
