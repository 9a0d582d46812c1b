//! Products with float weights: `acc = fma(w, x, acc)`, one input feature after the other.
//!
//! Rows are computed in blocks whose accumulators stay in registers from the first input feature
//! to the last, with one or two tiles of output features at a time. Weights are read as they are
//! stored and widened on the way; activations come from panels, which put the rows of a block side
//! by side.
//!
//! Work is split over chunks of rows, whose panels the second cache holds, and over tiles, each of
//! which is read again for every block of the chunk. Weights come from memory once for each chunk.

mod row_block;
mod row_panels;

pub(crate) use row_panels::RowPanels;

use crate::dispatch::for_each_lanes;
use crate::float_format::{Bf16, F16, StoredFloat};
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::packed_matrix::{FloatTiles, FloatWeights, Part};
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use row_block::{MAX_ROWS, MAX_TILES, Place, RowBlock, Shape, multiply};
use std::ops::Range;

/// Bytes of a chunk's panels, which are read again for each tile: they share a second cache of
/// 1 MiB with a tile.
const CHUNK_BYTES: usize = 768 << 10;

/// Packs the rows of `x`, `[num_rows, in_features]`, for products with float weights.
pub(super) fn pack_rows(
    isa: Isa,
    pool: &ThreadPool,
    x: &[f32],
    in_features: usize,
    panels: &mut RowPanels,
) {
    panels.pack(pool, x, in_features, shape(isa).max_rows);
}

/// Multiplies rows with a part of a matrix.
pub(super) fn float_product(
    isa: Isa,
    pool: &ThreadPool,
    x: &RowPanels,
    weights: &FloatTiles,
    part: &Part,
    out: &RowView<'_, f32>,
) {
    let product = Product { isa, x, part, out };
    match weights.weights() {
        FloatWeights::F32(w) => product.run(pool, w),
        FloatWeights::F16(w) => product.run(pool, w),
        FloatWeights::Bf16(w) => product.run(pool, w),
    }
}

/// A stored float with its kernel.
trait TileFloat: StoredFloat {
    /// Multiplies a block of rows with tiles; see [`row_block::multiply`].
    fn multiply(isa: Isa, w: [&[[Self; LANES]]; MAX_TILES], block: RowBlock<'_>, place: Place<'_>);
}

macro_rules! tile_float {
    ($float:ty, $name:ident) => {
        for_each_lanes! {
            fn $name(w: [&[[$float; LANES]]; MAX_TILES], block: RowBlock<'_>, place: Place<'_>) = multiply::<$float>
        }

        impl TileFloat for $float {
            fn multiply(
                isa: Isa,
                w: [&[[Self; LANES]]; MAX_TILES],
                block: RowBlock<'_>,
                place: Place<'_>,
            ) {
                $name(isa, w, block, place);
            }
        }
    };
}
tile_float!(f32, multiply_f32);
tile_float!(F16, multiply_f16);
tile_float!(Bf16, multiply_bf16);

for_each_lanes! {
    fn shape() -> Shape = shape_body
}

#[inline(always)]
fn shape_body<V: Lanes>(_proof: V::Proof) -> Shape {
    Shape::of::<V>()
}

/// A product of rows with one part of a matrix.
struct Product<'a> {
    isa: Isa,
    x: &'a RowPanels,
    part: &'a Part,
    out: &'a RowView<'a, f32>,
}

impl Product<'_> {
    /// Multiplies with `w`, `[num_tiles, in_features]`, on all threads.
    fn run<T: TileFloat>(&self, pool: &ThreadPool, w: &[[T; LANES]]) {
        let num_blocks = self.x.num_blocks();
        let num_threads = pool.num_threads();
        let num_chunks = num_chunks(num_blocks, self.x.num_bytes(), num_threads);
        let num_tiles = self.part.out_features.div_ceil(LANES);
        // Blocks differ by a row at most; the larger ones decide.
        let step = shape(self.isa).tiles(self.x.rows(num_blocks - 1).len());
        let pieces = Pieces {
            num_units: num_tiles.div_ceil(step),
            share: 2 * num_threads.div_ceil(num_chunks),
        };
        // Neighbours in this order are different rows of the same tiles, so that threads share the
        // weights that they read and not the cache lines that they write.
        pool.claim(num_chunks * pieces.count(), |unit| {
            let start = |chunk| num_blocks * chunk / num_chunks;
            let blocks = start(unit % num_chunks)..start(unit % num_chunks + 1);
            for index in pieces.piece(unit / num_chunks) {
                for block in blocks.clone() {
                    self.multiply(w, block, index * step, step);
                }
            }
        });
    }

    /// Multiplies a block of rows with `step` tiles from `first` on.
    fn multiply<T: TileFloat>(&self, w: &[[T; LANES]], block: usize, first: usize, step: usize) {
        let in_features = self.x.in_features();
        let last = w.len() / in_features - 1;
        // Where there is no second tile, the first stands in, and its second results are dropped.
        let w = [first, (first + 1).min(last)].map(|tile| &w[tile * in_features..][..in_features]);
        let rows = self.x.rows(block);
        let block = RowBlock { x: self.x.panel(block), num_rows: rows.len() };
        let first_out = self.part.first_out + first * LANES;
        let len = (self.part.out_features - first * LANES).min(step * LANES);
        if len == step * LANES {
            let place = Place { out: self.out, first_row: rows.start, first_out };
            T::multiply(self.isa, w, block, place);
            return;
        }
        let mut results = [0.0; MAX_ROWS * MAX_TILES * LANES];
        let view = RowView::new(&mut results, MAX_TILES * LANES);
        T::multiply(self.isa, w, block, Place { out: &view, first_row: 0, first_out: 0 });
        for (row, results) in rows.zip(results.chunks_exact(MAX_TILES * LANES)) {
            // SAFETY: one unit alone has this tile of these rows, and `len` ends with the part.
            let place = unsafe { self.out.piece(row, first_out, len) };
            place.copy_from_slice(&results[..len]);
        }
    }
}

/// Returns how many chunks `num_blocks` blocks of `num_bytes` in all are cut into: enough for the
/// cache, and as many for each thread.
fn num_chunks(num_blocks: usize, num_bytes: usize, num_threads: usize) -> usize {
    match num_bytes.div_ceil(CHUNK_BYTES) {
        1 => 1,
        needed => needed.next_multiple_of(num_threads).min(num_blocks),
    }
}

/// A range of units cut into pieces that get smaller towards its end: long stretches of memory
/// for each thread, and little left to wait for.
#[derive(Clone, Copy)]
struct Pieces {
    num_units: usize,
    /// A piece is one part in so many of what is left.
    share: usize,
}

impl Pieces {
    fn count(self) -> usize {
        (0..).find(|&index| self.piece(index).is_empty()).expect("each piece takes a unit")
    }

    fn piece(self, index: usize) -> Range<usize> {
        let mut start = 0;
        let len = |start: usize| ((self.num_units - start) / self.share).max(1);
        for _ in 0..index {
            start = (start + len(start)).min(self.num_units);
        }
        start..(start + len(start)).min(self.num_units)
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "test numbers are cut on purpose")]
mod tests;
