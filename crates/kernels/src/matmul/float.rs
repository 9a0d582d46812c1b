//! Tiles of float weights: one fused multiply-add per input feature, in order.

use super::{MAX_ROWS, TileRows, store_tile};
use crate::dispatch::for_each_isa;
use crate::float_format::{Bf16, F16, StoredFloat};
use crate::isa::Isa;
use crate::packed_matrix::{FloatTiles, FloatWeights, LANES, Part};
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
    let mut results: TileRows = [[0.0; LANES]; MAX_ROWS];
    for tile in tiles {
        let lanes = tile * in_features..(tile + 1) * in_features;
        for (block, rows) in x.chunks(MAX_ROWS * in_features).enumerate() {
            match weights.weights() {
                FloatWeights::F32(w) => tile_f32(isa, &w[lanes.clone()], rows, &mut results),
                FloatWeights::F16(w) => tile_f16(isa, &w[lanes.clone()], rows, &mut results),
                FloatWeights::Bf16(w) => tile_bf16(isa, &w[lanes.clone()], rows, &mut results),
            }
            let first_row = block * MAX_ROWS;
            let rows = first_row..first_row + rows.len() / in_features;
            store_tile(part, tile, rows, &results, out);
        }
    }
}

for_each_isa! {
    fn tile_f32(w: &[[f32; LANES]], x: &[f32], out: &mut TileRows) = tile_rows::<f32>
}
for_each_isa! {
    fn tile_f16(w: &[[F16; LANES]], x: &[f32], out: &mut TileRows) = tile_rows::<F16>
}
for_each_isa! {
    fn tile_bf16(w: &[[Bf16; LANES]], x: &[f32], out: &mut TileRows) = tile_rows::<Bf16>
}

/// Multiplies up to [`MAX_ROWS`] rows with one tile, in blocks of four rows and single ones.
#[inline(always)]
fn tile_rows<T: StoredFloat>(w: &[[T; LANES]], x: &[f32], out: &mut TileRows) {
    let in_features = w.len();
    let blocks = x.chunks_exact(4 * in_features);
    let singles = blocks.remainder();
    let mut out = out.iter_mut();
    for block in blocks {
        let rows: [&[f32]; 4] = std::array::from_fn(|r| &block[r * in_features..][..in_features]);
        for lanes in row_block(w, rows) {
            *out.next().expect("x has at most MAX_ROWS rows") = lanes;
        }
    }
    for row in singles.chunks_exact(in_features) {
        let [lanes] = row_block(w, [row]);
        *out.next().expect("x has at most MAX_ROWS rows") = lanes;
    }
}

#[inline(always)]
fn row_block<T: StoredFloat, const ROWS: usize>(
    w: &[[T; LANES]],
    rows: [&[f32]; ROWS],
) -> [[f32; LANES]; ROWS] {
    let mut acc = [[0.0_f32; LANES]; ROWS];
    for (k, lanes) in w.iter().enumerate() {
        let wide = lanes.map(StoredFloat::widen);
        for (acc, row) in acc.iter_mut().zip(&rows) {
            let x = row[k];
            for (acc, w) in acc.iter_mut().zip(&wide) {
                *acc = w.mul_add(x, *acc);
            }
        }
    }
    acc
}
