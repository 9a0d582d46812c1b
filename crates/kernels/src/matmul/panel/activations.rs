//! Activations as panels read them: the numbers of [`crate::activation_rows`] in other places.
//!
//! Codes are unsigned here, 128 ([`ZERO`]) standing for 0, and weights are signed; what that adds
//! to a dot product depends on the weights alone, so a panel has it ready for all rows, whatever
//! the weights' zero point. Wide words lie in lists of their own, so that the loop over the groups
//! need not look for them.

use super::quantize::{QuadRows, quantize_quad};
use crate::activation_rows::{GROUP, GROUP_WORDS, GroupCodes, PartSums, QUAD};
use crate::isa::Avx512;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use std::ops::Range;

/// The byte that stands for 0.
pub(super) const ZERO: u8 = 128;
/// Groups of a stretch: with three tiles 35 KiB, which leaves room for rows in an L1 of 48 KiB.
const MAX_GROUPS: usize = 18;
/// Wide words that a group of four rows has at most.
pub(super) const MAX_WIDE: usize = QUAD;

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
    /// The low bytes of the codes, four to a word, [`ZERO`] more than they are.
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
    /// Replaces the content with the rows of `x`, `[num_rows, width]`, and the sums of the given
    /// parts, if any.
    pub(in crate::matmul) fn quantize(
        &mut self,
        proof: Avx512,
        pool: &ThreadPool,
        x: &[f32],
        width: usize,
        sums: Option<PartSums>,
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
                quantize_quad(
                    proof,
                    [rows(index), rows(index + 1)],
                    sums,
                    stretches,
                    QuadRows { groups, wide, num_wide },
                );
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

    /// Returns a stretch of four rows.
    pub(super) fn quad(&self, index: usize, stretch: usize) -> (&[PanelGroup], &[WideWord]) {
        let stretches = self.stretches();
        let range = stretches.groups(stretch);
        let first = index * self.num_groups + range.start;
        let num_wide = self.num_wide[index * stretches.len() + stretch] as usize;
        (&self.groups[first..][..range.len()], &self.wide[first * MAX_WIDE..][..num_wide])
    }
}
