//! Four rows that are quantised for panels, a batch of groups at a time.

use super::activations::{MAX_WIDE, PanelGroup, QuadRows, Stretches, WideWord, slot};
use crate::activation_rows::{GROUP, QUAD};
use crate::lanes::LANES;
use crate::prefetch::prefetch;
use std::ops::Range;

/// Something for each group of each row of a batch.
pub(super) type Batch<T, const NUM_GROUPS: usize> = [[T; NUM_GROUPS]; QUAD];

/// Where a stretch of four rows goes.
pub(super) struct StretchRows<'a> {
    pub(super) groups: &'a mut [PanelGroup],
    wide: &'a mut [WideWord],
    num_wide: usize,
}

impl StretchRows<'_> {
    /// Writes the high bytes of a word of a group; returns which start its row then has.
    #[inline]
    pub(super) fn put_wide_word(&mut self, group: usize, word: usize, high: i32) -> u32 {
        let place = self.num_wide;
        self.wide[place] = WideWord::new(group, word, high);
        self.num_wide += 1;
        slot(self.groups.len() + place)
    }
}

/// Calls `quantize` for each batch of up to four rows, the first of `x`, with where its stretch
/// goes, its groups in there, and their values: zeros for rows that are missing, and behind the
/// groups of a shorter batch. The second of `x`, which come after them, are asked for meanwhile.
#[inline(always)]
pub(super) fn for_each_batch<const NUM_GROUPS: usize>(
    [x, next]: [&[f32]; 2],
    stretches: Stretches,
    quad: QuadRows<'_>,
    mut quantize: impl FnMut(&mut StretchRows<'_>, Range<usize>, &Batch<&[f32; GROUP], NUM_GROUPS>),
) {
    let width = quad.groups.len() * GROUP;
    let mut rows: [&[[f32; GROUP]]; QUAD] = [&[]; QUAD];
    for (row, x) in rows.iter_mut().zip(x.chunks_exact(width)) {
        *row = x.as_chunks().0;
    }
    for (stretch, num_wide) in quad.num_wide.iter_mut().enumerate() {
        let range = stretches.groups(stretch);
        let mut place = StretchRows {
            groups: &mut quad.groups[range.clone()],
            wide: &mut quad.wide[range.start * MAX_WIDE..range.end * MAX_WIDE],
            num_wide: 0,
        };
        for first in (0..range.len()).step_by(NUM_GROUPS) {
            let len = NUM_GROUPS.min(range.len() - first);
            let values = (range.start + first) * GROUP..(range.start + first + len) * GROUP;
            for row in next.chunks_exact(width) {
                row[values.clone()].iter().step_by(LANES).for_each(prefetch);
            }
            let mut batch = [[&[0.0; GROUP]; NUM_GROUPS]; QUAD];
            for (batch, row) in batch.iter_mut().zip(rows) {
                for (g, group) in batch.iter_mut().enumerate().take(len) {
                    *group = row.get(range.start + first + g).unwrap_or(*group);
                }
            }
            quantize(&mut place, first..first + len, &batch);
        }
        *num_wide = u32::try_from(place.num_wide).expect("a few for each group of a stretch");
    }
}
