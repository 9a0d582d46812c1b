//! Products of four rows with a panel: one tile after the other, in two vectors of eight lanes.
//!
//! `vpmaddubsw` multiplies unsigned activations with signed weights and adds neighbours in 16 bits;
//! how many words are added up there before they are widened depends on the weights, see [`Sums`].
//! For weights of four bits a group takes 8 products, 7 or 8 additions, one or two widenings, and
//! three other operations for its scales.
//! Weights that use all eight bits leave no room: their sign is moved to the activation, and each
//! word is widened.
//!
//! With AVX-VNNI, `vpdpbusd` adds four products to 32 bits at once, whatever the weights.
//!
//! As with AVX-512, the loop over the groups has no branch that depends on the activations.

use super::super::activations::{PanelGroup, WideWord};
use super::super::lines::{CodeLine, FloatLine, SumLine};
use super::super::{Panel, PanelKernel, QuadSums, Starts, prefetch_results};
use super::{NUM_TILES, Sums};
use crate::activation_rows::{GROUP_WORDS, QUAD};
use crate::isa::Avx2;
use crate::packed_matrix::Scheme;
use std::arch::asm;
use std::arch::x86_64::{
    __m256i, _mm256_abs_epi8, _mm256_add_epi16, _mm256_add_epi32, _mm256_cvtepi32_ps,
    _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_mul_ps, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_sign_epi8, _mm256_slli_epi32,
};
use std::ops::Range;

/// The dot products of four rows with the two halves of a tile's lanes.
type Dots = [[__m256i; 2]; QUAD];

/// The words of a group of a panel.
type GroupLines<const TILES: usize> = [[CodeLine; TILES]; GROUP_WORDS];

/// What four rows are added up in.
type Acc<const TILES: usize> = [[FloatLine; TILES]; QUAD];

/// What of a group is multiplied.
struct Place {
    tile: usize,
    words: Range<usize>,
    /// See [`Panel::first_sum`].
    first_sum: i16,
}

/// Groups before the last at which the places of the results are asked for: some 300 ns. Much
/// earlier, the rows and the panel would push them out of the L1 cache again, since rows whose
/// places lie a multiple of 4 KiB apart share few of its sets.
const PREFETCH_GROUPS: usize = 10;

/// Stands for [`Sums::Full`] where a number of words would.
const FULL: usize = 1;

/// Returns the kernel that `$module` has for a number of tiles and a scheme's scales.
macro_rules! kernel {
    ($module:ident, $words:expr, $tiles:expr, $scheme:expr) => {
        match ($tiles, $scheme.scales.has_halves(), $scheme.scales.has_minimum()) {
            (1, false, false) => $module::rows::<{ $words }, 1, 1, 0>,
            (1, false, true) => $module::rows::<{ $words }, 1, 1, 1>,
            (1, true, false) => $module::rows::<{ $words }, 1, 2, 0>,
            (1, true, true) => $module::rows::<{ $words }, 1, 2, 2>,
            (_, false, false) => $module::rows::<{ $words }, NUM_TILES, 1, 0>,
            (_, false, true) => $module::rows::<{ $words }, NUM_TILES, 1, 1>,
            (_, true, false) => $module::rows::<{ $words }, NUM_TILES, 2, 0>,
            (_, true, true) => $module::rows::<{ $words }, NUM_TILES, 2, 2>,
        }
    };
}
const _: () = assert!(NUM_TILES == 2, "there are kernels for one tile and for two");

/// Returns the kernel for a number of tiles; the proof is what makes calling it sound.
pub(in super::super) fn kernel(proof: Avx2, scheme: Scheme, num_tiles: usize) -> PanelKernel {
    match Sums::of(proof, scheme) {
        Sums::Dots => kernel!(with_vnni, GROUP_WORDS, num_tiles, scheme),
        Sums::Full => kernel!(without_vnni, FULL, num_tiles, scheme),
        Sums::Words(2) => kernel!(without_vnni, 2, num_tiles, scheme),
        Sums::Words(4) => kernel!(without_vnni, 4, num_tiles, scheme),
        Sums::Words(_) => kernel!(without_vnni, GROUP_WORDS, num_tiles, scheme),
    }
}

/// Defines a module whose `rows` multiplies with `$part_dots`, compiled for `$features`.
macro_rules! rows_with {
    ($(#[$doc:meta])* $module:ident, $part_dots:ident, $features:literal) => {
        $(#[$doc])*
        mod $module {
            use super::*;

            pub(super) fn rows<
                const WORDS: usize,
                const TILES: usize,
                const PARTS: usize,
                const MINIMUMS: usize,
            >(
                panel: Panel<'_>,
                x: (&[PanelGroup], &[WideWord]),
                starts: &mut [Starts],
                sums: QuadSums<'_>,
            ) {
                // SAFETY: only `kernel` hands this function out, for a proof that the features
                // are present.
                unsafe { rows_avx2::<WORDS, TILES, PARTS, MINIMUMS>(panel, x, starts, sums) }
            }

            /// `WORDS` are added up in 16 bits, `PARTS` is 2 where the halves of a group have
            /// scales of their own; `MINIMUMS` is 0 or as many.
            #[target_feature(enable = $features)]
            fn rows_avx2<
                const WORDS: usize,
                const TILES: usize,
                const PARTS: usize,
                const MINIMUMS: usize,
            >(
                panel: Panel<'_>,
                (groups, wide): (&[PanelGroup], &[WideWord]),
                starts: &mut [Starts],
                sums: QuadSums<'_>,
            ) {
                let QuadSums { acc, results } = sums;
                let acc: &mut Acc<TILES> =
                    acc.as_chunks_mut().0.first_chunk_mut().expect("four rows");
                let words = panel.codes.as_chunks::<TILES>().0.as_chunks::<GROUP_WORDS>().0;
                let scales = panel.scales.as_chunks::<TILES>().0.chunks_exact(PARTS + MINIMUMS);
                let starts = starts.as_chunks_mut::<PARTS>().0;
                add_wide_words(words, wide, starts);
                if panel.is_first {
                    acc.as_flattened_mut().iter_mut().for_each(|line| clear(line));
                }
                let prefetch_at = groups.len().saturating_sub(PREFETCH_GROUPS);
                let groups = words.iter().zip(scales).zip(groups).enumerate();
                for (index, ((words, scales), group)) in groups {
                    if index == prefetch_at {
                        prefetch_results(&results);
                    }
                    let starts = group.slots.map(|slot| &starts[slot as usize]);
                    for tile in 0..TILES {
                        for part in 0..PARTS {
                            let first = part * GROUP_WORDS / PARTS;
                            let words_of_part = first..first + panel.part_words;
                            let first_sum = panel.first_sum;
                            let place = Place { tile, words: words_of_part, first_sum };
                            let starts = starts.map(|starts| &starts[part][tile]);
                            let dots = $part_dots::<WORDS, TILES, PARTS>(words, &place, group, starts);
                            add_part(acc, tile, dots, &scales[part][tile], &group.scales);
                            if MINIMUMS > 0 {
                                let minimum = &scales[PARTS + part][tile];
                                add_minimums(acc, tile, minimum, &group.sums[part]);
                            }
                        }
                    }
                }
                if let Some(rows) = results {
                    for (row, acc) in rows.into_iter().zip(acc) {
                        row.copy_from_slice(bytemuck::cast_slice(acc));
                    }
                }
            }
        }
    };
}

rows_with!(
    /// With AVX2's own multiplications.
    without_vnni,
    part_dots,
    "avx2,fma,f16c"
);
rows_with!(
    /// With AVX-VNNI's dot products.
    with_vnni,
    part_dots_with_vnni,
    "avx2,fma,f16c,avxvnni"
);

/// Returns the dot products of a part of a group, `WORDS` of which are added up in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn part_dots<const WORDS: usize, const TILES: usize, const PARTS: usize>(
    words: &GroupLines<TILES>,
    place: &Place,
    group: &PanelGroup,
    starts: [&SumLine; QUAD],
) -> Dots {
    let ones = _mm256_set1_epi16(1);
    if WORDS * PARTS >= GROUP_WORDS {
        // The starts are loaded behind the loop, in which they would take the sums' registers.
        let sums = word_sums::<WORDS, TILES>(words, place.words.start, place, group);
        let mut dots = starts_of(starts);
        for r in 0..QUAD {
            for h in 0..2 {
                let wide = _mm256_madd_epi16(sums[r][h], ones);
                dots[r][h] = _mm256_add_epi32(dots[r][h], wide);
            }
        }
        return dots;
    }
    let mut dots = starts_of(starts);
    let mut first = place.words.start;
    while first < place.words.end {
        let sums = word_sums::<WORDS, TILES>(words, first, place, group);
        for r in 0..QUAD {
            for h in 0..2 {
                let wide = _mm256_madd_epi16(sums[r][h], ones);
                dots[r][h] = _mm256_add_epi32(dots[r][h], wide);
            }
        }
        first += WORDS;
    }
    dots
}

/// Returns what `WORDS` words of a group from `first` on add up to in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn word_sums<const WORDS: usize, const TILES: usize>(
    words: &GroupLines<TILES>,
    first: usize,
    place: &Place,
    group: &PanelGroup,
) -> Dots {
    let first_sum = if WORDS == GROUP_WORDS { place.first_sum } else { 0 };
    let mut sums = [[_mm256_set1_epi16(first_sum); 2]; QUAD];
    for i in 0..WORDS {
        let k = (first + i) % GROUP_WORDS;
        let w = words[k][place.tile].halves();
        for (sums, codes) in sums.iter_mut().zip(&group.codes) {
            let x = _mm256_set1_epi32(codes[k]);
            for h in 0..2 {
                let pairs = if WORDS == FULL {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(w[h]), _mm256_sign_epi8(x, w[h]))
                } else {
                    _mm256_maddubs_epi16(x, w[h])
                };
                sums[h] = _mm256_add_epi16(sums[h], pairs);
            }
        }
        keep_order(&mut sums);
    }
    sums
}

/// Has the compiler add up word after word, so that eight sums run side by side and few registers
/// are live: left to itself, it loads many words first and runs out of registers.
#[inline]
#[target_feature(enable = "avx2")]
fn keep_order([[a, b], [c, d], [e, f], [g, h]]: &mut Dots) {
    // SAFETY: the template is a comment, so nothing runs; but the compiler has to believe that it
    // changes the sums and reads memory, so it neither adds nor loads ahead of it.
    unsafe {
        asm!(
            "/* {} {} {} {} {} {} {} {} */",
            inout(ymm_reg) * a,
            inout(ymm_reg) * b,
            inout(ymm_reg) * c,
            inout(ymm_reg) * d,
            inout(ymm_reg) * e,
            inout(ymm_reg) * f,
            inout(ymm_reg) * g,
            inout(ymm_reg) * h,
            options(nostack, preserves_flags),
        );
    }
}

/// Returns the dot products of a part of a group.
#[expect(clippy::needless_range_loop, reason = "rows and halves are indexed alike")]
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn part_dots_with_vnni<const WORDS: usize, const TILES: usize, const PARTS: usize>(
    words: &GroupLines<TILES>,
    place: &Place,
    group: &PanelGroup,
    starts: [&SumLine; QUAD],
) -> Dots {
    let mut dots = starts_of(starts);
    for k in place.words.clone() {
        let w = words[k % GROUP_WORDS][place.tile].halves();
        for r in 0..QUAD {
            let x = _mm256_set1_epi32(group.codes[r][k % GROUP_WORDS]);
            for h in 0..2 {
                dots[r][h] = _mm256_dpbusd_avx_epi32(dots[r][h], x, w[h]);
            }
        }
    }
    dots
}

#[inline]
#[target_feature(enable = "avx2")]
fn clear(line: &mut FloatLine) {
    line.put_halves([_mm256_setzero_ps(); 2]);
}

#[inline]
#[target_feature(enable = "avx2")]
fn starts_of(starts: [&SumLine; QUAD]) -> Dots {
    let mut dots = [[_mm256_setzero_si256(); 2]; QUAD];
    for (dots, start) in dots.iter_mut().zip(starts) {
        *dots = start.halves();
    }
    dots
}

/// Adds the scaled dot products of a part of a group.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_part<const TILES: usize>(
    acc: &mut Acc<TILES>,
    tile: usize,
    dots: Dots,
    w_scale: &FloatLine,
    x_scales: &[f32; QUAD],
) {
    let w_scale = w_scale.halves();
    for r in 0..QUAD {
        let x_scale = _mm256_set1_ps(x_scales[r]);
        let mut sums = acc[r][tile].halves();
        for h in 0..2 {
            let scale = _mm256_mul_ps(w_scale[h], x_scale);
            sums[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r][h]), scale, sums[h]);
        }
        acc[r][tile].put_halves(sums);
    }
}

/// Adds the minimums' share of a part of a group.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_minimums<const TILES: usize>(
    acc: &mut Acc<TILES>,
    tile: usize,
    minimum: &FloatLine,
    sums: &[f32; QUAD],
) {
    let minimum = minimum.halves();
    for r in 0..QUAD {
        let x = _mm256_set1_ps(sums[r]);
        let [low, high] = acc[r][tile].halves();
        let low = _mm256_fmadd_ps(minimum[0], x, low);
        acc[r][tile].put_halves([low, _mm256_fmadd_ps(minimum[1], x, high)]);
    }
}

/// Writes where the dot products of rows with wide words begin, behind the starts of the groups.
#[inline]
#[target_feature(enable = "avx2")]
fn add_wide_words<const TILES: usize, const PARTS: usize>(
    words: &[GroupLines<TILES>],
    wide: &[WideWord],
    starts: &mut [[Starts; PARTS]],
) {
    let ones = _mm256_set1_epi16(1);
    let (groups, added) = starts.split_at_mut(words.len());
    for (sums, word) in added.iter_mut().zip(wide) {
        let (g, k) = (usize::from(word.group), usize::from(word.word) % GROUP_WORDS);
        *sums = groups[g];
        let high = _mm256_set1_epi32(word.high);
        let sums = &mut sums[k * PARTS / GROUP_WORDS];
        for (sum, codes) in sums.iter_mut().zip(&words[g][k]) {
            let (mut halves, w) = (sum.halves(), codes.halves());
            for h in 0..2 {
                // Products of bytes of any sign: at most 2 * 128 * 127 for two of them.
                let high = _mm256_sign_epi8(high, w[h]);
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[h]), high);
                let dot = _mm256_madd_epi16(pairs, ones);
                halves[h] = _mm256_add_epi32(halves[h], _mm256_slli_epi32::<8>(dot));
            }
            sum.put_halves(halves);
        }
    }
}
