//! Integer tiles in portable code: the same operations as the vector kernels, lane by lane.

use super::TileRows;
use crate::activation_rows::{GROUP, GroupCodes, QuantizedRows, RowBlock};
use crate::packed_matrix::{IntegerTile, ScaleFormat};

/// Multiplies a block of rows with one tile.
pub(super) fn tile_rows(
    tile: IntegerTile<'_>,
    x: &QuantizedRows,
    block: RowBlock,
    out: &mut TileRows,
) {
    for (row, lanes) in out.iter_mut().enumerate().take(block.num_rows) {
        for (lane, result) in lanes.iter_mut().enumerate() {
            *result = lane_product(tile, x, block, row, lane);
        }
    }
}

fn lane_product(
    tile: IntegerTile<'_>,
    x: &QuantizedRows,
    block: RowBlock,
    row: usize,
    lane: usize,
) -> f32 {
    let (codes, residuals, scales) = (x.codes(block), x.residuals(block), x.scales(block));
    let mut acc = 0.0_f32;
    for (g, at) in (row..scales.len()).step_by(block.num_rows).enumerate() {
        let (codes, residuals, group) = (&codes[at], &residuals[at], scales[at]);
        let (scales, minimum) = tile.lane_scales(g, lane);
        let dots = half_dots(tile, g, lane, codes, group.half_offsets);
        acc = add_dots(acc, tile.scheme.scales, dots, scales, group.scale);
        if group.has_residual() {
            let dots = half_dots(tile, g, lane, residuals, group.residual_offsets);
            acc = add_dots(acc, tile.scheme.scales, dots, scales, group.residual_scale);
        }
        if tile.scheme.scales.has_minimum() {
            acc = minimum.mul_add(group.scaled_sum, acc);
        }
    }
    acc
}

/// Returns the dot products of the two halves of a group, the zero point's share included.
fn half_dots(
    tile: IntegerTile<'_>,
    g: usize,
    lane: usize,
    codes: &GroupCodes,
    offsets: [i32; 2],
) -> [i32; 2] {
    let mut dots = offsets;
    for k in 0..GROUP {
        let code = codes[k / 4].to_le_bytes()[k % 4].cast_signed();
        dots[k / (GROUP / 2)] += i32::from(code) * i32::from(tile.code(g, lane, k));
    }
    dots
}

/// Adds the scaled dot products of a group, of both halves apart where they have two scales.
fn add_dots(acc: f32, format: ScaleFormat, dots: [i32; 2], scales: [f32; 2], x_scale: f32) -> f32 {
    let add = |acc: f32, dot: i32, weight_scale: f32| {
        #[expect(clippy::cast_precision_loss, reason = "below 2^24: at most 32 * 255 * 127")]
        (dot as f32).mul_add(weight_scale * x_scale, acc)
    };
    if format == ScaleFormat::F32Halves {
        return add(add(acc, dots[0], scales[0]), dots[1], scales[1]);
    }
    add(acc, dots[0] + dots[1], scales[0])
}
