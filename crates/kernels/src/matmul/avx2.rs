//! Integer tiles with AVX2: two vectors of eight output features make a tile.
//!
//! `vpmaddubsw` multiplies unsigned codes with signed activations and adds neighbours in 16 bits.
//! Codes below 64 leave room to add two such results before widening (2 * 2 * 63 * 127 < 2^15).
//! Eight-bit codes do not, so they are made signed again and the sign moved to the activation:
//! `|w| * sign(x, w)` is at most 2 * 128 * 127 < 2^15.
//!
//! With AVX-VNNI, `vpdpbusd` adds four products of unsigned codes and signed activations to 32 bits
//! at once, for codes of any width.

use super::{TileKernel, TileRows};
use crate::activation_rows::{GROUP_WORDS, GroupCodes, HighCodes, QUAD, QuadGroup, RowBlock};
use crate::isa::Avx2;
use crate::lanes::LANES;
use crate::packed_matrix::{CodeWidth, IntegerTile, ScaleFormat, Scheme};
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_abs_epi8,
    _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256, _mm256_andnot_si256, _mm256_cvtepi32_ps,
    _mm256_cvtph_ps, _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sign_epi8,
    _mm256_slli_epi32, _mm256_srl_epi16, _mm256_srli_epi16, _mm256_storeu_ps, _mm256_xor_si256,
};

/// Lanes of one vector; a tile has two halves of this width.
const HALF_LANES: usize = LANES / 2;
/// Bytes of one vector.
const VECTOR: usize = 32;
/// The zero point of eight-bit codes, which must be read as signed.
const SIGNED_ZERO_POINT: u8 = 128;

/// Returns the kernel for tiles of `scheme`; the proof is what makes calling it sound.
pub(super) fn kernel(proof: Avx2, scheme: Scheme) -> TileKernel {
    if proof.vnni.is_some() {
        return match scheme.width {
            CodeWidth::Nibble => tile_rows_with_vnni::<NIBBLES>,
            CodeWidth::Byte => tile_rows_with_vnni::<BYTES>,
        };
    }
    match (scheme.width, scheme.zero_point) {
        (CodeWidth::Nibble, _) => tile_rows::<NIBBLES>,
        (CodeWidth::Byte, SIGNED_ZERO_POINT) => tile_rows::<SIGNED_BYTES>,
        (CodeWidth::Byte, _) => tile_rows::<BYTES>,
    }
}

/// Codes in nibbles.
const NIBBLES: u8 = 0;
/// Codes in bytes; below 64 without AVX-VNNI.
const BYTES: u8 = 1;
/// Codes that use all eight bits, around a zero point of 128.
const SIGNED_BYTES: u8 = 2;

fn tile_rows<const CODES: u8>(tile: IntegerTile<'_>, rows: RowBlock<'_>, out: &mut TileRows) {
    // SAFETY: only `kernel` hands this function out, for a proof that AVX2 is present.
    unsafe { multiplications::tile_rows::<CODES>(tile, rows, out) }
}

fn tile_rows_with_vnni<const CODES: u8>(
    tile: IntegerTile<'_>,
    rows: RowBlock<'_>,
    out: &mut TileRows,
) {
    // SAFETY: only `kernel` hands this function out, for proofs that AVX2 and AVX-VNNI are present.
    unsafe { dot_products::tile_rows::<CODES>(tile, rows, out) }
}

/// Defines a module whose `tile_rows` multiplies with `$half_dots`, compiled for `$features`.
macro_rules! tile_rows_with {
    ($(#[$doc:meta])* $module:ident, $half_dots:ident, $word_dots:ident, $features:literal) => {
        $(#[$doc])*
        mod $module {
            use super::*;

            /// Covers the block with passes of four, two or one rows.
            #[target_feature(enable = $features)]
            pub(super) fn tile_rows<const CODES: u8>(
                tile: IntegerTile<'_>,
                rows: RowBlock<'_>,
                out: &mut TileRows,
            ) {
                for (index, out) in out.as_chunks_mut::<QUAD>().0.iter_mut().enumerate() {
                    let x = match rows.num_rows.saturating_sub(index * QUAD) {
                        0 => break,
                        num_rows => (num_rows, rows.quad(index)),
                    };
                    match x {
                        (1, x) => out[0] = one_row::<CODES>(tile, x),
                        (2, x) => quad_rows::<2, CODES>(tile, x, out),
                        (_, x) => quad_rows::<QUAD, CODES>(tile, x, out),
                    }
                }
            }

            /// Multiplies the first of four rows with the tile.
            ///
            /// The row's wide word, if a group has one, is added without a branch, of which the
            /// processor would guess one in six wrong.
            #[inline]
            #[target_feature(enable = $features)]
            fn one_row<const CODES: u8>(
                tile: IntegerTile<'_>,
                (quads, high): (&[QuadGroup], &[HighCodes]),
            ) -> [f32; LANES] {
                let format = tile.scheme.scales;
                let code_groups = tile.codes.chunks_exact(tile.scheme.code_bytes());
                let scale_groups = tile.scales.chunks_exact(tile.scheme.scale_bytes());
                let mut acc = [_mm256_setzero_ps(); 2];
                let groups = code_groups.zip(scale_groups).zip(quads.iter().zip(high));
                for (g, ((w_codes, w_scales), (quad, high))) in groups.enumerate() {
                    tile.prefetch_next(g);
                    let word = quad.high_words.trailing_zeros() as usize % GROUP_WORDS;
                    let high = if quad.high_words == 0 { 0 } else { high[0][word] };
                    for half in 0..2 {
                        let codes = load_codes::<CODES>(w_codes, half);
                        let w_scales = load_scales(format, w_scales, half);
                        let mut dots = $half_dots::<CODES>(&codes, &quad.codes[0]);
                        let codes = load_word::<CODES>(w_codes, half, word);
                        let wide = $word_dots::<CODES>(codes, _mm256_set1_epi32(high));
                        add_wide(&mut dots, format, word, _mm256_slli_epi32::<8>(wide));
                        acc[half] = add_dots::<CODES>(acc[half], format, dots, &w_scales, quad, 0);
                    }
                }
                let mut out = [0.0; LANES];
                for (lanes, acc) in out.as_chunks_mut::<HALF_LANES>().0.iter_mut().zip(acc) {
                    store(lanes, acc);
                }
                out
            }

            /// Multiplies the first `ROWS` of four rows with the tile, one half of its lanes after
            /// the other.
            #[inline]
            #[target_feature(enable = $features)]
            fn quad_rows<const ROWS: usize, const CODES: u8>(
                tile: IntegerTile<'_>,
                (quads, high): (&[QuadGroup], &[HighCodes]),
                out: &mut [[f32; LANES]; QUAD],
            ) {
                let format = tile.scheme.scales;
                for half in 0..2 {
                    let code_groups = tile.codes.chunks_exact(tile.scheme.code_bytes());
                    let scale_groups = tile.scales.chunks_exact(tile.scheme.scale_bytes());
                    let mut acc = [_mm256_setzero_ps(); ROWS];
                    let groups = code_groups.zip(scale_groups).zip(quads.iter().zip(high));
                    for (g, ((w_codes, w_scales), (quad, high))) in groups.enumerate() {
                        if half == 0 {
                            tile.prefetch_next(g);
                        }
                        let stored = w_codes;
                        let w_codes = load_codes::<CODES>(stored, half);
                        let w_scales = load_scales(format, w_scales, half);
                        for r in 0..ROWS {
                            let mut dots = $half_dots::<CODES>(&w_codes, &quad.codes[r]);
                            let mut left = quad.high_words;
                            while left != 0 {
                                let word = left.trailing_zeros() as usize % GROUP_WORDS;
                                left &= left - 1;
                                let codes = load_word::<CODES>(stored, half, word);
                                let high = _mm256_set1_epi32(high[r][word]);
                                let wide = $word_dots::<CODES>(codes, high);
                                let wide = _mm256_slli_epi32::<8>(wide);
                                add_wide(&mut dots, format, word, wide);
                            }
                            acc[r] = add_dots::<CODES>(acc[r], format, dots, &w_scales, quad, r);
                        }
                    }
                    for (out, acc) in out.iter_mut().zip(acc) {
                        store(&mut out.as_chunks_mut::<HALF_LANES>().0[half], acc);
                    }
                }
            }
        }
    };
}

tile_rows_with!(
    /// With AVX2's own multiplications.
    multiplications,
    half_dots,
    word_dots,
    "avx2,fma,f16c"
);
tile_rows_with!(
    /// With AVX-VNNI's dot products.
    dot_products,
    half_dots_with_vnni,
    word_dots_with_vnni,
    "avx2,fma,f16c,avxvnni"
);

/// Returns the dot products of the two halves of a group; codes are unsigned.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn half_dots_with_vnni<const CODES: u8>(
    codes: &[__m256i; GROUP_WORDS],
    x: &GroupCodes,
) -> [__m256i; 2] {
    const { assert!(CODES != SIGNED_BYTES, "they are left unsigned") };
    let mut halves = [_mm256_setzero_si256(); 2];
    for (h, half) in halves.iter_mut().enumerate() {
        for i in h * GROUP_WORDS / 2..(h + 1) * GROUP_WORDS / 2 {
            *half = _mm256_dpbusd_avx_epi32(*half, codes[i], _mm256_set1_epi32(x[i]));
        }
    }
    halves
}

/// Returns the dot products of one word; codes are unsigned.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn word_dots_with_vnni<const CODES: u8>(codes: __m256i, x: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), codes, x)
}

/// Returns the dot products of one word.
#[inline]
#[target_feature(enable = "avx2")]
fn word_dots<const CODES: u8>(codes: __m256i, x: __m256i) -> __m256i {
    _mm256_madd_epi16(pair_sums::<CODES>(codes, x), _mm256_set1_epi16(1))
}

/// Returns the dot products of the two halves of a group.
#[inline]
#[target_feature(enable = "avx2")]
fn half_dots<const CODES: u8>(codes: &[__m256i; GROUP_WORDS], x: &GroupCodes) -> [__m256i; 2] {
    let ones = _mm256_set1_epi16(1);
    let mut halves = [_mm256_setzero_si256(); 2];
    for (h, half) in halves.iter_mut().enumerate() {
        for i in (h * GROUP_WORDS / 2..(h + 1) * GROUP_WORDS / 2).step_by(2) {
            let a = pair_sums::<CODES>(codes[i], _mm256_set1_epi32(x[i]));
            let b = pair_sums::<CODES>(codes[i + 1], _mm256_set1_epi32(x[i + 1]));
            if CODES == SIGNED_BYTES {
                *half = _mm256_add_epi32(*half, _mm256_madd_epi16(a, ones));
                *half = _mm256_add_epi32(*half, _mm256_madd_epi16(b, ones));
            } else {
                *half = _mm256_add_epi32(*half, _mm256_madd_epi16(_mm256_add_epi16(a, b), ones));
            }
        }
    }
    halves
}

/// Returns products of codes and activations, neighbours added, in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn pair_sums<const CODES: u8>(codes: __m256i, x: __m256i) -> __m256i {
    if CODES == SIGNED_BYTES {
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
    } else {
        _mm256_maddubs_epi16(codes, x)
    }
}

/// Adds the scaled dot products of a group of row `r`, of both halves apart where they have two
/// scales, and the minimums' share.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_dots<const CODES: u8>(
    mut acc: __m256,
    format: ScaleFormat,
    [low, high]: [__m256i; 2],
    w_scales: &[__m256; 4],
    quad: &QuadGroup,
    r: usize,
) -> __m256 {
    let num_parts = if format.has_halves() { 2 } else { 1 };
    let parts = if num_parts == 2 { [low, high] } else { [_mm256_add_epi32(low, high), high] };
    let x_scale = _mm256_set1_ps(quad.scales[r]);
    for (part, dot) in parts.into_iter().enumerate().take(num_parts) {
        // Signed codes have no zero point.
        let dot = if CODES == SIGNED_BYTES {
            dot
        } else {
            _mm256_add_epi32(dot, _mm256_set1_epi32(quad.offsets[part][r]))
        };
        let scale = _mm256_mul_ps(w_scales[part], x_scale);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc);
        if format.has_minimum() {
            let sum = _mm256_set1_ps(quad.sums[part][r]);
            acc = _mm256_fmadd_ps(w_scales[num_parts + part], sum, acc);
        }
    }
    acc
}

/// Decodes the eight code vectors of one half of the lanes of a group.
#[inline]
#[target_feature(enable = "avx2")]
fn load_codes<const CODES: u8>(bytes: &[u8], half: usize) -> [__m256i; GROUP_WORDS] {
    let vectors = bytes.as_chunks::<VECTOR>().0;
    let mut codes = [_mm256_setzero_si256(); GROUP_WORDS];
    if CODES == NIBBLES {
        let mask = _mm256_set1_epi8(0x0f);
        for i in 0..GROUP_WORDS / 2 {
            let both = load(&vectors[i * 2 + half]);
            codes[i] = _mm256_and_si256(both, mask);
            let high = _mm256_srli_epi16::<4>(both);
            codes[i + GROUP_WORDS / 2] = _mm256_and_si256(high, mask);
        }
        return codes;
    }
    let flip = _mm256_set1_epi8(if CODES == SIGNED_BYTES { i8::MIN } else { 0 });
    for (i, code) in codes.iter_mut().enumerate() {
        *code = _mm256_xor_si256(load(&vectors[i * 2 + half]), flip);
    }
    codes
}

/// Returns the scales of a group, then its minimums.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load_scales(format: ScaleFormat, bytes: &[u8], half: usize) -> [__m256; 4] {
    let mut scales = [_mm256_setzero_ps(); 4];
    for (i, scale) in scales.iter_mut().enumerate().take(format.vectors()) {
        *scale = if format.element_bytes() == 2 {
            load_half_floats(&bytes.as_chunks::<{ VECTOR / 2 }>().0[i * 2 + half])
        } else {
            load_floats(&bytes.as_chunks::<VECTOR>().0[i * 2 + half])
        };
    }
    scales
}

/// Decodes word `word` of one half of the lanes of a group, of which `load_codes` decodes all.
#[inline]
#[target_feature(enable = "avx2")]
fn load_word<const CODES: u8>(bytes: &[u8], half: usize, word: usize) -> __m256i {
    let vectors = bytes.as_chunks::<VECTOR>().0;
    if CODES == NIBBLES {
        let both = load(&vectors[word % (GROUP_WORDS / 2) * 2 + half]);
        let shift = _mm_cvtsi32_si128(if word < GROUP_WORDS / 2 { 0 } else { 4 });
        return _mm256_and_si256(_mm256_srl_epi16(both, shift), _mm256_set1_epi8(0x0f));
    }
    let flip = _mm256_set1_epi8(if CODES == SIGNED_BYTES { i8::MIN } else { 0 });
    _mm256_xor_si256(load(&vectors[word * 2 + half]), flip)
}

/// Adds what word `word` has in high bytes to the dot products of its half of the group.
#[inline]
#[target_feature(enable = "avx2")]
fn add_wide(dots: &mut [__m256i; 2], format: ScaleFormat, word: usize, wide: __m256i) {
    if format.has_halves() {
        let is_second = _mm256_set1_epi32(if word < GROUP_WORDS / 2 { 0 } else { -1 });
        dots[0] = _mm256_add_epi32(dots[0], _mm256_andnot_si256(is_second, wide));
        dots[1] = _mm256_add_epi32(dots[1], _mm256_and_si256(is_second, wide));
    } else {
        dots[0] = _mm256_add_epi32(dots[0], wide);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(lanes: &mut [f32; HALF_LANES], values: __m256) {
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), values) };
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; VECTOR]) -> __m256i {
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_floats(bytes: &[u8; VECTOR]) -> __m256 {
    // SAFETY: as in `load`; every bit pattern is an f32.
    unsafe { _mm256_loadu_ps(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load_half_floats(bytes: &[u8; VECTOR / 2]) -> __m256 {
    // SAFETY: the array is half a vector long; the instruction needs no alignment.
    let halves = unsafe { _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>()) };
    _mm256_cvtph_ps(halves)
}
