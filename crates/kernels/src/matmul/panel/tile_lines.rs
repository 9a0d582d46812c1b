//! Where the decoded tiles of a panel go.

use super::Starts;
use super::lines::{CodeLine, FloatLine};
use crate::float_format::F16;
use crate::lanes::Lanes;
use crate::packed_matrix::Scheme;

/// Where a panel's decoded tiles go, each in every `num_tiles`th line.
pub(super) struct TileLines<'a> {
    /// `[num_groups, GROUP_WORDS, num_tiles]`
    pub(super) codes: &'a mut [CodeLine],
    /// `[num_groups, vectors of the format, num_tiles]`
    pub(super) scales: &'a mut [FloatLine],
    /// `[num_groups, parts]`
    pub(super) starts: &'a mut [Starts],
    /// Tiles of the panel.
    pub(super) num_tiles: usize,
}

/// Writes the scales of tile `place` of a panel.
#[inline(always)]
pub(super) fn decode_scales<V: Lanes>(
    proof: V::Proof,
    scheme: Scheme,
    stored: &[u8],
    place: usize,
    lines: &mut TileLines<'_>,
) {
    let lines = lines.scales.iter_mut().skip(place).step_by(lines.num_tiles);
    if scheme.scales.element_bytes() == 2 {
        let stored: &[F16] = bytemuck::cast_slice(stored);
        for (line, stored) in lines.zip(stored.as_chunks().0) {
            V::load_f16(proof, stored).store(&mut line.0);
        }
    } else {
        let stored: &[f32] = bytemuck::cast_slice(stored);
        for (line, stored) in lines.zip(stored.as_chunks().0) {
            line.0 = *stored;
        }
    }
}
