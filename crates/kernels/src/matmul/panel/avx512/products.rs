//! Products of four rows with a panel: AVX-512 VNNI, twelve accumulators for three tiles.
//!
//! A group takes 8 products, 3 other operations of the same two ports for its scales (one more
//! with a minimum), and one load for each 1.5 products; so 73 % of the peak is the bound.
//!
//! The loop over the groups has no branch that depends on the activations: what wide words add is
//! computed before, and a row's dot products begin either with that or with what all rows have.

use super::super::activations::{PanelGroup, WideWord};
use super::super::lines::{CodeLine, FloatLine};
use super::super::{Panel, PanelKernel, QuadSums, Starts, prefetch_results};
use super::NUM_TILES;
use crate::activation_rows::{GROUP_WORDS, QUAD};
use crate::isa::Avx512;
use crate::lanes::LANES;
use crate::packed_matrix::ScaleFormat;
use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_xor_si512,
};

/// The tiles' accumulators in four rows.
type Rows<T, const TILES: usize> = [[T; TILES]; QUAD];

/// Returns the kernel for a number of tiles of a format; the proof is what makes calling it sound.
pub(in super::super) fn kernel(
    _proof: Avx512,
    format: ScaleFormat,
    num_tiles: usize,
) -> PanelKernel {
    match (num_tiles, format.has_halves(), format.has_minimum()) {
        (1, false, false) => rows::<1, 1, 0>,
        (1, false, true) => rows::<1, 1, 1>,
        (1, true, false) => rows::<1, 2, 0>,
        (1, true, true) => rows::<1, 2, 2>,
        (2, false, false) => rows::<2, 1, 0>,
        (2, false, true) => rows::<2, 1, 1>,
        (2, true, false) => rows::<2, 2, 0>,
        (2, true, true) => rows::<2, 2, 2>,
        (_, false, false) => rows::<NUM_TILES, 1, 0>,
        (_, false, true) => rows::<NUM_TILES, 1, 1>,
        (_, true, false) => rows::<NUM_TILES, 2, 0>,
        (_, true, true) => rows::<NUM_TILES, 2, 2>,
    }
}
const _: () = assert!(NUM_TILES == 3, "there are kernels for one to three tiles");

fn rows<const TILES: usize, const PARTS: usize, const MINIMUMS: usize>(
    panel: Panel<'_>,
    x: (&[PanelGroup], &[WideWord]),
    starts: &mut [Starts],
    sums: QuadSums<'_>,
) {
    // SAFETY: only `kernel` hands this function out, for a proof that AVX-512 is present.
    unsafe { rows_avx512::<TILES, PARTS, MINIMUMS>(panel, x, starts, sums) }
}

/// `PARTS` is 2 where the halves of a group have scales of their own; `MINIMUMS` is 0 or as many.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn rows_avx512<const TILES: usize, const PARTS: usize, const MINIMUMS: usize>(
    panel: Panel<'_>,
    (groups, wide): (&[PanelGroup], &[WideWord]),
    starts: &mut [Starts],
    sums: QuadSums<'_>,
) {
    prefetch_results(&sums.results);
    let out = sums.acc.as_chunks_mut::<TILES>().0.first_chunk_mut::<QUAD>().expect("four rows");
    let words = panel.codes.as_chunks::<TILES>().0.as_chunks::<GROUP_WORDS>().0;
    let scales = panel.scales.as_chunks::<TILES>().0.chunks_exact(PARTS + MINIMUMS);
    let starts = starts.as_chunks_mut::<PARTS>().0;
    add_wide_words(words, wide, starts);
    let starts = &*starts;
    let mut acc = [[_mm512_setzero_ps(); TILES]; QUAD];
    if !panel.is_first {
        for r in 0..QUAD {
            for t in 0..TILES {
                acc[r][t] = out[r][t].load();
            }
        }
    }
    for ((words, scales), group) in words.iter().zip(scales).zip(groups) {
        let slots = group.slots.map(|slot| slot as usize);
        let starts = [&starts[slots[0]], &starts[slots[1]], &starts[slots[2]], &starts[slots[3]]];
        if PARTS == 1 {
            let dots =
                part_dots::<TILES, PARTS, MINIMUMS, 0>(words, panel.part_words, group, starts);
            add_part::<TILES>(&mut acc, dots, &scales[0], &group.scales);
            if MINIMUMS > 0 {
                add_minimums::<TILES>(&mut acc, &scales[1], &group.sums[0]);
            }
        } else {
            let dots =
                part_dots::<TILES, PARTS, MINIMUMS, 0>(words, panel.part_words, group, starts);
            add_part::<TILES>(&mut acc, dots, &scales[0], &group.scales);
            if MINIMUMS > 0 {
                add_minimums::<TILES>(&mut acc, &scales[PARTS], &group.sums[0]);
            }
            let dots =
                part_dots::<TILES, PARTS, MINIMUMS, 1>(words, panel.part_words, group, starts);
            add_part::<TILES>(&mut acc, dots, &scales[1], &group.scales);
            if MINIMUMS > 0 {
                add_minimums::<TILES>(&mut acc, &scales[PARTS + 1], &group.sums[1]);
            }
        }
    }
    if let Some(rows) = sums.results {
        for (row, acc) in rows.into_iter().zip(acc) {
            let tiles = row.as_chunks_mut().0.first_chunk_mut::<TILES>().expect("whole tiles");
            for (tile, acc) in tiles.iter_mut().zip(acc) {
                store_results(tile, acc);
            }
        }
        return;
    }
    for r in 0..QUAD {
        for t in 0..TILES {
            out[r][t].store(acc[r][t]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_results(tile: &mut [f32; LANES], results: __m512) {
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm512_storeu_ps(tile.as_mut_ptr(), results) };
}

/// Writes where the dot products of rows with wide words begin, behind the starts of the groups.
///
/// The instruction multiplies unsigned bytes with signed ones, and high bytes are signed: so 128 is
/// added to the weights, and its share taken off.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_wide_words<const TILES: usize, const PARTS: usize>(
    words: &[[[CodeLine; TILES]; GROUP_WORDS]],
    wide: &[WideWord],
    starts: &mut [[Starts; PARTS]],
) {
    let (groups, added) = starts.split_at_mut(words.len());
    let flip = _mm512_set1_epi8(i8::MIN);
    for (sums, word) in added.iter_mut().zip(wide) {
        let (g, k) = (usize::from(word.group), usize::from(word.word) % GROUP_WORDS);
        let (codes, group) = (&words[g][k], &groups[g]);
        let (high, offset) = (_mm512_set1_epi32(word.high), _mm512_set1_epi32(word.offset));
        for part in 0..PARTS {
            for t in 0..TILES {
                let mut sum = group[part][t].load();
                if k * PARTS / GROUP_WORDS == part {
                    let codes = _mm512_xor_si512(codes[t].load(), flip);
                    let dot = _mm512_dpbusd_epi32(offset, codes, high);
                    sum = _mm512_add_epi32(sum, _mm512_slli_epi32::<8>(dot));
                }
                sums[part][t].store(sum);
            }
        }
    }
}

/// Returns the dot products of a part of a group.
///
/// The number of words is a variable, so that the compiler keeps their order, in which twelve
/// chains run side by side and few registers are live. The format's constants make each instance
/// one that has a single caller, so that it is inlined and the dot products stay in registers.
#[expect(clippy::needless_range_loop, reason = "rows and tiles are indexed alike")]
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn part_dots<const TILES: usize, const PARTS: usize, const MINIMUMS: usize, const PART: usize>(
    words: &[[CodeLine; TILES]; GROUP_WORDS],
    num_words: usize,
    group: &PanelGroup,
    starts: [&[Starts; PARTS]; QUAD],
) -> Rows<__m512i, TILES> {
    let first = PART * GROUP_WORDS / PARTS;
    let end = (PART + 1) * GROUP_WORDS / PARTS;
    let mut dots = [[_mm512_setzero_si512(); TILES]; QUAD];
    for r in 0..QUAD {
        for t in 0..TILES {
            dots[r][t] = starts[r][PART][t].load();
        }
    }
    for (i, codes) in words[first..end].iter().enumerate().take(num_words) {
        let k = (first + i) % GROUP_WORDS;
        let mut w = [_mm512_setzero_si512(); TILES];
        for t in 0..TILES {
            w[t] = codes[t].load();
        }
        for r in 0..QUAD {
            let x = _mm512_set1_epi32(group.codes[r][k]);
            for t in 0..TILES {
                dots[r][t] = _mm512_dpbusd_epi32(dots[r][t], x, w[t]);
            }
        }
    }
    dots
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
        let w_scale = w_scales[t].load();
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
        let minimum = minimums[t].load();
        for r in 0..QUAD {
            acc[r][t] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(sums[r]), acc[r][t]);
        }
    }
}
