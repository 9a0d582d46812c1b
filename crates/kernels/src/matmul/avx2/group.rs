//! A group of 32 input features of a tile, or of one half of its lanes.
//!
//! `vpmaddubsw` multiplies unsigned codes with signed activations and adds neighbours in 16 bits,
//! at most `2 * 127 * |w|`. Those sums leave room for all eight words of codes of four bits
//! (`8 * 2 * 127 * 15 < 2^15`) and for two of codes below 64, before they are widened. Codes that
//! use all eight bits are made signed again and the sign is moved to the activation:
//! `|w| * sign(x, w)` is at most `2 * 128 * 127 < 2^15`.
//!
//! With AVX-VNNI, `vpdpbusd` adds four products of unsigned codes and signed activations to 32 bits
//! at once, for codes of any width.

use super::HALF_LANES;
use crate::activation_rows::{GROUP_WORDS, GroupCodes, QuadGroup};
use crate::matmul::stored_form::{Codes, Scales};
use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_abs_epi8,
    _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256, _mm256_andnot_si256, _mm256_cvtepi32_ps,
    _mm256_cvtph_ps, _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sign_epi8,
    _mm256_slli_epi32, _mm256_srl_epi16, _mm256_srli_epi16, _mm256_storeu_ps, _mm256_xor_si256,
};

/// Bytes of one vector.
const VECTOR: usize = 32;
/// Words of half a group.
const PART_WORDS: usize = GROUP_WORDS / 2;

/// The vectors of codes of a group, in pairs that are multiplied together.
pub(super) type GroupVectors = [[__m256i; 2]; GROUP_WORDS / 2];

/// The dot products of the parts of a group; of the whole group in the first, where its halves have
/// no scales of their own.
pub(super) type PartDots = [__m256i; 2];

/// Sums of pairs of words as they are multiplied, in 16 or 32 bits, for each part of a group.
type PairSums = [__m256i; 2];

/// Returns the dot products of one row with both halves of a tile.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn multiply_halves<C: Codes, S: Scales>(bytes: &[u8], x: &GroupCodes) -> [PartDots; 2] {
    let mut sums = [[_mm256_setzero_si256(); 2]; 2];
    for pair in 0..GROUP_WORDS / 2 {
        let x = words_of_pair::<C>(pair).map(|word| _mm256_set1_epi32(x[word]));
        for (half, sums) in sums.iter_mut().enumerate() {
            add_pair::<C>(sums, pair, load_pair::<C>(bytes, half, pair), x);
        }
        keep_order(&mut sums);
    }
    sums.map(|sums| dots_of::<C, S>(sums))
}

/// Returns the dot products of a group.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn multiply<C: Codes, S: Scales>(codes: &GroupVectors, x: &GroupCodes) -> PartDots {
    let mut sums = [_mm256_setzero_si256(); 2];
    for (pair, codes) in codes.iter().enumerate() {
        let x = words_of_pair::<C>(pair).map(|word| _mm256_set1_epi32(x[word]));
        add_pair::<C>(&mut sums, pair, *codes, x);
    }
    dots_of::<C, S>(sums)
}

/// Adds the products of a pair of words to the sums of their parts: in 16 bits for codes of four
/// bits, else in 32.
#[inline]
#[target_feature(enable = "avx2")]
fn add_pair<C: Codes>(sums: &mut PairSums, pair: usize, codes: [__m256i; 2], x: [__m256i; 2]) {
    let ones = _mm256_set1_epi16(1);
    let a = pair_sums::<C>(codes[0], x[0]);
    let b = pair_sums::<C>(codes[1], x[1]);
    if C::NIBBLES {
        sums[0] = _mm256_add_epi16(sums[0], a);
        sums[1] = _mm256_add_epi16(sums[1], b);
        return;
    }
    let both = if C::FULL {
        _mm256_add_epi32(_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones))
    } else {
        _mm256_madd_epi16(_mm256_add_epi16(a, b), ones)
    };
    let part = &mut sums[pair / (PART_WORDS / 2)];
    *part = _mm256_add_epi32(*part, both);
}

/// Widens sums of 16 bits, and adds those of the parts where a group has one scale.
#[inline]
#[target_feature(enable = "avx2")]
fn dots_of<C: Codes, S: Scales>(sums: PairSums) -> PartDots {
    let ones = _mm256_set1_epi16(1);
    match (C::NIBBLES, S::HALVES) {
        (true, true) => [_mm256_madd_epi16(sums[0], ones), _mm256_madd_epi16(sums[1], ones)],
        (true, false) => [_mm256_madd_epi16(_mm256_add_epi16(sums[0], sums[1]), ones), sums[1]],
        (false, true) => sums,
        (false, false) => [_mm256_add_epi32(sums[0], sums[1]), sums[1]],
    }
}

/// Returns the words that are multiplied together: two of one part in bytes, one of each part in
/// nibbles, which share their bytes.
#[inline]
fn words_of_pair<C: Codes>(pair: usize) -> [usize; 2] {
    if C::NIBBLES { [pair, pair + PART_WORDS] } else { [2 * pair, 2 * pair + 1] }
}

/// Has the compiler add up pair after pair, so that few registers are live: left to itself, it
/// loads the whole group first and runs out of registers.
#[inline]
#[target_feature(enable = "avx2")]
fn keep_order([[a, b], [c, d]]: &mut [PairSums; 2]) {
    // SAFETY: the template is a comment, so nothing runs; but the compiler has to believe that it
    // changes the sums and reads memory, so it neither adds nor loads ahead of it.
    unsafe {
        asm!(
            "/* {} {} {} {} */",
            inout(ymm_reg) * a,
            inout(ymm_reg) * b,
            inout(ymm_reg) * c,
            inout(ymm_reg) * d,
            options(nostack, preserves_flags),
        );
    }
}

/// Returns the dot products of one row with both halves of a tile; codes are unsigned.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
pub(super) fn multiply_halves_with_vnni<C: Codes, S: Scales>(
    bytes: &[u8],
    x: &GroupCodes,
) -> [PartDots; 2] {
    let mut sums = [[_mm256_setzero_si256(); 2]; 2];
    for pair in 0..GROUP_WORDS / 2 {
        let x = words_of_pair::<C>(pair).map(|word| _mm256_set1_epi32(x[word]));
        for (half, sums) in sums.iter_mut().enumerate() {
            add_pair_with_vnni::<C>(sums, pair, load_pair::<C>(bytes, half, pair), x);
        }
        keep_order(&mut sums);
    }
    sums.map(|sums| dots_of_vnni::<S>(sums))
}

/// Returns the dot products of a group; codes are unsigned.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
pub(super) fn multiply_with_vnni<C: Codes, S: Scales>(
    codes: &GroupVectors,
    x: &GroupCodes,
) -> PartDots {
    let mut sums = [_mm256_setzero_si256(); 2];
    for (pair, codes) in codes.iter().enumerate() {
        let x = words_of_pair::<C>(pair).map(|word| _mm256_set1_epi32(x[word]));
        add_pair_with_vnni::<C>(&mut sums, pair, *codes, x);
    }
    dots_of_vnni::<S>(sums)
}

#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn add_pair_with_vnni<C: Codes>(
    sums: &mut PairSums,
    pair: usize,
    codes: [__m256i; 2],
    x: [__m256i; 2],
) {
    const { assert!(!C::FULL, "they are left unsigned") };
    let parts = if C::NIBBLES { [0, 1] } else { [pair / (PART_WORDS / 2); 2] };
    for ((part, codes), x) in parts.into_iter().zip(codes).zip(x) {
        sums[part] = _mm256_dpbusd_avx_epi32(sums[part], codes, x);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn dots_of_vnni<S: Scales>(sums: PairSums) -> PartDots {
    if S::HALVES { sums } else { [_mm256_add_epi32(sums[0], sums[1]), sums[1]] }
}

/// Returns the dot products of one word; codes are unsigned.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
pub(super) fn word_dots_with_vnni<C: Codes>(codes: __m256i, x: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), codes, x)
}

/// Returns the dot products of one word.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn word_dots<C: Codes>(codes: __m256i, x: __m256i) -> __m256i {
    _mm256_madd_epi16(pair_sums::<C>(codes, x), _mm256_set1_epi16(1))
}

/// Returns products of codes and activations, neighbours added, in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn pair_sums<C: Codes>(codes: __m256i, x: __m256i) -> __m256i {
    if C::FULL {
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
    } else {
        _mm256_maddubs_epi16(codes, x)
    }
}

/// Adds what word `word` has in high bytes to the dot products of its part of the group.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn add_wide<S: Scales>(dots: &mut PartDots, word: usize, high: __m256i) {
    let wide = _mm256_slli_epi32::<8>(high);
    if S::HALVES {
        let is_second = _mm256_set1_epi32(if word < PART_WORDS { 0 } else { -1 });
        dots[0] = _mm256_add_epi32(dots[0], _mm256_andnot_si256(is_second, wide));
        dots[1] = _mm256_add_epi32(dots[1], _mm256_and_si256(is_second, wide));
    } else {
        dots[0] = _mm256_add_epi32(dots[0], wide);
    }
}

/// Adds the scaled dot products of a group of row `r`, and the minimums' share.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn add_dots<C: Codes, S: Scales>(
    mut acc: __m256,
    dots: PartDots,
    w_scales: &[__m256; 4],
    quad: &QuadGroup,
    r: usize,
) -> __m256 {
    let num_parts = if S::HALVES { 2 } else { 1 };
    let x_scale = _mm256_set1_ps(quad.scales[r]);
    for (part, dot) in dots.into_iter().enumerate().take(num_parts) {
        // Signed codes have no zero point.
        let dot = if C::FULL {
            dot
        } else {
            _mm256_add_epi32(dot, _mm256_set1_epi32(quad.offsets[part][r]))
        };
        let scale = _mm256_mul_ps(w_scales[part], x_scale);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc);
        if S::MINIMUM {
            let sum = _mm256_set1_ps(quad.sums[part][r]);
            acc = _mm256_fmadd_ps(w_scales[num_parts + part], sum, acc);
        }
    }
    acc
}

/// Decodes the codes of one half of the lanes of a group.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_codes<C: Codes>(bytes: &[u8], half: usize) -> GroupVectors {
    let mut codes = [[_mm256_setzero_si256(); 2]; GROUP_WORDS / 2];
    for (pair, codes) in codes.iter_mut().enumerate() {
        *codes = load_pair::<C>(bytes, half, pair);
    }
    codes
}

/// Decodes a pair of words of one half of the lanes of a group.
#[inline]
#[target_feature(enable = "avx2")]
fn load_pair<C: Codes>(bytes: &[u8], half: usize, pair: usize) -> [__m256i; 2] {
    let vectors = bytes.as_chunks::<VECTOR>().0;
    if C::NIBBLES {
        let both = load(&vectors[pair * 2 + half]);
        let mask = _mm256_set1_epi8(0x0f);
        let high = _mm256_srli_epi16::<4>(both);
        [_mm256_and_si256(both, mask), _mm256_and_si256(high, mask)]
    } else {
        let [a, b] = words_of_pair::<C>(pair);
        let (a, b) = (load(&vectors[a * 2 + half]), load(&vectors[b * 2 + half]));
        [signed::<C>(a), signed::<C>(b)]
    }
}

/// Decodes word `word` of one half of the lanes of a group, of which `load_codes` decodes all.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_word<C: Codes>(bytes: &[u8], half: usize, word: usize) -> __m256i {
    let vectors = bytes.as_chunks::<VECTOR>().0;
    if C::NIBBLES {
        let both = load(&vectors[word % PART_WORDS * 2 + half]);
        let shift = _mm_cvtsi32_si128(if word < PART_WORDS { 0 } else { 4 });
        _mm256_and_si256(_mm256_srl_epi16(both, shift), _mm256_set1_epi8(0x0f))
    } else {
        signed::<C>(load(&vectors[word * 2 + half]))
    }
}

/// Makes codes that use all eight bits signed.
#[inline]
#[target_feature(enable = "avx2")]
fn signed<C: Codes>(codes: __m256i) -> __m256i {
    if C::FULL { _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN)) } else { codes }
}

/// Returns the scales of a group, then its minimums.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn load_scales<S: Scales>(bytes: &[u8], half: usize) -> [__m256; 4] {
    let num_parts = if S::HALVES { 2 } else { 1 };
    let num_vectors = if S::MINIMUM { num_parts * 2 } else { num_parts };
    let mut scales = [_mm256_setzero_ps(); 4];
    for (i, scale) in scales.iter_mut().enumerate().take(num_vectors) {
        *scale = if S::HALF_FLOATS {
            load_half_floats(&bytes.as_chunks::<{ VECTOR / 2 }>().0[i * 2 + half])
        } else {
            load_floats(&bytes.as_chunks::<VECTOR>().0[i * 2 + half])
        };
    }
    scales
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store(lanes: &mut [f32; HALF_LANES], values: __m256) {
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
