//! Products of many rows with integer tiles, a few tiles at a time, with AVX-512 or AVX2.
//!
//! A panel is a few tiles, decoded once to bytes and f32 scales in a buffer that stays in the L1
//! cache, while many rows pass over it, four at a time. So a loaded weight meets four rows and, with
//! AVX-512, a loaded activation three tiles, and none is decoded anew for them, as
//! [`super::TileKernel`] does. Long rows are cut into stretches; the accumulators wait in a buffer
//! between them, so that the order of operations is that of one pass.
//!
//! Cost: decoding takes about as long as three or four rows of products; [`CHUNK_ROWS`] rows share
//! it.

mod activations;
mod avx2;
mod avx512;
mod lines;
mod row_batches;
mod tile_lines;

pub(crate) use activations::PanelActivations;

use crate::activation_rows::{GROUP_WORDS, PartSums, QUAD};
use crate::isa::{Avx2, Avx512, Isa};
use crate::lanes::LANES;
use crate::packed_matrix::{IntegerTiles, LINE_BYTES, Part, Scheme};
use crate::prefetch::{prefetch, prefetch_for_later};
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use activations::{ActivationForm, MAX_WIDE, PanelGroup, QuadRows, Stretches, WideWord, ZERO};
use lines::{CodeLine, FloatLine, SumLine};
use std::cell::RefCell;
use std::ops::Range;
use tile_lines::TileLines;

/// Most tiles of a panel.
const PANEL_TILES: usize =
    if avx512::NUM_TILES > avx2::NUM_TILES { avx512::NUM_TILES } else { avx2::NUM_TILES };
/// Rows that share a decoded panel.
const CHUNK_ROWS: usize = 256;
/// The same where there would be too few units of work for all threads.
const LEAST_CHUNK_ROWS: usize = 32;
/// Units of work for each thread that even out.
const UNITS_PER_THREAD: usize = 4;

/// What dot products of a group's part begin with, for each tile of a panel.
type Starts = [SumLine; PANEL_TILES];

/// A decoded stretch of a few tiles.
#[derive(Clone, Copy)]
struct Panel<'a> {
    /// `[num_groups, GROUP_WORDS, num_tiles]`
    codes: &'a [CodeLine],
    /// Scales, then minimums: `[num_groups, vectors of the format, num_tiles]`.
    scales: &'a [FloatLine],
    /// Words of a group that share a scale.
    part_words: usize,
    /// What sums in 16 bits begin with, where there are such; the starts make up for it.
    first_sum: i16,
    /// Whether the stretch is the first, whose accumulators are 0 whatever the memory holds.
    is_first: bool,
}

/// Multiplies four rows, one group after the other, with a panel, and adds to their sums. The
/// starts are those of the groups, `[num_groups, parts]`, and room for as many as rows have wide
/// words.
type PanelKernel = fn(Panel<'_>, (&[PanelGroup], &[WideWord]), &mut [Starts], QuadSums<'_>);

/// What the sums of four rows are added to, and where they go.
struct QuadSums<'a> {
    /// `[QUAD, num_tiles]`
    acc: &'a mut [FloatLine],
    /// With the last stretch, where the sums go instead of the accumulators: `num_tiles` tiles of
    /// each row.
    results: Option<[&'a mut [f32]; QUAD]>,
}

/// Asks for the places of results.
#[inline(always)]
fn prefetch_results(results: &Option<[&mut [f32]; QUAD]>) {
    for row in results.iter().flatten() {
        row.iter().step_by(LINE_BYTES / size_of::<f32>()).for_each(prefetch);
    }
}

/// The memory of a thread, kept from product to product.
#[derive(Default)]
struct Scratch {
    codes: Vec<CodeLine>,
    scales: Vec<FloatLine>,
    starts: Vec<Starts>,
    /// `[num_rows, num_tiles]`
    acc: Vec<FloatLine>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// An instruction set that has panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PanelIsa {
    /// AVX2, with or without AVX-VNNI.
    Avx2(Avx2),
    /// AVX-512 with VNNI.
    Avx512(Avx512),
}

impl PanelIsa {
    /// Returns the instruction set if it has panels.
    pub(super) fn of(isa: Isa) -> Option<Self> {
        match isa {
            Isa::Scalar => None,
            Isa::Avx2(proof) => Some(Self::Avx2(proof)),
            Isa::Avx512(proof) => Some(Self::Avx512(proof)),
        }
    }

    /// Returns how many rows it takes for panels to be faster than tiles that are read and decoded
    /// anew for each block of rows.
    pub(super) fn least_rows(self) -> usize {
        match self {
            Self::Avx2(_) => avx2::LEAST_ROWS,
            Self::Avx512(_) => avx512::LEAST_ROWS,
        }
    }

    /// Returns what products with weights of a scheme ask of their activations.
    pub(super) fn form(self, scheme: Scheme) -> ActivationForm {
        let parts = if scheme.scales.has_halves() { PartSums::Halves } else { PartSums::Group };
        let zero = match self {
            Self::Avx2(proof) => avx2::zero(proof, scheme),
            Self::Avx512(_) => ZERO,
        };
        ActivationForm { sums: scheme.scales.has_minimum().then_some(parts), zero }
    }

    /// Returns what sums in 16 bits begin with.
    fn first_sum(self, scheme: Scheme) -> i16 {
        match self {
            Self::Avx2(proof) => avx2::first_sum(proof, scheme),
            Self::Avx512(_) => 0,
        }
    }

    /// Returns how many tiles a panel has, but for the last.
    fn num_tiles(self) -> usize {
        match self {
            Self::Avx2(_) => avx2::NUM_TILES,
            Self::Avx512(_) => avx512::NUM_TILES,
        }
    }

    /// Returns the kernel for a number of tiles.
    fn kernel(self, scheme: Scheme, num_tiles: usize) -> PanelKernel {
        match self {
            Self::Avx2(proof) => avx2::kernel(proof, scheme, num_tiles),
            Self::Avx512(proof) => avx512::kernel(proof, scheme.scales, num_tiles),
        }
    }

    /// Decodes the stored codes and scales of tile `place` of a panel.
    fn decode(
        self,
        scheme: Scheme,
        stored: (&[u8], &[u8]),
        place: usize,
        lines: &mut TileLines<'_>,
    ) {
        match self {
            Self::Avx2(proof) => avx2::decode(proof, scheme, stored, place, lines),
            Self::Avx512(proof) => avx512::decode(proof, scheme, stored, place, lines),
        }
    }

    /// Quantises up to four rows, the first of `x`; rows that it lacks are zeros. The second come
    /// after them.
    fn quantize_quad(
        self,
        x: [&[f32]; 2],
        form: ActivationForm,
        stretches: Stretches,
        quad: QuadRows<'_>,
    ) {
        match self {
            Self::Avx2(proof) => avx2::quantize_quad(proof, x, form, stretches, quad),
            Self::Avx512(proof) => avx512::quantize_quad(proof, x, form, stretches, quad),
        }
    }
}

/// What a product of many rows reads and writes.
#[derive(Clone, Copy)]
pub(super) struct ManyRows<'a> {
    pub(super) isa: PanelIsa,
    /// Quantised in the form that the weights ask for.
    pub(super) x: &'a PanelActivations,
    pub(super) weights: &'a IntegerTiles,
    pub(super) part: &'a Part,
    pub(super) out: &'a RowView<'a, f32>,
}

impl<'a> ManyRows<'a> {
    /// Multiplies all rows with all tiles.
    pub(super) fn multiply(self, pool: &ThreadPool) {
        let num_tiles = self.part.out_features.div_ceil(LANES);
        let panel_tiles = self.isa.num_tiles();
        let num_panels = num_tiles.div_ceil(panel_tiles);
        let num_rows = self.x.num_rows();
        let mut chunk_rows = CHUNK_ROWS;
        let few = pool.num_threads() * UNITS_PER_THREAD;
        while chunk_rows > LEAST_CHUNK_ROWS && num_rows.div_ceil(chunk_rows) * num_panels < few {
            chunk_rows /= 2;
        }
        pool.claim(num_rows.div_ceil(chunk_rows) * num_panels, |unit| {
            let (chunk, panel) = (unit / num_panels, unit % num_panels);
            let rows = chunk * chunk_rows..num_rows.min((chunk + 1) * chunk_rows);
            let tiles = panel * panel_tiles..num_tiles.min((panel + 1) * panel_tiles);
            // Threads that keep pace take every `num_threads`th panel.
            let next = (panel + pool.num_threads()) * panel_tiles;
            let next = next.min(num_tiles)..num_tiles.min(next + panel_tiles);
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
        let scheme = self.weights.scheme();
        let kernel = self.isa.kernel(scheme, num_tiles);
        let num_parts = if scheme.scales.has_halves() { 2 } else { 1 };
        let stretches = self.x.stretches();
        let next = NextCodes::new(self.weights, next, num_quads);
        scratch.acc.resize(num_quads * QUAD * num_tiles, FloatLine([0.0; LANES]));
        for stretch in 0..stretches.len() {
            let x = self.x.stretch(stretch);
            self.decode(scratch, tiles.clone(), x.groups(), num_parts);
            let panel = Panel {
                codes: &scratch.codes,
                scales: &scratch.scales,
                part_words: GROUP_WORDS / num_parts,
                first_sum: self.isa.first_sum(scheme),
                is_first: stretch == 0,
            };
            let is_last = stretch + 1 == stretches.len();
            let acc = scratch.acc.chunks_exact_mut(QUAD * num_tiles);
            for (quad, acc) in acc.enumerate() {
                let row = rows.start + quad * QUAD;
                let rows = row..rows.end.min(row + QUAD);
                let mut results = None;
                if is_last {
                    next.prefetch_share(quad);
                    results = self.whole_results(rows.clone(), tiles.clone());
                }
                let in_acc = results.is_none();
                let sums = QuadSums { acc: &mut *acc, results };
                kernel(panel, x.quad(row / QUAD), &mut scratch.starts, sums);
                if is_last && in_acc {
                    self.store(rows, tiles.clone(), acc);
                }
            }
        }
    }

    /// Returns the places of the results of four rows and whole tiles, which the kernel can write
    /// itself, and nothing where there are fewer rows or a tile is cut off.
    fn whole_results(
        self,
        rows: Range<usize>,
        tiles: Range<usize>,
    ) -> Option<[&'a mut [f32]; QUAD]> {
        if rows.len() < QUAD || tiles.end * LANES > self.part.out_features {
            return None;
        }
        let first = self.part.first_out + tiles.start * LANES;
        Some(std::array::from_fn(|r| {
            // SAFETY: as in `store`, which is only called where there is nothing here.
            unsafe { self.out.piece(rows.start + r, first, tiles.len() * LANES) }
        }))
    }

    /// Writes the accumulators `[num_rows, num_tiles]` of rows that the kernel did not.
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
    fn decode(
        self,
        scratch: &mut Scratch,
        tiles: Range<usize>,
        groups: Range<usize>,
        num_parts: usize,
    ) {
        let (num_tiles, num_groups) = (tiles.len(), groups.len());
        let scheme = self.weights.scheme();
        scratch.codes.resize(num_groups * GROUP_WORDS * num_tiles, CodeLine([0; LANES * 4]));
        let num_scales = num_groups * scheme.scales.vectors() * num_tiles;
        scratch.scales.resize(num_scales, FloatLine([0.0; LANES]));
        let num_starts = num_groups * (1 + MAX_WIDE) * num_parts;
        scratch.starts.resize(num_starts, [SumLine([0; LANES]); PANEL_TILES]);
        let mut lines = TileLines {
            codes: &mut scratch.codes,
            scales: &mut scratch.scales,
            starts: &mut scratch.starts,
            num_tiles,
        };
        for (place, tile) in tiles.enumerate() {
            let stored = self.weights.tile(tile).stretch(groups.clone());
            self.isa.decode(scheme, stored, place, &mut lines);
        }
    }
}

/// The codes of the tiles that come next, the bulk of what they are. They are read when the L1 cache
/// has seen many rows, so each four rows ask for a share of them.
struct NextCodes<'a> {
    tiles: [&'a [u8]; PANEL_TILES],
    /// Whole cache lines.
    share_bytes: usize,
}

impl<'a> NextCodes<'a> {
    fn new(weights: &'a IntegerTiles, tiles: Range<usize>, num_shares: usize) -> Self {
        let mut codes = [&[][..]; PANEL_TILES];
        for (codes, tile) in codes.iter_mut().zip(tiles) {
            *codes = weights.tile(tile).codes;
        }
        let share_bytes = codes[0].len().div_ceil(num_shares).next_multiple_of(LINE_BYTES);
        Self { tiles: codes, share_bytes }
    }

    /// Asks for a share of each tile.
    fn prefetch_share(&self, share: usize) {
        let first = share * self.share_bytes;
        for codes in self.tiles {
            let end = codes.len().min(first + self.share_bytes);
            let share = codes.get(first..end).unwrap_or_default();
            share.iter().step_by(LINE_BYTES).for_each(prefetch_for_later);
        }
    }
}
