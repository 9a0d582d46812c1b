//! Tiles decoded to a panel: signed bytes, f32 scales, and where dot products begin.

use super::super::tile_lines::{TileLines, decode_scales};
use crate::activation_rows::GROUP_WORDS;
use crate::isa::Avx2;
use crate::lanes::{Avx2Lanes, LANES};
use crate::packed_matrix::{CodeWidth, Scheme};
use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_setzero_si256, _mm256_srli_epi16, _mm256_sub_epi8, _mm256_sub_epi16,
};

/// Decodes the stored codes and scales of tile `place` of a panel.
pub(in super::super) fn decode(
    proof: Avx2,
    scheme: Scheme,
    (codes, scales): (&[u8], &[u8]),
    place: usize,
    lines: &mut TileLines<'_>,
) {
    // SAFETY: the proof shows that the instructions are present.
    unsafe { decode_avx2(proof, scheme, (codes, scales), place, lines) };
}

#[target_feature(enable = "avx2,fma,f16c")]
fn decode_avx2(
    proof: Avx2,
    scheme: Scheme,
    (codes, scales): (&[u8], &[u8]),
    place: usize,
    lines: &mut TileLines<'_>,
) {
    let zero = super::zero(proof, scheme);
    // Two sums of 16 bits make one of 32.
    let first_sums = -2 * i32::from(super::first_sum(proof, scheme));
    decode_codes(scheme, codes, (zero, first_sums), place, lines);
    decode_scales::<Avx2Lanes>(proof, scheme, scales, place, lines);
}

/// A group's part begins with what has to be taken off for the byte that stands for an activation
/// of 0, and for what sums in 16 bits begin with.
#[inline]
#[target_feature(enable = "avx2")]
fn decode_codes(
    scheme: Scheme,
    stored: &[u8],
    (zero, first_sums): (u8, i32),
    place: usize,
    lines: &mut TileLines<'_>,
) {
    let num_parts = if scheme.scales.has_halves() { 2 } else { 1 };
    let zero_point = _mm256_set1_epi8(scheme.zero_point.cast_signed());
    let zero = _mm256_set1_epi16(i16::from(zero));
    let first_sums = _mm256_set1_epi32(first_sums);
    let ones = _mm256_set1_epi8(1);
    let groups = lines.codes.chunks_exact_mut(GROUP_WORDS * lines.num_tiles);
    let starts = lines.starts.chunks_exact_mut(num_parts);
    for ((stored, group), starts) in
        stored.chunks_exact(scheme.code_bytes()).zip(groups).zip(starts)
    {
        let mut starts_of_halves = [[_mm256_setzero_si256(); 2]; 2];
        for (half, start) in starts_of_halves.iter_mut().enumerate() {
            // Of two times four codes: far from the limits of 16 bits.
            let mut sums = [_mm256_setzero_si256(); 2];
            for i in half * GROUP_WORDS / 2..(half + 1) * GROUP_WORDS / 2 {
                let [low, high] = word_codes(scheme.width, stored, i);
                let codes = [_mm256_sub_epi8(low, zero_point), _mm256_sub_epi8(high, zero_point)];
                group[i * lines.num_tiles + place].put_halves(codes);
                for (sum, codes) in sums.iter_mut().zip(codes) {
                    *sum = _mm256_sub_epi16(*sum, _mm256_maddubs_epi16(ones, codes));
                }
            }
            *start = sums.map(|sum| _mm256_madd_epi16(sum, zero));
            if half == 0 {
                *start = start.map(|start| _mm256_add_epi32(start, first_sums));
            }
        }
        let [first, second] = starts_of_halves;
        if let [start] = starts {
            let whole =
                [_mm256_add_epi32(first[0], second[0]), _mm256_add_epi32(first[1], second[1])];
            start[place].put_halves(whole);
        } else {
            for (start, half) in starts.iter_mut().zip([first, second]) {
                start[place].put_halves(half);
            }
        }
    }
}

/// Returns a word of all lanes, unsigned codes.
#[inline]
#[target_feature(enable = "avx2")]
fn word_codes(width: CodeWidth, stored: &[u8], word: usize) -> [__m256i; 2] {
    let vectors = stored.as_chunks::<{ LANES * 4 }>().0;
    match width {
        CodeWidth::Byte => load(&vectors[word]),
        CodeWidth::Nibble => {
            let mask = _mm256_set1_epi8(0x0f);
            let both = load(&vectors[word % (GROUP_WORDS / 2)]);
            let words = if word < GROUP_WORDS / 2 {
                both
            } else {
                [_mm256_srli_epi16::<4>(both[0]), _mm256_srli_epi16::<4>(both[1])]
            };
            [_mm256_and_si256(words[0], mask), _mm256_and_si256(words[1], mask)]
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; LANES * 4]) -> [__m256i; 2] {
    let halves = bytes.as_chunks::<{ LANES * 2 }>().0;
    // SAFETY: each half is one vector long; the instruction needs no alignment.
    [0, 1].map(|h| unsafe { _mm256_loadu_si256(halves[h].as_ptr().cast()) })
}
