//! Products of many rows with integer tiles, three tiles at a time.
//!
//! A panel is a few tiles, decoded once to bytes and f32 scales in a buffer that stays in the L1
//! cache, while many rows pass over it, four at a time. So a loaded activation meets three tiles
//! and a loaded weight four rows, where [`super::TileKernel`] loads each activation for one tile.
//! Long rows are cut into stretches of [`MAX_GROUPS`] groups; the accumulators wait in a buffer
//! between them, so that the order of operations is that of one pass.
//!
//! Cost: decoding takes about as long as two rows of products; [`CHUNK_ROWS`] rows share it.

use crate::activation_rows::{
    GROUP_WORDS, HighCodes, MAX_BLOCK_ROWS, QUAD, QuadGroup, QuantizedRows,
};
use crate::dispatch::for_each_lanes;
use crate::float_format::F16;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::packed_matrix::{CodeWidth, IntegerTiles, LINE_BYTES, Part, Scheme};
use crate::prefetch::prefetch;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use std::cell::RefCell;
use std::ops::Range;

/// Tiles of a panel: with four rows, twelve chains of products hide an instruction's latency.
pub(super) const PANEL_TILES: usize = 3;
/// Groups of a stretch: with three tiles 35 KiB, which leaves room for rows in an L1 of 48 KiB.
const MAX_GROUPS: usize = 18;
/// Rows that share a decoded panel.
const CHUNK_ROWS: usize = 256;
/// The same where there would be too few units of work for all threads.
const LEAST_CHUNK_ROWS: usize = 32;
/// Units of work for each thread that even out.
const UNITS_PER_THREAD: usize = 4;

/// Four code bytes of each lane.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct CodeLine(pub(super) [u8; LANES * 4]);

/// One f32 of each lane.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct FloatLine(pub(super) [f32; LANES]);

/// A decoded stretch of a few tiles.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// `[num_groups, GROUP_WORDS, num_tiles]`
    pub(super) codes: &'a [CodeLine],
    /// Scales, then minimums: `[num_groups, vectors of the format, num_tiles]`.
    pub(super) scales: &'a [FloatLine],
    /// Words of a group that share a scale.
    pub(super) part_words: usize,
    /// Whether the stretch is the first, whose accumulators are 0 whatever the memory holds.
    pub(super) is_first: bool,
}

/// Multiplies four rows, one group after the other, with a panel, and adds to the accumulators
/// `[QUAD, num_tiles]`.
pub(super) type PanelKernel = fn(Panel<'_>, &[QuadGroup], &[HighCodes], &mut [FloatLine]);

/// The memory of a thread, kept from product to product.
#[derive(Default)]
struct Scratch {
    codes: Vec<CodeLine>,
    scales: Vec<FloatLine>,
    /// `[num_rows, num_tiles]`
    acc: Vec<FloatLine>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// What a product of many rows reads and writes.
#[derive(Clone, Copy)]
pub(super) struct ManyRows<'a> {
    pub(super) isa: Isa,
    pub(super) x: &'a QuantizedRows,
    pub(super) weights: &'a IntegerTiles,
    pub(super) part: &'a Part,
    pub(super) out: &'a RowView<'a, f32>,
    /// The kernel for each number of tiles from 1 on.
    pub(super) kernels: [PanelKernel; PANEL_TILES],
}

impl ManyRows<'_> {
    /// Multiplies all rows with all tiles.
    pub(super) fn multiply(self, pool: &ThreadPool) {
        let num_tiles = self.part.out_features.div_ceil(LANES);
        let num_panels = num_tiles.div_ceil(PANEL_TILES);
        let num_rows = self.x.num_rows();
        let mut chunk_rows = CHUNK_ROWS;
        let few = pool.num_threads() * UNITS_PER_THREAD;
        while chunk_rows > LEAST_CHUNK_ROWS && num_rows.div_ceil(chunk_rows) * num_panels < few {
            chunk_rows /= 2;
        }
        pool.claim(num_rows.div_ceil(chunk_rows) * num_panels, |unit| {
            let (chunk, panel) = (unit / num_panels, unit % num_panels);
            let rows = chunk * chunk_rows..num_rows.min((chunk + 1) * chunk_rows);
            let tiles = panel * PANEL_TILES..num_tiles.min((panel + 1) * PANEL_TILES);
            // Threads that keep pace take every `num_threads`th panel.
            let next = (panel + pool.num_threads()) * PANEL_TILES;
            let next = next.min(num_tiles)..num_tiles.min(next + PANEL_TILES);
            SCRATCH.with_borrow_mut(|scratch| self.multiply_panel(scratch, rows, tiles, next));
        });
    }

    /// Multiplies some rows with some tiles; the tiles of the `next` unit are asked for meanwhile.
    fn multiply_panel(
        self,
        scratch: &mut Scratch,
        rows: Range<usize>,
        tiles: Range<usize>,
        next: Range<usize>,
    ) {
        let num_tiles = tiles.len();
        let num_quads = rows.len().div_ceil(QUAD);
        let kernel = self.kernels[num_tiles - 1];
        let num_groups = self.weights.num_groups();
        let num_stretches = num_groups.div_ceil(MAX_GROUPS);
        let num_parts = if self.weights.scheme().scales.has_halves() { 2 } else { 1 };
        let part_words = GROUP_WORDS / num_parts;
        scratch.acc.resize(num_quads * QUAD * num_tiles, FloatLine([0.0; LANES]));
        for stretch in 0..num_stretches {
            let start = |stretch: usize| num_groups * stretch / num_stretches;
            let groups = start(stretch)..start(stretch + 1);
            self.decode(scratch, tiles.clone(), groups.clone());
            let panel = Panel {
                codes: &scratch.codes,
                scales: &scratch.scales,
                part_words,
                is_first: stretch == 0,
            };
            let acc = scratch.acc.chunks_exact_mut(QUAD * num_tiles);
            for (quad, acc) in acc.enumerate() {
                let row = rows.start + quad * QUAD;
                let first_row = row / MAX_BLOCK_ROWS * MAX_BLOCK_ROWS;
                let (quads, high) = self.x.block(first_row).quad((row - first_row) / QUAD);
                let is_last = stretch + 1 == num_stretches;
                let rows = row..rows.end.min(row + QUAD);
                if is_last {
                    self.prefetch_out(rows.clone(), tiles.clone());
                    self.prefetch_tiles(next.clone(), quad, num_quads);
                }
                kernel(panel, &quads[groups.clone()], &high[groups.clone()], acc);
                if is_last {
                    // At once, so that the stores to memory run beside the next products.
                    self.store(rows, tiles.clone(), acc);
                }
            }
        }
    }

    /// Asks for the place of some results, so that storing them does not wait.
    fn prefetch_out(self, rows: Range<usize>, tiles: Range<usize>) {
        let first = self.part.first_out + tiles.start * LANES;
        let end = self.part.first_out + self.part.out_features.min(tiles.end * LANES);
        for row in rows {
            // SAFETY: the results are this unit's own, as in `store`.
            let place = unsafe { self.out.piece(row, first, end - first) };
            place.iter().step_by(LINE_BYTES / size_of::<f32>()).for_each(prefetch);
        }
    }

    /// Asks for one of `num_parts` parts of the tiles' codes, the bulk of what they are.
    fn prefetch_tiles(self, tiles: Range<usize>, part: usize, num_parts: usize) {
        for tile in tiles {
            let codes = self.weights.tile(tile).codes;
            let part = codes.len() * part / num_parts..codes.len() * (part + 1) / num_parts;
            codes[part].iter().step_by(LINE_BYTES).for_each(prefetch);
        }
    }

    /// Writes the accumulators `[num_rows, num_tiles]` of some of a unit's rows.
    fn store(self, rows: Range<usize>, tiles: Range<usize>, acc: &[FloatLine]) {
        let first = tiles.start * LANES;
        let len = (tiles.len() * LANES).min(self.part.out_features - first);
        for (row, acc) in rows.zip(acc.chunks_exact(tiles.len())) {
            // SAFETY: each unit of rows and tiles belongs to one thread, and their output features
            // are its own.
            let place = unsafe { self.out.piece(row, self.part.first_out + first, len) };
            place.copy_from_slice(&bytemuck::cast_slice(acc)[..len]);
        }
    }

    /// Decodes a stretch of the tiles to the scratch memory.
    fn decode(self, scratch: &mut Scratch, tiles: Range<usize>, groups: Range<usize>) {
        let num_tiles = tiles.len();
        let vectors = self.weights.scheme().scales.vectors();
        let num_codes = groups.len() * GROUP_WORDS * num_tiles;
        scratch.codes.resize(num_codes, CodeLine([0; LANES * 4]));
        scratch.scales.resize(groups.len() * vectors * num_tiles, FloatLine([0.0; LANES]));
        for (place, tile) in tiles.enumerate() {
            let stored = self.weights.tile(tile).stretch(groups.clone());
            let lines = (&mut scratch.codes[place..], &mut scratch.scales[place..]);
            decode_tile(self.isa, self.weights.scheme(), stored, lines, num_tiles);
        }
    }
}

for_each_lanes! {
    /// Writes the stored codes and scales of a tile to every `stride`th line.
    fn decode_tile(scheme: Scheme, stored: (&[u8], &[u8]), lines: (&mut [CodeLine], &mut [FloatLine]), stride: usize) = decode_tile_body
}

#[inline(always)]
fn decode_tile_body<V: Lanes>(
    proof: V::Proof,
    scheme: Scheme,
    (stored_codes, stored_scales): (&[u8], &[u8]),
    (codes, scales): (&mut [CodeLine], &mut [FloatLine]),
    stride: usize,
) {
    let stored = stored_codes.as_chunks::<{ LANES * 4 }>().0;
    match scheme.width {
        CodeWidth::Byte => {
            for (line, stored) in codes.iter_mut().step_by(stride).zip(stored) {
                line.0 = *stored;
            }
        }
        CodeWidth::Nibble => {
            const VECTORS: usize = GROUP_WORDS / 2;
            let groups = codes.chunks_mut(GROUP_WORDS * stride);
            for (group, stored) in groups.zip(stored.as_chunks::<VECTORS>().0) {
                for (i, bytes) in stored.iter().enumerate() {
                    let low = &mut group[i * stride].0;
                    low.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte & 0x0f);
                    let high = &mut group[(i + VECTORS) * stride].0;
                    high.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte >> 4);
                }
            }
        }
    }
    if scheme.scales.element_bytes() == size_of::<F16>() {
        let stored: &[F16] = bytemuck::cast_slice(stored_scales);
        let stored = stored.as_chunks::<LANES>().0;
        for (line, stored) in scales.iter_mut().step_by(stride).zip(stored) {
            V::load_f16(proof, stored).store(&mut line.0);
        }
    } else {
        let stored: &[f32] = bytemuck::cast_slice(stored_scales);
        for (line, stored) in scales.iter_mut().step_by(stride).zip(stored.as_chunks().0) {
            line.0 = *stored;
        }
    }
}
