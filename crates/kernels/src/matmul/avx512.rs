//! Integer tiles with AVX-512 VNNI: one `vpdpbusd` does four input features of 16 output features.
//!
//! A group of 32 input features of one tile is eight vectors of codes, decoded once and used for
//! every row of the pass. Each row adds eight dot products and one or two fused multiply-adds.

use super::stored_form::{
    ByteCodes, Codes, F16Scale, F16ScaleMinimum, F32HalfScales, F32HalfScalesMinimums, F32Scale,
    F32ScaleMinimum, NibbleCodes, Scales,
};
use super::{TileKernel, TileRows};
use crate::activation_rows::{GROUP_WORDS, HighCodes, QUAD, QuadGroup, RowBlock};
use crate::isa::Avx512;
use crate::lanes::LANES;
use crate::packed_matrix::{CodeWidth, IntegerTile, ScaleFormat, Scheme};
use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm256_loadu_si256, _mm512_add_epi32, _mm512_and_si512,
    _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_srli_epi16,
    _mm512_storeu_ps,
};

/// Bytes of one vector.
const VECTOR: usize = 64;

/// Returns the kernel for tiles of `scheme`; the proof is what makes calling it sound.
pub(super) fn kernel(_proof: Avx512, scheme: Scheme) -> TileKernel {
    use CodeWidth::{Byte, Nibble};
    use ScaleFormat::{F16, F16Minimum, F32, F32Halves, F32HalvesMinimums, F32Minimum};
    match (scheme.width, scheme.scales) {
        (Nibble, F16) => tile_rows::<NibbleCodes, F16Scale>,
        (Nibble, F16Minimum) => tile_rows::<NibbleCodes, F16ScaleMinimum>,
        (Nibble, F32) => tile_rows::<NibbleCodes, F32Scale>,
        (Nibble, F32Minimum) => tile_rows::<NibbleCodes, F32ScaleMinimum>,
        (Nibble, F32Halves) => tile_rows::<NibbleCodes, F32HalfScales>,
        (Nibble, F32HalvesMinimums) => tile_rows::<NibbleCodes, F32HalfScalesMinimums>,
        (Byte, F16) => tile_rows::<ByteCodes, F16Scale>,
        (Byte, F16Minimum) => tile_rows::<ByteCodes, F16ScaleMinimum>,
        (Byte, F32) => tile_rows::<ByteCodes, F32Scale>,
        (Byte, F32Minimum) => tile_rows::<ByteCodes, F32ScaleMinimum>,
        (Byte, F32Halves) => tile_rows::<ByteCodes, F32HalfScales>,
        (Byte, F32HalvesMinimums) => tile_rows::<ByteCodes, F32HalfScalesMinimums>,
    }
}

fn tile_rows<C: Codes, S: Scales>(tile: IntegerTile<'_>, rows: RowBlock<'_>, out: &mut TileRows) {
    // SAFETY: only `kernel` hands this function out, for a proof that AVX-512 is present.
    unsafe { tile_rows_avx512::<C, S>(tile, rows, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn tile_rows_avx512<C: Codes, S: Scales>(
    tile: IntegerTile<'_>,
    rows: RowBlock<'_>,
    out: &mut TileRows,
) {
    for first in (0..rows.num_rows).step_by(2 * QUAD) {
        let out = &mut out[first..];
        match rows.num_rows - first {
            1 => row_block::<1, 1, C, S>(tile, rows, first, out),
            2 => row_block::<1, 2, C, S>(tile, rows, first, out),
            3..=4 => row_block::<1, 4, C, S>(tile, rows, first, out),
            5 => row_block::<2, 1, C, S>(tile, rows, first, out),
            6 => row_block::<2, 2, C, S>(tile, rows, first, out),
            _ => row_block::<2, 4, C, S>(tile, rows, first, out),
        }
    }
}

/// Multiplies `QUADS` times four rows from `first_row` on, of the last four only the first `LAST`,
/// with the tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn row_block<const QUADS: usize, const LAST: usize, C: Codes, S: Scales>(
    tile: IntegerTile<'_>,
    rows: RowBlock<'_>,
    first_row: usize,
    out: &mut [[f32; LANES]],
) {
    const { assert!(matches!(QUADS, 1 | 2) && LAST <= QUAD) };
    let code_groups = tile.codes.chunks_exact(tile.scheme.code_bytes());
    let scale_groups = tile.scales.chunks_exact(tile.scheme.scale_bytes());
    let num_groups = code_groups.len();
    let quad_of = |quad: usize| {
        let (groups, high) = rows.quad(first_row / QUAD + quad);
        (&groups[..num_groups], &high[..num_groups])
    };
    let (first, last) = (quad_of(0), quad_of(QUADS - 1));
    let mut first_sums = [_mm512_setzero_ps(); QUAD];
    let mut last_sums = [_mm512_setzero_ps(); LAST];
    for (g, (w_codes, w_scales)) in code_groups.zip(scale_groups).enumerate() {
        let w_codes = load_codes::<C>(w_codes);
        let w_scales = load_scales::<S>(w_scales);
        if first_row == 0 {
            tile.prefetch_next(g, C::WIDTH, S::FORMAT);
        }
        macro_rules! add_quad {
            ($number:literal, $rows:ident, $quad:expr, $sums:expr) => {{
                let (quad, high) = (&$quad.0[g], &$quad.1[g]);
                let dots = part_dots::<LAST, $number, $rows, 0, C, S>(&w_codes, quad, high);
                add_part::<$rows, 0, S>($sums, dots, &w_scales, quad);
                if S::HALVES {
                    let dots = part_dots::<LAST, $number, $rows, 1, C, S>(&w_codes, quad, high);
                    add_part::<$rows, 1, S>($sums, dots, &w_scales, quad);
                }
            }};
        }
        if QUADS == 2 {
            add_quad!(0, QUAD, first, &mut first_sums);
            add_quad!(1, LAST, last, &mut last_sums);
        } else {
            add_quad!(2, LAST, last, &mut last_sums);
        }
    }
    let sums = first_sums.iter().take((QUADS - 1) * QUAD).chain(&last_sums);
    for (out, sum) in out.iter_mut().zip(sums) {
        store_floats(out, *sum);
    }
}

/// Returns the dot products of a part of a group in `ROWS` rows, the zero point's share included.
/// The rows' chains of instructions run side by side.
///
/// `LAST` and the number of the caller make each instance one that is called once, so that it is
/// inlined: only then do codes and dot products stay in registers.
#[expect(clippy::needless_range_loop, reason = "words and rows are indexed alike")]
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn part_dots<
    const LAST: usize,
    const CALLER: usize,
    const ROWS: usize,
    const PART: usize,
    C: Codes,
    S: Scales,
>(
    w: &[__m512i; GROUP_WORDS],
    quad: &QuadGroup,
    high: &HighCodes,
) -> [__m512i; ROWS] {
    let part_words = if S::HALVES { GROUP_WORDS / 2 } else { GROUP_WORDS };
    let words = PART * part_words..(PART + 1) * part_words;
    let offsets = &quad.offsets[PART];
    let mut dots = [_mm512_setzero_si512(); ROWS];
    if quad.high_words == 0 {
        for r in 0..ROWS {
            dots[r] = _mm512_set1_epi32(offsets[r]);
        }
    } else {
        for k in words.clone() {
            for r in 0..ROWS {
                dots[r] = _mm512_dpbusd_epi32(dots[r], w[k], _mm512_set1_epi32(high[r][k]));
            }
        }
        for r in 0..ROWS {
            dots[r] = add_offset(dots[r], offsets[r]);
        }
    }
    for k in words {
        for r in 0..ROWS {
            dots[r] = _mm512_dpbusd_epi32(dots[r], w[k], _mm512_set1_epi32(quad.codes[r][k]));
        }
    }
    dots
}

/// Returns `256 * high + offset`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_offset(high: __m512i, offset: i32) -> __m512i {
    _mm512_add_epi32(_mm512_slli_epi32::<8>(high), _mm512_set1_epi32(offset))
}

/// Adds the scaled dot products of a part of a group, and its minimum's share.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_part<const ROWS: usize, const PART: usize, S: Scales>(
    acc: &mut [__m512; ROWS],
    dots: [__m512i; ROWS],
    w_scales: &PartScales,
    quad: &QuadGroup,
) {
    for r in 0..ROWS {
        let scale = _mm512_mul_ps(w_scales.scales[PART], _mm512_set1_ps(quad.scales[r]));
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), scale, acc[r]);
        if S::MINIMUM {
            let sum = _mm512_set1_ps(quad.sums[PART][r]);
            acc[r] = _mm512_fmadd_ps(w_scales.minimums[PART], sum, acc[r]);
        }
    }
}

/// Decodes the eight code vectors of a group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_codes<C: Codes>(bytes: &[u8]) -> [__m512i; GROUP_WORDS] {
    let vectors = bytes.as_chunks::<VECTOR>().0;
    let mut codes = [_mm512_setzero_si512(); GROUP_WORDS];
    if C::NIBBLES {
        let mask = _mm512_set1_epi8(0x0f);
        let vectors = vectors.first_chunk::<{ GROUP_WORDS / 2 }>().expect("a group has 4 vectors");
        for (i, vector) in vectors.iter().enumerate() {
            let both = load(vector);
            codes[i] = _mm512_and_si512(both, mask);
            let high = _mm512_srli_epi16::<4>(both);
            codes[i + GROUP_WORDS / 2] = _mm512_and_si512(high, mask);
        }
    } else {
        let vectors = vectors.first_chunk::<GROUP_WORDS>().expect("a group has 8 vectors");
        for (code, vector) in codes.iter_mut().zip(vectors) {
            *code = load(vector);
        }
    }
    codes
}

/// The scales and minimums of the parts of a group.
struct PartScales {
    scales: [__m512; 2],
    minimums: [__m512; 2],
}

/// Returns the scales of a group, the same for both halves where it has one, and its minimums,
/// which mean nothing where it has none.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_scales<S: Scales>(bytes: &[u8]) -> PartScales {
    let num_parts = if S::HALVES { 2 } else { 1 };
    let num_vectors = if S::MINIMUM { num_parts * 2 } else { num_parts };
    let mut vectors = [_mm512_setzero_ps(); 4];
    for (i, vector) in vectors.iter_mut().enumerate().take(num_vectors) {
        *vector = if S::HALF_FLOATS {
            load_half_floats(&bytes.as_chunks::<{ VECTOR / 2 }>().0[i])
        } else {
            load_floats(&bytes.as_chunks::<VECTOR>().0[i])
        };
    }
    let [a, b, c, d] = vectors;
    if S::HALVES {
        PartScales { scales: [a, b], minimums: [c, d] }
    } else {
        PartScales { scales: [a, a], minimums: [b, b] }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; VECTOR]) -> __m512i {
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_floats(bytes: &[u8; VECTOR]) -> __m512 {
    // SAFETY: as in `load`; every bit pattern is an f32.
    unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_half_floats(bytes: &[u8; VECTOR / 2]) -> __m512 {
    // SAFETY: the array is half a vector long; the instruction needs no alignment.
    let halves = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast::<__m256i>()) };
    _mm512_cvtph_ps(halves)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_floats(out: &mut [f32; LANES], vector: __m512) {
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), vector) };
}
