//! Integer tiles in portable code: the same operations as the vector kernels, lane by lane.

use super::TileRows;
use crate::activation_rows::{GROUP, QuantizedRows, RowBlock};
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
    let groups = x.codes(block).iter().zip(x.scales(block)).skip(row).step_by(block.num_rows);
    let mut acc = 0.0_f32;
    for (g, (words, group)) in groups.enumerate() {
        let mut dots = group.half_offsets;
        for k in 0..GROUP {
            let code = words[k / 4].to_le_bytes()[k % 4].cast_signed();
            dots[k / (GROUP / 2)] += i32::from(code) * i32::from(tile.code(g, lane, k));
        }
        let (scales, minimum) = tile.lane_scales(g, lane);
        let add = |acc: f32, dot: i32, weight_scale: f32| {
            #[expect(clippy::cast_precision_loss, reason = "below 2^24: at most 32 * 255 * 127")]
            (dot as f32).mul_add(weight_scale * group.scale, acc)
        };
        acc = match tile.scheme.scales {
            ScaleFormat::F32Halves => add(add(acc, dots[0], scales[0]), dots[1], scales[1]),
            ScaleFormat::F16
            | ScaleFormat::F16Minimum
            | ScaleFormat::F32
            | ScaleFormat::F32Minimum => add(acc, dots[0] + dots[1], scales[0]),
        };
        if matches!(tile.scheme.scales, ScaleFormat::F16Minimum | ScaleFormat::F32Minimum) {
            acc = minimum.mul_add(group.scaled_sum, acc);
        }
    }
    acc
}
