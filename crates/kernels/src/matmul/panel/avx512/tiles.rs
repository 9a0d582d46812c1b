//! Tiles decoded to a panel: signed bytes, f32 scales, and where dot products begin.

use super::super::activations::ZERO;
use super::super::tile_lines::{TileLines, decode_scales};
use crate::activation_rows::GROUP_WORDS;
use crate::isa::Avx512;
use crate::lanes::{Avx512Lanes, LANES};
use crate::packed_matrix::{CodeWidth, Scheme};
use std::arch::x86_64::{
    __m512i, _mm512_and_si512, _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_set1_epi8,
    _mm512_setzero_si512, _mm512_srli_epi16, _mm512_sub_epi8, _mm512_sub_epi32,
};

/// Decodes the stored codes and scales of tile `place` of a panel.
pub(in super::super) fn decode(
    proof: Avx512,
    scheme: Scheme,
    (codes, scales): (&[u8], &[u8]),
    place: usize,
    lines: &mut TileLines<'_>,
) {
    // SAFETY: the proof shows that the instructions are present.
    unsafe { decode_tile(proof, scheme, (codes, scales), place, lines) };
}

/// A group's part begins with what the activations' [`ZERO`] has to be taken off for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn decode_codes(scheme: Scheme, stored: &[u8], place: usize, lines: &mut TileLines<'_>) {
    let num_parts = if scheme.scales.has_halves() { 2 } else { 1 };
    let zero = _mm512_set1_epi8(ZERO.cast_signed());
    let zero_point = _mm512_set1_epi8(scheme.zero_point.cast_signed());
    let groups = lines.codes.chunks_exact_mut(GROUP_WORDS * lines.num_tiles);
    let starts = lines.starts.chunks_exact_mut(num_parts);
    for ((stored, group), starts) in
        stored.chunks_exact(scheme.code_bytes()).zip(groups).zip(starts)
    {
        let codes = group_codes(scheme.width, stored);
        let mut sums = [_mm512_setzero_si512(); 2];
        for (i, codes) in codes.into_iter().enumerate() {
            let codes = _mm512_sub_epi8(codes, zero_point);
            group[i * lines.num_tiles + place].store(codes);
            let part = i * num_parts / GROUP_WORDS;
            sums[part] = _mm512_dpbusd_epi32(sums[part], zero, codes);
        }
        for (start, sum) in starts.iter_mut().zip(sums) {
            start[place].store(_mm512_sub_epi32(_mm512_setzero_si512(), sum));
        }
    }
}

/// Returns the words of a group, unsigned codes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn group_codes(width: CodeWidth, stored: &[u8]) -> [__m512i; GROUP_WORDS] {
    let vectors = stored.as_chunks::<{ LANES * 4 }>().0;
    let mut codes = [_mm512_setzero_si512(); GROUP_WORDS];
    match width {
        CodeWidth::Byte => {
            for (code, vector) in codes.iter_mut().zip(vectors) {
                *code = load(vector);
            }
        }
        CodeWidth::Nibble => {
            let mask = _mm512_set1_epi8(0x0f);
            let (low, high) = codes.split_at_mut(GROUP_WORDS / 2);
            for ((low, high), vector) in low.iter_mut().zip(high).zip(vectors) {
                let both = load(vector);
                *low = _mm512_and_si512(both, mask);
                *high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
            }
        }
    }
    codes
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn decode_tile(
    proof: Avx512,
    scheme: Scheme,
    (codes, scales): (&[u8], &[u8]),
    place: usize,
    lines: &mut TileLines<'_>,
) {
    decode_codes(scheme, codes, place, lines);
    decode_scales::<Avx512Lanes>(proof, scheme, scales, place, lines);
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; LANES * 4]) -> __m512i {
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
