//! Products of activations with packed weights, `[rows, in] x [out, in]^T`.
//!
//! One output value is a fixed sequence over the input features, on every instruction set:
//!
//! ```text
//! for each group g of 32:  dot = Σ code * x_code - zero_point * Σ x_code          (exact, i32)
//!                          acc = fma(dot, scale_w[g] * scale_x[g], acc)           (f32)
//!                          the two lines again with the residual codes, where the group has some
//!                          acc = fma(minimum_w[g], sum_x[g], acc)                (with minimums)
//! ```
//!
//! Formats with two scales per group do the middle line once for each half. Float weights do
//! `acc = fma(w, x, acc)` for one input feature after the other. Tiles of output features are
//! split over the threads; up to [`MAX_BLOCK_ROWS`] rows share one pass over a tile. Neither
//! changes a result.
//!
//! Moves the weights once per [`MAX_BLOCK_ROWS`] rows (from cache after the first pass) and does
//! `2 * rows * in * out` operations.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use crate::activation_rows::{MAX_BLOCK_ROWS, QuantizedRows, RowBlock};
use crate::isa::Isa;
use crate::lanes::LANES;
use crate::packed_matrix::{IntegerTile, IntegerTiles, PackedMatrix, Part, Tiles};
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use std::ops::Range;

/// The results of one tile, lanes of output features for each row of a block.
type TileRows = [[f32; LANES]; MAX_BLOCK_ROWS];

/// Multiplies a block of rows with an integer tile.
type TileKernel = fn(IntegerTile<'_>, &QuantizedRows, RowBlock, &mut TileRows);

/// Writes `x * w^T` to `out`, `[rows, out_features]`.
///
/// `scratch` holds the quantised activations that integer weights read.
///
/// # Panics
/// When `x` is not whole rows of `in_features`, or `out` does not have as many rows.
pub fn matmul(
    isa: Isa,
    pool: &ThreadPool,
    x: &[f32],
    w: &PackedMatrix,
    scratch: &mut QuantizedRows,
    out: &mut [f32],
) {
    let in_features = w.in_features();
    assert!(x.len().is_multiple_of(in_features), "x is whole rows");
    let num_rows = x.len() / in_features;
    assert_eq!(out.len(), num_rows * w.out_features(), "out has the rows of x");
    if num_rows == 0 {
        return;
    }
    let out = RowView::new(out, w.out_features());
    let mut quantized_for = None;
    for part in w.parts() {
        let num_tiles = part.out_features.div_ceil(LANES);
        match &part.tiles {
            Tiles::Integer(weights) => {
                let zero_point = weights.scheme().zero_point;
                if quantized_for.replace(zero_point) != Some(zero_point) {
                    scratch.quantize(isa, pool, x, in_features, zero_point);
                }
                let x = &*scratch;
                pool.split(num_tiles, |tiles| integer_tiles(isa, x, weights, part, tiles, &out));
            }
            Tiles::Float(weights) => pool.split(num_tiles, |tiles| {
                float::float_tiles(isa, x, in_features, weights, part, tiles, &out);
            }),
        }
    }
}

/// Multiplies all rows with `tiles` of an integer part.
fn integer_tiles(
    isa: Isa,
    x: &QuantizedRows,
    weights: &IntegerTiles,
    part: &Part,
    tiles: Range<usize>,
    out: &RowView<'_, f32>,
) {
    let kernel: TileKernel = match isa {
        Isa::Scalar => portable::tile_rows,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(proof) => avx2::kernel(proof, weights.scheme()),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => avx512::kernel(proof, weights.scheme()),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(proof) => neon::kernel(proof, weights.scheme()),
    };
    let mut results: TileRows = [[0.0; LANES]; MAX_BLOCK_ROWS];
    for tile in tiles {
        let weights = weights.tile(tile);
        for &block in x.blocks() {
            kernel(weights, x, block, &mut results);
            let rows = block.first_row..block.first_row + block.num_rows;
            store_tile(part, tile, rows, &results, out);
        }
    }
}

/// Writes the lanes of a tile that are output features, for each of `rows`.
fn store_tile(
    part: &Part,
    tile: usize,
    rows: Range<usize>,
    results: &TileRows,
    out: &RowView<'_, f32>,
) {
    let first = tile * LANES;
    let len = LANES.min(part.out_features - first);
    for (row, lanes) in rows.zip(results) {
        // SAFETY: each tile belongs to one thread, and a tile's output features are its own.
        let place = unsafe { out.piece(row, part.first_out + first, len) };
        match place.as_chunks_mut::<LANES>() {
            ([whole], []) => *whole = *lanes,
            _ => place.copy_from_slice(&lanes[..len]),
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "test numbers are cut on purpose")]
mod tests;
