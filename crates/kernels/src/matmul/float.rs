//! Tiles of float weights: one fused multiply-add per input feature, in order.

use super::{TileRows, store_tile};
use crate::activation_rows::MAX_BLOCK_ROWS;
use crate::dispatch::for_each_lanes;
use crate::float_format::{Bf16, F16};
use crate::isa::Isa;
use crate::lanes::{LANES, LaneFloat, Lanes};
use crate::packed_matrix::{FloatTiles, FloatWeights, Part};
use crate::row_view::RowView;
use std::ops::Range;

/// Multiplies all rows of `x` with `tiles` of a float part.
pub(super) fn float_tiles(
    isa: Isa,
    x: &[f32],
    in_features: usize,
    weights: &FloatTiles,
    part: &Part,
    tiles: Range<usize>,
    out: &RowView<'_, f32>,
) {
    let mut results: TileRows = [[0.0; LANES]; MAX_BLOCK_ROWS];
    for tile in tiles {
        let lanes = tile * in_features..(tile + 1) * in_features;
        for (block, rows) in x.chunks(MAX_BLOCK_ROWS * in_features).enumerate() {
            match weights.weights() {
                FloatWeights::F32(w) => tile_f32(isa, &w[lanes.clone()], rows, &mut results),
                FloatWeights::F16(w) => tile_f16(isa, &w[lanes.clone()], rows, &mut results),
                FloatWeights::Bf16(w) => tile_bf16(isa, &w[lanes.clone()], rows, &mut results),
            }
            let first_row = block * MAX_BLOCK_ROWS;
            let rows = first_row..first_row + rows.len() / in_features;
            store_tile(part, tile, rows, &results, out);
        }
    }
}

for_each_lanes! {
    fn tile_f32(w: &[[f32; LANES]], x: &[f32], out: &mut TileRows) = tile_rows::<f32>
}
for_each_lanes! {
    fn tile_f16(w: &[[F16; LANES]], x: &[f32], out: &mut TileRows) = tile_rows::<F16>
}
for_each_lanes! {
    fn tile_bf16(w: &[[Bf16; LANES]], x: &[f32], out: &mut TileRows) = tile_rows::<Bf16>
}

/// Multiplies up to [`MAX_BLOCK_ROWS`] rows with one tile, in blocks of eight, four and one.
#[inline(always)]
fn tile_rows<V: Lanes, T: LaneFloat>(
    proof: V::Proof,
    w: &[[T; LANES]],
    x: &[f32],
    out: &mut TileRows,
) {
    let num_rows = x.len() / w.len();
    let mut done = 0;
    while num_rows - done >= 8 {
        row_block::<V, T, 8>(proof, w, &x[done * w.len()..], &mut out[done..]);
        done += 8;
    }
    while num_rows - done >= 4 {
        row_block::<V, T, 4>(proof, w, &x[done * w.len()..], &mut out[done..]);
        done += 4;
    }
    while num_rows > done {
        row_block::<V, T, 1>(proof, w, &x[done * w.len()..], &mut out[done..]);
        done += 1;
    }
}

#[inline(always)]
fn row_block<V: Lanes, T: LaneFloat, const ROWS: usize>(
    proof: V::Proof,
    w: &[[T; LANES]],
    x: &[f32],
    out: &mut [[f32; LANES]],
) {
    let mut rows = [&x[..0]; ROWS];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &x[r * w.len()..][..w.len()];
    }
    let mut acc = [V::splat(proof, 0.0); ROWS];
    for (k, lanes) in w.iter().enumerate() {
        let weights = T::load::<V>(proof, lanes);
        for r in 0..ROWS {
            acc[r] = weights.mul_add(V::splat(proof, rows[r][k]), acc[r]);
        }
    }
    for (acc, out) in acc.iter().zip(out) {
        acc.store(out);
    }
}
