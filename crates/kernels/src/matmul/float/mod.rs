//! Products with float weights: `acc = fma(w, x, acc)`, one input feature after the other.
//!
//! Rows are computed in blocks whose accumulators stay in registers over a stretch of input
//! features, with one or two tiles of output features at a time. One block reads the weights as
//! they are stored. Several blocks share weights that were widened to f32 once, a stretch that
//! the nearest cache holds; the accumulators then wait in `out` from stretch to stretch, which
//! changes where they are and not what is added to them.
//!
//! Work is split over row chunks, whose panels the second cache holds, and over tiles.

mod row_block;
mod row_panels;

pub(crate) use row_panels::RowPanels;

use crate::dispatch::for_each_lanes;
use crate::float_format::{Bf16, F16};
use crate::isa::Isa;
use crate::lanes::{LANES, LaneFloat, Lanes};
use crate::packed_matrix::{FloatTiles, FloatWeights, Part};
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use row_block::{Ahead, Sums, multiply};
use std::ops::Range;

/// Tiles that are computed together at most.
const MAX_TILES: usize = 2;
/// Input features of a stretch at most: 256 * 32 widened weights are 32 KiB.
const STRETCH: usize = 256;
/// Bytes of the panels that a row chunk reads again for each pair of tiles: half of a small
/// second cache.
const CHUNK_BYTES: usize = 1 << 20;
/// Units of work for each thread, where there are so many.
const UNITS_PER_THREAD: usize = 16;
/// How far ahead of use weights are asked for: about what arrives in the time that memory takes.
const AHEAD_BYTES: usize = 2048;

/// Multiplies the rows of `x` with a part of a matrix.
pub(super) fn float_product(
    isa: Isa,
    pool: &ThreadPool,
    x: &RowPanels,
    weights: &FloatTiles,
    part: &Part,
    out: &RowView<'_, f32>,
) {
    let num_tiles = part.out_features.div_ceil(LANES);
    let row_bytes = x.in_features() * size_of::<f32>();
    let blocks_per_chunk = (CHUNK_BYTES / row_bytes / x.max_rows()).max(1);
    let num_chunks = x.num_blocks().div_ceil(blocks_per_chunk);
    let pairs = num_tiles.div_ceil(MAX_TILES);
    let pairs_per_unit =
        (pairs * num_chunks / (pool.num_threads() * UNITS_PER_THREAD)).clamp(1, pairs);
    let units_per_chunk = pairs.div_ceil(pairs_per_unit);
    pool.claim(num_chunks * units_per_chunk, |unit| {
        let (chunk, unit) = (unit / units_per_chunk, unit % units_per_chunk);
        let first = x.num_blocks() * chunk / num_chunks;
        let end = x.num_blocks() * (chunk + 1) / num_chunks;
        let first_tile = unit * pairs_per_unit * MAX_TILES;
        let end_tile = (first_tile + pairs_per_unit * MAX_TILES).min(num_tiles);
        let unit = Unit { x, blocks: (first, end), tiles: (first_tile, end_tile), part, out };
        match weights.weights() {
            FloatWeights::F32(w) => unit_f32(isa, w, unit),
            FloatWeights::F16(w) => unit_f16(isa, w, unit),
            FloatWeights::Bf16(w) => unit_bf16(isa, w, unit),
        }
    });
}

/// Blocks of rows and tiles that one thread multiplies.
#[derive(Clone, Copy)]
struct Unit<'a> {
    x: &'a RowPanels,
    /// First block and the end.
    blocks: (usize, usize),
    /// First tile and the end.
    tiles: (usize, usize),
    part: &'a Part,
    out: &'a RowView<'a, f32>,
}

for_each_lanes! {
    fn unit_f32(w: &[[f32; LANES]], unit: Unit<'_>) = multiply_unit::<f32>
}
for_each_lanes! {
    fn unit_f16(w: &[[F16; LANES]], unit: Unit<'_>) = multiply_unit::<F16>
}
for_each_lanes! {
    fn unit_bf16(w: &[[Bf16; LANES]], unit: Unit<'_>) = multiply_unit::<Bf16>
}
for_each_lanes! {
    /// Returns the rows of a block at most.
    pub(super) fn max_rows() -> usize = max_rows_body
}

#[inline(always)]
fn max_rows_body<V: Lanes>(_proof: V::Proof) -> usize {
    row_block::max_rows::<V>()
}

#[inline(always)]
fn multiply_unit<V: Lanes, T: LaneFloat>(proof: V::Proof, w: &[[T; LANES]], unit: Unit<'_>) {
    if unit.blocks.1 - unit.blocks.0 == 1 {
        multiply_once::<V, T>(proof, w, unit);
    } else {
        multiply_again::<V, T>(proof, w, unit);
    }
}

/// Multiplies one block of rows with weights as they are stored.
#[inline(always)]
fn multiply_once<V: Lanes, T: LaneFloat>(proof: V::Proof, w: &[[T; LANES]], unit: Unit<'_>) {
    let in_features = unit.x.in_features();
    let block = unit.blocks.0;
    let rows = unit.x.rows(block);
    let mut sums = Sums::default();
    let step = row_block::tiles::<V>();
    for first in (unit.tiles.0..unit.tiles.1).step_by(step) {
        let num_tiles = step.min(unit.tiles.1 - first);
        let tiles: [_; MAX_TILES] = std::array::from_fn(|t| {
            let tile = first + t.min(num_tiles - 1);
            &w[tile * in_features..][..in_features]
        });
        sums.clear(rows.len());
        let ahead = Ahead::in_stream(tiles, AHEAD_BYTES);
        multiply::<V, T>(proof, tiles, unit.x.panel(block), rows.len(), ahead, &mut sums);
        for t in 0..num_tiles {
            store(&unit, rows.clone(), first + t, t, &sums);
        }
    }
}

/// Multiplies several blocks of rows with weights that are widened once.
#[inline(always)]
fn multiply_again<V: Lanes, T: LaneFloat>(proof: V::Proof, w: &[[T; LANES]], unit: Unit<'_>) {
    let in_features = unit.x.in_features();
    let num_stretches = in_features.div_ceil(STRETCH);
    let mut wide = [[[0.0_f32; LANES]; STRETCH]; MAX_TILES];
    let mut sums = Sums::default();
    let step = row_block::tiles::<V>();
    for first in (unit.tiles.0..unit.tiles.1).step_by(step) {
        let num_tiles = step.min(unit.tiles.1 - first);
        for stretch in 0..num_stretches {
            let begin = in_features * stretch / num_stretches;
            let end = in_features * (stretch + 1) / num_stretches;
            for t in 0..num_tiles {
                let from = &w[(first + t) * in_features..][begin..end];
                for (wide, from) in wide[t].iter_mut().zip(from) {
                    T::load::<V>(proof, from).store(wide);
                }
            }
            let [a, b] = &wide;
            let tiles = [&a[..end - begin], &b[..end - begin]];
            let ahead = Ahead::to_next(w, [first, first + 1], in_features, end);
            for block in unit.blocks.0..unit.blocks.1 {
                let rows = unit.x.rows(block);
                if stretch == 0 {
                    sums.clear(rows.len());
                } else {
                    (0..num_tiles).for_each(|t| load(&unit, rows.clone(), first + t, t, &mut sums));
                }
                let panel = &unit.x.panel(block)[begin * rows.len()..end * rows.len()];
                multiply::<V, f32>(proof, tiles, panel, rows.len(), ahead, &mut sums);
                (0..num_tiles).for_each(|t| store(&unit, rows.clone(), first + t, t, &sums));
            }
        }
    }
}

/// Reads accumulators of tile `tile` back from `out` to column `t` of `sums`.
#[inline(always)]
fn load(unit: &Unit<'_>, rows: Range<usize>, tile: usize, t: usize, sums: &mut Sums) {
    let len = LANES.min(unit.part.out_features - tile * LANES);
    for (row, sums) in rows.zip(&mut sums.0) {
        // SAFETY: one unit alone has these rows of this tile, and the piece ends here.
        let place = unsafe { unit.out.piece(row, unit.part.first_out + tile * LANES, len) };
        match place.as_chunks::<LANES>() {
            ([whole], []) => sums[t] = *whole,
            _ => sums[t][..len].copy_from_slice(place),
        }
    }
}

/// Writes column `t` of `sums` to the output features of tile `tile`.
#[inline(always)]
fn store(unit: &Unit<'_>, rows: Range<usize>, tile: usize, t: usize, sums: &Sums) {
    let len = LANES.min(unit.part.out_features - tile * LANES);
    for (row, sums) in rows.zip(&sums.0) {
        // SAFETY: one unit alone has these rows of this tile, and the piece ends here.
        let place = unsafe { unit.out.piece(row, unit.part.first_out + tile * LANES, len) };
        match place.as_chunks_mut::<LANES>() {
            ([whole], []) => *whole = sums[t],
            _ => place.copy_from_slice(&sums[t][..len]),
        }
    }
}
