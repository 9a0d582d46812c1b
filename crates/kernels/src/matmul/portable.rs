//! Integer tiles in portable code: the same operations as the vector kernels, lane by lane.

use super::TileRows;
use crate::activation_rows::{GROUP, GroupCodes, QUAD, RowBlock};
use crate::packed_matrix::IntegerTile;

/// Multiplies a block of rows with one tile.
pub(super) fn tile_rows(tile: IntegerTile<'_>, rows: RowBlock<'_>, out: &mut TileRows) {
    for (row, lanes) in out.iter_mut().enumerate().take(rows.num_rows) {
        for (lane, result) in lanes.iter_mut().enumerate() {
            *result = lane_product(tile, rows, row, lane);
        }
    }
}

fn lane_product(tile: IntegerTile<'_>, rows: RowBlock<'_>, row: usize, lane: usize) -> f32 {
    let (quads, high) = rows.quad(row / QUAD);
    let r = row % QUAD;
    let format = tile.scheme.scales;
    let mut acc = 0.0_f32;
    for (g, (quad, high)) in quads.iter().zip(high).enumerate() {
        let mut dots = [quad.offsets[0][r], quad.offsets[1][r]];
        add_dots(&mut dots, tile, g, lane, &quad.codes[r], 1);
        if quad.high_words != 0 {
            add_dots(&mut dots, tile, g, lane, &high[r], 256);
        }
        let parts = if format.has_halves() { &dots[..] } else { &[dots[0] + dots[1]] };
        let scales = tile.lane_scales(g, lane);
        for (part, dot) in parts.iter().enumerate() {
            #[expect(clippy::cast_precision_loss, reason = "rounded to nearest, as everywhere")]
            let dot = *dot as f32;
            acc = dot.mul_add(scales.scales[part] * quad.scales[r], acc);
            if format.has_minimum() {
                acc = scales.minimums[part].mul_add(quad.sums[part][r], acc);
            }
        }
    }
    acc
}

/// Adds the dot products of the two halves of a group, times `factor`.
fn add_dots(
    dots: &mut [i32; 2],
    tile: IntegerTile<'_>,
    g: usize,
    lane: usize,
    codes: &GroupCodes,
    factor: i32,
) {
    for k in 0..GROUP {
        let code = i32::from(codes[k / 4].to_le_bytes()[k % 4].cast_signed());
        dots[k / (GROUP / 2)] += factor * code * i32::from(tile.code(g, lane, k));
    }
}
