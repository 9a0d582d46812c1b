//! Quantises rows for panels, group by group, by the arithmetic of [`crate::activation_rows`].
//!
//! Cost: reads 128 bytes and writes 48 for each group of a row.

use super::super::activations::{
    ActivationForm, MAX_WIDE, PanelGroup, QuadRows, Stretches, WideWord, slot,
};
use crate::activation_rows::{
    GROUP, HighCodes, PartSums, QUAD, QuadGroup, WeightOffsets, outlier_limit, quantize_group,
};
use crate::isa::Avx2;
use crate::lanes::{Avx2Lanes, LANES};
use crate::prefetch::prefetch;

/// Quantises up to four rows, the first of `x`; rows that it lacks are zeros. The second, which
/// come after them, are asked for meanwhile.
pub(in super::super) fn quantize_quad(
    proof: Avx2,
    x: [&[f32]; 2],
    form: ActivationForm,
    stretches: Stretches,
    quad: QuadRows<'_>,
) {
    // SAFETY: the proof shows that the instructions are present.
    unsafe { quantize_quad_avx2(proof, x, form, stretches, quad) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_quad_avx2(
    proof: Avx2,
    [x, next]: [&[f32]; 2],
    form: ActivationForm,
    stretches: Stretches,
    quad: QuadRows<'_>,
) {
    let width = quad.groups.len() * GROUP;
    let mut rows: [&[[f32; GROUP]]; QUAD] = [&[]; QUAD];
    let mut limits = [0.0; QUAD];
    for (r, row) in x.chunks_exact(width).enumerate().take(QUAD) {
        rows[r] = row.as_chunks().0;
        limits[r] = outlier_limit::<Avx2Lanes>(proof, row);
    }
    let parts = form.sums.unwrap_or(PartSums::Group);
    let offsets = WeightOffsets { zero_point: 0, parts };
    for (stretch, num_wide) in quad.num_wide.iter_mut().enumerate() {
        let range = stretches.groups(stretch);
        let mut place = StretchRows {
            groups: &mut quad.groups[range.clone()],
            wide: &mut quad.wide[range.start * MAX_WIDE..range.end * MAX_WIDE],
            num_wide: 0,
        };
        for (index, g) in range.enumerate() {
            for row in next.chunks_exact(width) {
                row[g * GROUP..][..GROUP].iter().step_by(LANES).for_each(prefetch);
            }
            let groups = rows.map(|row| row.get(g).unwrap_or(&[0.0; GROUP]));
            let (mut found, mut high) = (QuadGroup::default(), HighCodes::default());
            quantize_group::<Avx2Lanes, QUAD>(
                proof, groups, limits, offsets, &mut found, &mut high,
            );
            place.put(index, &found, &high, form.zero);
        }
        *num_wide = u32::try_from(place.num_wide).expect("a few for each group of a stretch");
    }
}

/// Where a stretch of four rows goes.
struct StretchRows<'a> {
    groups: &'a mut [PanelGroup],
    wide: &'a mut [WideWord],
    num_wide: usize,
}

impl StretchRows<'_> {
    /// Writes a group as panels read it.
    #[inline]
    fn put(&mut self, index: usize, found: &QuadGroup, high: &HighCodes, zero: u8) {
        // Adds 128 to each byte, or nothing.
        let zeros = i32::from_le_bytes([zero; 4]);
        let num_groups = self.groups.len();
        let group = &mut self.groups[index];
        group.codes = found.codes.map(|row| row.map(|word| word ^ zeros));
        (group.scales, group.sums) = (found.scales, found.sums);
        group.slots = [slot(index); QUAD];
        if found.high_words == 0 {
            return;
        }
        // The words of all rows' outliers, of which each row has one at most.
        for (r, high) in high.iter().enumerate() {
            if let Some(word) = high.iter().position(|word| *word != 0) {
                group.slots[r] = slot(num_groups + self.num_wide);
                self.wide[self.num_wide] = WideWord::new(index, word, high[word]);
                self.num_wide += 1;
            }
        }
    }
}
