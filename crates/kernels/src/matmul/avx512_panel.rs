//! Panels with AVX-512 VNNI: four rows meet three tiles in twelve accumulators.
//!
//! A group takes 8 products, 3 other operations of the same two ports for its scales (one more
//! with a minimum), and one load for each 1.7 products; so 73 % of the peak is the bound.

use super::panel::{CodeLine, FloatLine, PANEL_TILES, Panel, PanelKernel};
use crate::activation_rows::{GROUP_WORDS, HighCodes, QUAD, QuadGroup};
use crate::isa::Avx512;
use crate::packed_matrix::ScaleFormat;
use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_load_ps, _mm512_load_si512, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_store_ps,
};

/// The tiles' accumulators in four rows.
type Rows<T, const TILES: usize> = [[T; TILES]; QUAD];

/// Returns the kernels for one, two and three tiles of a format; the proof is what makes calling
/// them sound.
pub(super) fn kernels(_proof: Avx512, format: ScaleFormat) -> [PanelKernel; PANEL_TILES] {
    match (format.has_halves(), format.has_minimum()) {
        (false, false) => [rows::<1, 1, 0>, rows::<2, 1, 0>, rows::<3, 1, 0>],
        (false, true) => [rows::<1, 1, 1>, rows::<2, 1, 1>, rows::<3, 1, 1>],
        (true, false) => [rows::<1, 2, 0>, rows::<2, 2, 0>, rows::<3, 2, 0>],
        (true, true) => [rows::<1, 2, 2>, rows::<2, 2, 2>, rows::<3, 2, 2>],
    }
}

fn rows<const TILES: usize, const PARTS: usize, const MINIMUMS: usize>(
    panel: Panel<'_>,
    quads: &[QuadGroup],
    high: &[HighCodes],
    acc: &mut [FloatLine],
) {
    // SAFETY: only `kernels` hands this function out, for a proof that AVX-512 is present.
    unsafe { rows_avx512::<TILES, PARTS, MINIMUMS>(panel, quads, high, acc) }
}

/// `PARTS` is 2 where the halves of a group have scales of their own; `MINIMUMS` is 0 or as many.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn rows_avx512<const TILES: usize, const PARTS: usize, const MINIMUMS: usize>(
    panel: Panel<'_>,
    quads: &[QuadGroup],
    high: &[HighCodes],
    out: &mut [FloatLine],
) {
    let out = out.as_chunks_mut::<TILES>().0.first_chunk_mut::<QUAD>().expect("four rows");
    let words = panel.codes.as_chunks::<TILES>().0.as_chunks::<GROUP_WORDS>().0;
    let scales = panel.scales.as_chunks::<TILES>().0.chunks_exact(PARTS + MINIMUMS);
    let mut acc = [[_mm512_setzero_ps(); TILES]; QUAD];
    if !panel.is_first {
        for r in 0..QUAD {
            for t in 0..TILES {
                acc[r][t] = load_floats(&out[r][t]);
            }
        }
    }
    for ((words, scales), (quad, high)) in words.iter().zip(scales).zip(quads.iter().zip(high)) {
        if PARTS == 1 {
            let dots = part_dots::<TILES, PARTS, MINIMUMS, 0>(words, panel.part_words, quad, high);
            add_part::<TILES>(&mut acc, dots, &scales[0], &quad.scales);
            if MINIMUMS > 0 {
                add_minimums::<TILES>(&mut acc, &scales[1], &quad.sums[0]);
            }
        } else {
            let dots = part_dots::<TILES, PARTS, MINIMUMS, 0>(words, panel.part_words, quad, high);
            add_part::<TILES>(&mut acc, dots, &scales[0], &quad.scales);
            if MINIMUMS > 0 {
                add_minimums::<TILES>(&mut acc, &scales[PARTS], &quad.sums[0]);
            }
            let dots = part_dots::<TILES, PARTS, MINIMUMS, 1>(words, panel.part_words, quad, high);
            add_part::<TILES>(&mut acc, dots, &scales[1], &quad.scales);
            if MINIMUMS > 0 {
                add_minimums::<TILES>(&mut acc, &scales[PARTS + 1], &quad.sums[1]);
            }
        }
    }
    for r in 0..QUAD {
        for t in 0..TILES {
            store_floats(&mut out[r][t], acc[r][t]);
        }
    }
}

/// Returns the dot products of a part of a group, the zero point's share included.
///
/// The number of words is a variable, so that the compiler keeps their order, in which twelve
/// chains run side by side and few registers are live. The format's constants make each instance
/// one that has a single caller, so that it is inlined and the dot products stay in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn part_dots<const TILES: usize, const PARTS: usize, const MINIMUMS: usize, const PART: usize>(
    words: &[[CodeLine; TILES]; GROUP_WORDS],
    num_words: usize,
    quad: &QuadGroup,
    high: &HighCodes,
) -> Rows<__m512i, TILES> {
    let first = PART * GROUP_WORDS / PARTS;
    let end = (PART + 1) * GROUP_WORDS / PARTS;
    let offsets = &quad.offsets[PART];
    let mut dots = [[_mm512_setzero_si512(); TILES]; QUAD];
    let mut wide = quad.high_words & ((1 << end) - (1 << first));
    if wide == 0 {
        for r in 0..QUAD {
            dots[r] = [_mm512_set1_epi32(offsets[r]); TILES];
        }
    } else {
        while wide != 0 {
            let k = wide.trailing_zeros() as usize % GROUP_WORDS;
            wide &= wide - 1;
            let x = [high[0][k], high[1][k], high[2][k], high[3][k]];
            add_word::<TILES>(&mut dots, &words[k], x);
        }
        for r in 0..QUAD {
            let offset = _mm512_set1_epi32(offsets[r]);
            for dot in &mut dots[r] {
                *dot = _mm512_add_epi32(_mm512_slli_epi32::<8>(*dot), offset);
            }
        }
    }
    for (i, codes) in words[first..end].iter().enumerate().take(num_words) {
        let k = (first + i) % GROUP_WORDS;
        let x = [quad.codes[0][k], quad.codes[1][k], quad.codes[2][k], quad.codes[3][k]];
        add_word::<TILES>(&mut dots, codes, x);
    }
    dots
}

/// Adds the products of four input features.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_word<const TILES: usize>(
    dots: &mut Rows<__m512i, TILES>,
    codes: &[CodeLine; TILES],
    x: [i32; QUAD],
) {
    let mut w = [_mm512_setzero_si512(); TILES];
    for t in 0..TILES {
        w[t] = load_codes(&codes[t]);
    }
    for r in 0..QUAD {
        let x = _mm512_set1_epi32(x[r]);
        for t in 0..TILES {
            dots[r][t] = _mm512_dpbusd_epi32(dots[r][t], w[t], x);
        }
    }
}

/// Adds the scaled dot products of a part of a group.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_part<const TILES: usize>(
    acc: &mut Rows<__m512, TILES>,
    dots: Rows<__m512i, TILES>,
    w_scales: &[FloatLine; TILES],
    x_scales: &[f32; QUAD],
) {
    for t in 0..TILES {
        let w_scale = load_floats(&w_scales[t]);
        for r in 0..QUAD {
            let scale = _mm512_mul_ps(w_scale, _mm512_set1_ps(x_scales[r]));
            acc[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][t]), scale, acc[r][t]);
        }
    }
}

/// Adds the minimums' share of a part of a group.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_minimums<const TILES: usize>(
    acc: &mut Rows<__m512, TILES>,
    minimums: &[FloatLine; TILES],
    sums: &[f32; QUAD],
) {
    for t in 0..TILES {
        let minimum = load_floats(&minimums[t]);
        for r in 0..QUAD {
            acc[r][t] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(sums[r]), acc[r][t]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_codes(line: &CodeLine) -> __m512i {
    // SAFETY: the line is one vector long and aligned to it.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_floats(line: &FloatLine) -> __m512 {
    // SAFETY: as in `load_codes`.
    unsafe { _mm512_load_ps(line.0.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_floats(line: &mut FloatLine, vector: __m512) {
    // SAFETY: as in `load_codes`.
    unsafe { _mm512_store_ps(line.0.as_mut_ptr(), vector) };
}
