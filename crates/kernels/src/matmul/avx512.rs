//! Integer tiles with AVX-512 VNNI: one `vpdpbusd` does four input features of 16 output features.
//!
//! A group of 32 input features of one tile is eight vectors of codes, decoded once and used for
//! every row of the pass. Each row adds eight dot products and one or two fused multiply-adds.

use super::{TileKernel, TileRows};
use crate::activation_rows::{GROUP_WORDS, GroupCodes, QuantizedRows, RowBlock};
use crate::isa::Avx512;
use crate::packed_matrix::{CodeWidth, IntegerTile, ScaleFormat, Scheme};
use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm256_loadu_si256, _mm512_and_si512, _mm512_cvtepi32_ps,
    _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_srli_epi16, _mm512_storeu_ps,
};

/// Bytes of one vector.
const VECTOR: usize = 64;

/// Returns the kernel for tiles of `scheme`; the proof is what makes calling it sound.
pub(super) fn kernel(_proof: Avx512, scheme: Scheme) -> TileKernel {
    use CodeWidth::{Byte, Nibble};
    use ScaleFormat::{F16, F16Minimum, F32, F32Halves, F32Minimum};
    match (scheme.width, scheme.scales) {
        (Nibble, F16) => tile_rows::<NibbleCodes, F16Scale>,
        (Nibble, F16Minimum) => tile_rows::<NibbleCodes, F16ScaleMinimum>,
        (Nibble, F32) => tile_rows::<NibbleCodes, F32Scale>,
        (Nibble, F32Minimum) => tile_rows::<NibbleCodes, F32ScaleMinimum>,
        (Nibble, F32Halves) => tile_rows::<NibbleCodes, F32HalfScales>,
        (Byte, F16) => tile_rows::<ByteCodes, F16Scale>,
        (Byte, F16Minimum) => tile_rows::<ByteCodes, F16ScaleMinimum>,
        (Byte, F32) => tile_rows::<ByteCodes, F32Scale>,
        (Byte, F32Minimum) => tile_rows::<ByteCodes, F32ScaleMinimum>,
        (Byte, F32Halves) => tile_rows::<ByteCodes, F32HalfScales>,
    }
}

/// How codes are stored.
trait Codes {
    const NIBBLES: bool;
}
struct NibbleCodes;
struct ByteCodes;
impl Codes for NibbleCodes {
    const NIBBLES: bool = true;
}
impl Codes for ByteCodes {
    const NIBBLES: bool = false;
}

/// How scales are stored and what they scale.
trait Scales {
    const HALF_FLOATS: bool;
    const MINIMUM: bool;
    const TWO_SCALES: bool;
}
struct F16Scale;
struct F16ScaleMinimum;
struct F32Scale;
struct F32ScaleMinimum;
struct F32HalfScales;
impl Scales for F16Scale {
    const HALF_FLOATS: bool = true;
    const MINIMUM: bool = false;
    const TWO_SCALES: bool = false;
}
impl Scales for F16ScaleMinimum {
    const HALF_FLOATS: bool = true;
    const MINIMUM: bool = true;
    const TWO_SCALES: bool = false;
}
impl Scales for F32Scale {
    const HALF_FLOATS: bool = false;
    const MINIMUM: bool = false;
    const TWO_SCALES: bool = false;
}
impl Scales for F32ScaleMinimum {
    const HALF_FLOATS: bool = false;
    const MINIMUM: bool = true;
    const TWO_SCALES: bool = false;
}
impl Scales for F32HalfScales {
    const HALF_FLOATS: bool = false;
    const MINIMUM: bool = false;
    const TWO_SCALES: bool = true;
}

fn tile_rows<C: Codes, S: Scales>(
    tile: IntegerTile<'_>,
    x: &QuantizedRows,
    block: RowBlock,
    out: &mut TileRows,
) {
    // SAFETY: only `kernel` hands this function out, for a proof that AVX-512 is present.
    unsafe { tile_rows_avx512::<C, S>(tile, x, block, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn tile_rows_avx512<C: Codes, S: Scales>(
    tile: IntegerTile<'_>,
    x: &QuantizedRows,
    block: RowBlock,
    out: &mut TileRows,
) {
    match block.num_rows {
        16 => row_block::<16, C, S>(tile, x, block, out),
        8 => row_block::<8, C, S>(tile, x, block, out),
        4 => row_block::<4, C, S>(tile, x, block, out),
        2 => row_block::<2, C, S>(tile, x, block, out),
        1 => row_block::<1, C, S>(tile, x, block, out),
        other => unreachable!("row blocks of {other}"),
    }
}

/// Repeats `$body` for `$r = 0..ROWS`, written out, so that accumulators stay in registers.
macro_rules! for_each_row {
    ($rows:ident, $r:ident => $body:block) => {
        for_each_row!($rows, $r, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($rows:ident, $r:ident, $body:block, $($index:literal)*) => {
        $({
            const $r: usize = $index;
            if $r < $rows $body
        })*
    };
}

/// Multiplies `ROWS` rows with the tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn row_block<const ROWS: usize, C: Codes, S: Scales>(
    tile: IntegerTile<'_>,
    x: &QuantizedRows,
    block: RowBlock,
    out: &mut TileRows,
) {
    let codes = x.codes(block).as_chunks::<ROWS>().0;
    let residuals = x.residuals(block).as_chunks::<ROWS>().0;
    let scales = x.scales(block).as_chunks::<ROWS>().0;
    let x_groups = codes.iter().zip(residuals).zip(scales);
    let code_groups = tile.codes.chunks_exact(tile.scheme.code_bytes());
    let scale_groups = tile.scales.chunks_exact(tile.scheme.scale_bytes());
    let mut acc = [_mm512_setzero_ps(); ROWS];
    for ((w_codes, w_scales), x_group) in code_groups.zip(scale_groups).zip(x_groups) {
        let w_codes = load_codes::<C>(w_codes);
        let [first, second] = load_scales::<S>(w_scales);
        let ((x_codes, x_residuals), x_scales) = x_group;
        for_each_row!(ROWS, R => {
            let group = &x_scales[R];
            let x_scale = _mm512_set1_ps(group.scale);
            if S::TWO_SCALES {
                let dots = half_dots(&w_codes, &x_codes[R], group.half_offsets);
                acc[R] = add_halves(acc[R], dots, [first, second], x_scale);
            } else {
                let dot = dot(&w_codes, &x_codes[R], group.offset());
                acc[R] = add_scaled(acc[R], dot, _mm512_mul_ps(first, x_scale));
            }
            if group.has_residual() {
                let x_scale = _mm512_set1_ps(group.residual_scale);
                if S::TWO_SCALES {
                    let dots = half_dots(&w_codes, &x_residuals[R], group.residual_offsets);
                    acc[R] = add_halves(acc[R], dots, [first, second], x_scale);
                } else {
                    let dot = dot(&w_codes, &x_residuals[R], group.residual_offset());
                    acc[R] = add_scaled(acc[R], dot, _mm512_mul_ps(first, x_scale));
                }
            }
            if S::MINIMUM {
                acc[R] = _mm512_fmadd_ps(second, _mm512_set1_ps(group.scaled_sum), acc[R]);
            }
        });
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        // SAFETY: `out` is 16 f32; the instruction needs no alignment.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), acc) };
    }
}

/// Returns the dot products of a group, the zero point's share included.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dot(w: &[__m512i; GROUP_WORDS], x: &GroupCodes, offset: i32) -> __m512i {
    let mut sum = _mm512_set1_epi32(offset);
    for (w, x) in w.iter().zip(x) {
        sum = _mm512_dpbusd_epi32(sum, *w, _mm512_set1_epi32(*x));
    }
    sum
}

/// Returns the dot products of the two halves of a group, the zero point's share included.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn half_dots(w: &[__m512i; GROUP_WORDS], x: &GroupCodes, offsets: [i32; 2]) -> [__m512i; 2] {
    let mut low = _mm512_set1_epi32(offsets[0]);
    let mut high = _mm512_set1_epi32(offsets[1]);
    for i in 0..GROUP_WORDS / 2 {
        let j = i + GROUP_WORDS / 2;
        low = _mm512_dpbusd_epi32(low, w[i], _mm512_set1_epi32(x[i]));
        high = _mm512_dpbusd_epi32(high, w[j], _mm512_set1_epi32(x[j]));
    }
    [low, high]
}

/// Adds the scaled dot products of both halves of a group.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_halves(acc: __m512, dots: [__m512i; 2], scales: [__m512; 2], x_scale: __m512) -> __m512 {
    let acc = add_scaled(acc, dots[0], _mm512_mul_ps(scales[0], x_scale));
    add_scaled(acc, dots[1], _mm512_mul_ps(scales[1], x_scale))
}

/// Returns `dot * scale + acc`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_scaled(acc: __m512, dot: __m512i, scale: __m512) -> __m512 {
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, acc)
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

/// Returns the scale and the second scale or minimum (the scale again where there is none).
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_scales<S: Scales>(bytes: &[u8]) -> [__m512; 2] {
    let two = S::MINIMUM || S::TWO_SCALES;
    if S::HALF_FLOATS {
        let vectors = bytes.as_chunks::<{ VECTOR / 2 }>().0;
        let first = load_half_floats(&vectors[0]);
        [first, if two { load_half_floats(&vectors[1]) } else { first }]
    } else {
        let vectors = bytes.as_chunks::<VECTOR>().0;
        let first = load_floats(&vectors[0]);
        [first, if two { load_floats(&vectors[1]) } else { first }]
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
