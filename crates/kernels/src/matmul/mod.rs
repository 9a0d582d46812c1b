//! Products of activations with packed weights, `[rows, in] x [out, in]^T`.
//!
//! One output value is a fixed sequence over the input features, on every instruction set:
//!
//! ```text
//! for each group g of 32:  dot = Σ code * x_code - zero_point * Σ x_code          (exact, i32)
//!                          acc = fma(dot, scale_w[g] * scale_x[g], acc)           (f32)
//!                          acc = fma(minimum_w[g], sum_x[g], acc)                (with minimums)
//! ```
//!
//! where a few activation codes are wider than a byte, see [`crate::activation_rows`]. Formats
//! with scales for each half of a group do so once for each half. Float weights do
//! `acc = fma(w, x, acc)` for one input feature after the other.
//!
//! Up to [`MAX_BLOCK_ROWS`] rows share one pass over a tile, and tiles are split over the threads.
//! With many rows, panels of tiles and chunks of rows are (see `panel`). Neither changes a
//! result.
//!
//! Integer weights move once per [`MAX_BLOCK_ROWS`] rows (from cache after the first pass), float
//! weights once per chunk of rows; either does `2 * rows * in * out` operations.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod panel;
mod portable;
#[cfg(target_arch = "x86_64")]
mod stored_form;

pub(crate) use float::RowPanels;
#[cfg(target_arch = "x86_64")]
pub(crate) use panel::PanelActivations;

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
type TileKernel = fn(IntegerTile<'_>, RowBlock<'_>, &mut TileRows);

/// Writes `x * w^T` to `out`, `[rows, out_features]`.
///
/// `scratch` holds the activations as the weights read them: quantised, or in panels.
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
    #[cfg(target_arch = "x86_64")]
    let mut panels_quantized_for = None;
    let mut panels_packed = false;
    for part in w.parts() {
        match &part.tiles {
            Tiles::Integer(weights) => {
                #[cfg(target_arch = "x86_64")]
                if let Some(isa) = panel::PanelIsa::of(isa)
                    && num_rows >= isa.least_rows()
                {
                    let form = isa.form(weights.scheme());
                    let rows = &mut scratch.panel_activations;
                    if panels_quantized_for.replace(form) != Some(form) {
                        rows.quantize(isa, pool, x, in_features, form);
                    }
                    panel::ManyRows { isa, x: rows, weights, part, out: &out }.multiply(pool);
                    continue;
                }
                let offsets = weights.scheme().offsets();
                if quantized_for.replace(offsets) != Some(offsets) {
                    scratch.quantize(isa, pool, x, in_features, offsets);
                }
                integer_product(isa, pool, scratch, weights, part, &out);
            }
            Tiles::Float(weights) => {
                if !std::mem::replace(&mut panels_packed, true) {
                    float::pack_rows(isa, pool, x, in_features, &mut scratch.panels);
                }
                float::float_product(isa, pool, &scratch.panels, weights, part, &out);
            }
        }
    }
}

/// Multiplies all rows with an integer part.
fn integer_product(
    isa: Isa,
    pool: &ThreadPool,
    x: &QuantizedRows,
    weights: &IntegerTiles,
    part: &Part,
    out: &RowView<'_, f32>,
) {
    let num_tiles = part.out_features.div_ceil(LANES);
    pool.split(num_tiles, |tiles| integer_tiles(isa, x, weights, part, tiles, out));
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
        for first_row in (0..x.num_rows()).step_by(MAX_BLOCK_ROWS) {
            let block = x.block(first_row);
            kernel(weights, block, &mut results);
            store_tile(part, tile, first_row..first_row + block.num_rows, &results, out);
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
