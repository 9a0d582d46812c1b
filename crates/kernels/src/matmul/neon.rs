//! Integer tiles with NEON: four vectors of four output features make a tile.
//!
//! Codes are multiplied as signed bytes. Those around a zero point of 128 lose it by a flipped top
//! bit; all others are below 64 and positive as they are, and their zero point's share is added to
//! the dot product. What bytes are multiplied with is up to [`ByteDots`].
//!
//! A group of a quarter of the tile is eight vectors of codes, decoded once for all rows of a pass.
//! Up to four rows read the tile once, straight ahead; eight rows read it twice, and decode it half
//! as often for each row.

mod byte_dots;

use super::{TileKernel, TileRows};
use crate::activation_rows::{GroupCodes, HighCodes, QUAD, QuadGroup, RowBlock};
use crate::isa::{Dotprod, I8mm, Neon, NeonByteDots};
use crate::lanes::{LANES, widen_f16};
use crate::packed_matrix::{CodeWidth, IntegerTile, ScaleFormat, Scheme};
use byte_dots::{ByteDots, CodeVectors, Widening};
use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, uint8x16_t, vaddq_s32, vandq_u8, vcvtq_f32_s32, vdupq_n_f32,
    vdupq_n_s32, vdupq_n_u8, veorq_u8, vfmaq_f32, vfmaq_n_f32, vld1q_f32, vld1q_s32, vld1q_u8,
    vmulq_n_f32, vreinterpretq_s8_s32, vreinterpretq_s8_u8, vshlq_n_s32, vshrq_n_u8, vst1q_f32,
};

/// Lanes of one vector.
const QUARTER: usize = LANES / 4;
/// Bytes of one vector.
const VECTOR: usize = 16;
/// Bytes of a word of codes of all output features.
const TILE_VECTOR: usize = 4 * VECTOR;
/// The zero point of eight-bit codes, which must be read as signed.
const SIGNED_ZERO_POINT: u8 = 128;

/// Codes in nibbles.
const NIBBLES: u8 = 0;
/// Codes below 64 in bytes.
const SMALL_BYTES: u8 = 1;
/// Codes that use all eight bits, around a zero point of 128.
const SIGNED_BYTES: u8 = 2;

/// Calls an intrinsic that takes and returns registers only.
macro_rules! on_registers {
    ($call:expr) => {{
        // SAFETY: NEON is part of every processor that `isa` allows this file on, and the
        // intrinsic touches no memory.
        unsafe { $call }
    }};
}

/// Returns the kernel for tiles of `scheme`.
pub(super) fn kernel(neon: Neon, scheme: Scheme) -> TileKernel {
    match neon.byte_dots {
        NeonByteDots::Widening => kernel_with::<Widening>(scheme),
        NeonByteDots::Dotprod(_) => kernel_with::<Dotprod>(scheme),
        NeonByteDots::I8mm(_) => kernel_with::<I8mm>(scheme),
    }
}

fn kernel_with<D: Kernel>(scheme: Scheme) -> TileKernel {
    let two_scales = scheme.scales.has_halves();
    match (scheme.width, scheme.zero_point, two_scales) {
        (CodeWidth::Nibble, _, false) => D::tile_rows::<NIBBLES, 1>,
        (CodeWidth::Nibble, _, true) => D::tile_rows::<NIBBLES, 2>,
        (CodeWidth::Byte, SIGNED_ZERO_POINT, false) => D::tile_rows::<SIGNED_BYTES, 1>,
        (CodeWidth::Byte, SIGNED_ZERO_POINT, true) => D::tile_rows::<SIGNED_BYTES, 2>,
        (CodeWidth::Byte, _, false) => D::tile_rows::<SMALL_BYTES, 1>,
        (CodeWidth::Byte, _, true) => D::tile_rows::<SMALL_BYTES, 2>,
    }
}

/// Kernels that are compiled for one way of multiplying bytes.
trait Kernel: ByteDots {
    /// Multiplies a block of rows with a tile of these codes, whose groups have so many scales.
    ///
    /// # Panics
    /// When the processor does not have the instructions.
    fn tile_rows<const CODES: u8, const SCALES: usize>(
        tile: IntegerTile<'_>,
        rows: RowBlock<'_>,
        out: &mut TileRows,
    );
}

impl Kernel for Widening {
    fn tile_rows<const CODES: u8, const SCALES: usize>(
        tile: IntegerTile<'_>,
        rows: RowBlock<'_>,
        out: &mut TileRows,
    ) {
        passes::<_, CODES, SCALES>(Self, tile, rows, out);
    }
}

impl Kernel for Dotprod {
    fn tile_rows<const CODES: u8, const SCALES: usize>(
        tile: IntegerTile<'_>,
        rows: RowBlock<'_>,
        out: &mut TileRows,
    ) {
        #[target_feature(enable = "neon,dotprod")]
        fn compiled<const CODES: u8, const SCALES: usize>(
            dots: Dotprod,
            tile: IntegerTile<'_>,
            rows: RowBlock<'_>,
            out: &mut TileRows,
        ) {
            passes::<_, CODES, SCALES>(dots, tile, rows, out);
        }
        let dots = Self::detect().expect("`kernel` had the proof");
        // SAFETY: `dots` shows that the instructions are present.
        unsafe { compiled::<CODES, SCALES>(dots, tile, rows, out) }
    }
}

impl Kernel for I8mm {
    fn tile_rows<const CODES: u8, const SCALES: usize>(
        tile: IntegerTile<'_>,
        rows: RowBlock<'_>,
        out: &mut TileRows,
    ) {
        #[target_feature(enable = "neon,dotprod,i8mm")]
        fn compiled<const CODES: u8, const SCALES: usize>(
            dots: I8mm,
            tile: IntegerTile<'_>,
            rows: RowBlock<'_>,
            out: &mut TileRows,
        ) {
            passes::<_, CODES, SCALES>(dots, tile, rows, out);
        }
        let dots = Self::detect().expect("`kernel` had the proof");
        // SAFETY: `dots` shows that the instructions are present.
        unsafe { compiled::<CODES, SCALES>(dots, tile, rows, out) }
    }
}

/// Covers the block with passes of eight, four, two or one rows. Rows that are missing from the
/// last four are zeros, whose results nobody reads.
#[inline(always)]
fn passes<D: ByteDots, const CODES: u8, const SCALES: usize>(
    dots: D,
    tile: IntegerTile<'_>,
    rows: RowBlock<'_>,
    out: &mut TileRows,
) {
    match rows.num_rows {
        1 => pass::<D, CODES, SCALES, 1, 4>(dots, tile, rows, [0, 0], out),
        2 => pass::<D, CODES, SCALES, 2, 4>(dots, tile, rows, [0, 0], out),
        num_rows => {
            for row in (0..num_rows).step_by(8) {
                if num_rows - row <= QUAD {
                    pass::<D, CODES, SCALES, QUAD, 4>(dots, tile, rows, [row, 0], out);
                    continue;
                }
                for quarter in [0, 2] {
                    pass::<D, CODES, SCALES, 8, 2>(dots, tile, rows, [row, quarter], out);
                }
            }
        }
    }
}

/// Multiplies `ROWS` rows of the block with `QUARTERS` quarters of the tile, beginning with the
/// given row, a multiple of four, and quarter.
#[inline(always)]
fn pass<
    D: ByteDots,
    const CODES: u8,
    const SCALES: usize,
    const ROWS: usize,
    const QUARTERS: usize,
>(
    dots: D,
    tile: IntegerTile<'_>,
    rows: RowBlock<'_>,
    [first_row, first_quarter]: [usize; 2],
    out: &mut TileRows,
) {
    let quad = first_row / QUAD;
    let quads = [rows.quad(quad), rows.quad(if ROWS > QUAD { quad + 1 } else { quad })];
    let code_groups = tile.codes.chunks_exact(tile.scheme.code_bytes());
    let scale_groups = tile.scales.chunks_exact(tile.scheme.scale_bytes());
    let mut acc = [[on_registers!(vdupq_n_f32(0.0)); ROWS]; QUARTERS];
    for (g, (w_codes, w_scales)) in code_groups.zip(scale_groups).enumerate() {
        let x: [(&QuadGroup, &HighCodes, usize); ROWS] = std::array::from_fn(|r| {
            let (quads, high) = quads[r / QUAD];
            (&quads[g], &high[g], r % QUAD)
        });
        let x_codes = x.map(|(quad, _, r)| &quad.codes[r]);
        if (first_row, first_quarter) == (0, 0) {
            tile.prefetch_next(g, tile.scheme.width, tile.scheme.scales);
        }
        for (quarter, acc) in (first_quarter..).zip(&mut acc) {
            let weights = load_codes::<CODES>(w_codes, quarter);
            let scales = load_scales(tile.scheme.scales, w_scales, quarter);
            let sums = x.map(|(quad, _, r)| offsets::<CODES, SCALES>(quad, r));
            let mut sums = group_dots::<D, SCALES, ROWS>(dots, sums, &weights, x_codes);
            for (r, (quad, high, row)) in x.into_iter().enumerate() {
                if quad.high_words != 0 {
                    let zeros = [[0; SCALES]];
                    let [high] = group_dots::<D, SCALES, 1>(dots, zeros, &weights, [&high[row]]);
                    for (sum, high) in sums[r].iter_mut().zip(high) {
                        *sum = on_registers!(vaddq_s32(*sum, vshlq_n_s32::<8>(high)));
                    }
                }
                acc[r] = add_dots(acc[r], sums[r], scales, tile.scheme.scales, quad, row);
            }
        }
    }
    for (quarter, acc) in (first_quarter..).zip(acc) {
        for (out, acc) in out[first_row..].iter_mut().zip(acc) {
            let lanes = &mut out.as_chunks_mut::<QUARTER>().0[quarter];
            // SAFETY: `lanes` is 4 f32; NEON is present, as above.
            unsafe { vst1q_f32(lanes.as_mut_ptr(), acc) };
        }
    }
}

/// Returns what the zero point adds to each dot product of a group of row `r`.
#[inline(always)]
fn offsets<const CODES: u8, const SCALES: usize>(quad: &QuadGroup, r: usize) -> [i32; SCALES] {
    if CODES == SIGNED_BYTES {
        return [0; SCALES];
    }
    std::array::from_fn(|s| quad.offsets[s][r])
}

/// Returns the dot products of a group for each row: of the group, or of both halves apart where
/// they have two scales. Each begins at the sum given for it.
#[inline(always)]
fn group_dots<D: ByteDots, const SCALES: usize, const ROWS: usize>(
    dots: D,
    sums: [[i32; SCALES]; ROWS],
    weights: &[CodeVectors; 2],
    x: [&GroupCodes; ROWS],
) -> [[int32x4_t; SCALES]; ROWS] {
    let mut results = [[on_registers!(vdupq_n_s32(0)); SCALES]; ROWS];
    for (r, pair) in results.chunks_mut(2).enumerate() {
        let first = r * 2;
        for s in 0..SCALES {
            let halves = if SCALES == 1 { 0..2 } else { s..s + 1 };
            let weights = &weights[halves.clone()];
            let sum = |row: usize| on_registers!(vdupq_n_s32(sums[row][s]));
            let x_of = |row: usize| load_activations(x[row]);
            match pair {
                [a, b] => {
                    let (x_a, x_b) = (x_of(first), x_of(first + 1));
                    let x = [&x_a[halves.clone()], &x_b[halves.clone()]];
                    let sums = [sum(first), sum(first + 1)];
                    [a[s], b[s]] = dots.two_rows(sums, weights, x);
                }
                [a] => a[s] = dots.row(sum(first), weights, &x_of(first)[halves.clone()]),
                _ => unreachable!("chunks of two"),
            }
        }
    }
    results
}

/// Adds the scaled dot products of a group of row `r`, of both halves apart where they have two
/// scales, and the minimums' share.
#[inline(always)]
fn add_dots<const SCALES: usize>(
    mut acc: float32x4_t,
    dots: [int32x4_t; SCALES],
    scales: [float32x4_t; 4],
    format: ScaleFormat,
    quad: &QuadGroup,
    r: usize,
) -> float32x4_t {
    for (s, dot) in dots.into_iter().enumerate() {
        let scale = on_registers!(vmulq_n_f32(scales[s], quad.scales[r]));
        acc = on_registers!(vfmaq_f32(acc, vcvtq_f32_s32(dot), scale));
        if format.has_minimum() {
            acc = on_registers!(vfmaq_n_f32(acc, scales[SCALES + s], quad.sums[s][r]));
        }
    }
    acc
}

/// Decodes one quarter of the code vectors of a group, in its two halves.
#[inline(always)]
fn load_codes<const CODES: u8>(bytes: &[u8], quarter: usize) -> [CodeVectors; 2] {
    let vectors = bytes.as_chunks::<TILE_VECTOR>().0;
    let load = |vector: usize| load(&vectors[vector].as_chunks::<VECTOR>().0[quarter]);
    let signed = |codes: uint8x16_t| on_registers!(vreinterpretq_s8_u8(codes));
    if CODES == NIBBLES {
        let mask = on_registers!(vdupq_n_u8(0x0f));
        let both = [load(0), load(1), load(2), load(3)];
        let low = both.map(|both| signed(on_registers!(vandq_u8(both, mask))));
        return [low, both.map(|both| signed(on_registers!(vshrq_n_u8::<4>(both))))];
    }
    let flip = on_registers!(vdupq_n_u8(if CODES == SIGNED_BYTES { SIGNED_ZERO_POINT } else { 0 }));
    let code = |vector: usize| signed(on_registers!(veorq_u8(load(vector), flip)));
    [[code(0), code(1), code(2), code(3)], [code(4), code(5), code(6), code(7)]]
}

/// Returns the scales of a group, then its minimums.
#[inline(always)]
fn load_scales(format: ScaleFormat, bytes: &[u8], quarter: usize) -> [float32x4_t; 4] {
    let mut scales = [on_registers!(vdupq_n_f32(0.0)); 4];
    for (i, scale) in scales.iter_mut().enumerate().take(format.vectors()) {
        *scale = if format.element_bytes() == 2 {
            load_half_floats(&bytes.as_chunks::<{ VECTOR / 2 }>().0[i * 4 + quarter])
        } else {
            load_floats(&bytes.as_chunks::<VECTOR>().0[i * 4 + quarter])
        };
    }
    scales
}

/// Returns the activations of the two halves of a group.
#[inline(always)]
fn load_activations(codes: &GroupCodes) -> [int8x16_t; 2] {
    let halves = codes.as_chunks::<{ VECTOR / size_of::<i32>() }>().0;
    let load = |half: &[i32; VECTOR / size_of::<i32>()]| {
        // SAFETY: the array is one vector long; NEON is present, as above.
        let words = unsafe { vld1q_s32(half.as_ptr()) };
        on_registers!(vreinterpretq_s8_s32(words))
    };
    [load(&halves[0]), load(&halves[1])]
}

#[inline(always)]
fn load(bytes: &[u8; VECTOR]) -> uint8x16_t {
    // SAFETY: the array is one vector long; NEON is present, as above.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline(always)]
fn load_floats(bytes: &[u8; VECTOR]) -> float32x4_t {
    // SAFETY: as in `load`; the instruction needs no alignment, and every bit pattern is an f32.
    unsafe { vld1q_f32(bytes.as_ptr().cast()) }
}

#[inline(always)]
fn load_half_floats(bytes: &[u8; VECTOR / 2]) -> float32x4_t {
    let pairs = bytes.as_chunks::<2>().0;
    let half = |i: usize| u16::from_le_bytes(pairs[i]);
    widen_f16(&[half(0), half(1), half(2), half(3)])
}
