//! Quantises rows for panels: the arithmetic of [`crate::activation_rows`], eight groups at once.
//!
//! Two groups of four rows make a batch. Their maxima come to the lanes of one vector, so that
//! scales and inverses are found for all eight together; lane `4 g + r` is that of group `g` of row
//! `r`, so that four lanes are what a [`PanelGroup`] holds together.
//!
//! Cost: reads 128 bytes and writes 48 for each group of a row.
//!
//! [`PanelGroup`]: super::super::activations::PanelGroup

use super::super::activations::{ActivationForm, QuadRows, Stretches, slot};
use super::super::row_batches::{Batch, StretchRows, for_each_batch};
use crate::activation_rows::{GROUP, GROUP_WORDS, GroupCodes, PartSums, QUAD, outlier_limit};
use crate::exp::ROUND;
use crate::isa::Avx2;
use crate::lanes::Avx2Lanes;
use std::arch::x86_64::{
    __m256, __m256i, _CMP_EQ_OQ, _CMP_GT_OQ, _CMP_LT_OQ, _mm256_add_ps, _mm256_and_ps,
    _mm256_andnot_ps, _mm256_blendv_ps, _mm256_castps_si256, _mm256_cmp_ps, _mm256_div_ps,
    _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps,
    _mm256_movemask_ps, _mm256_mul_ps, _mm256_packs_epi16, _mm256_packs_epi32,
    _mm256_permute2f128_ps, _mm256_permutevar8x32_epi32, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setr_epi32, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_storeu_si256,
    _mm256_sub_epi32, _mm256_sub_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps, _mm256_xor_si256,
};
use std::ops::Range;

/// Lanes of a vector.
const LANES: usize = 8;
/// Vectors of a group.
const VECTORS: usize = GROUP / LANES;
/// Groups of a batch.
const BATCH: usize = 2;
const _: () = assert!(BATCH * QUAD == LANES, "a batch fills a vector");

/// A group of a row.
type Group = [__m256; VECTORS];

/// Quantises up to four rows, the first of `x`; rows that it lacks are zeros. The second, which
/// come after them, are asked for meanwhile.
pub(in super::super) fn quantize_quad(
    proof: Avx2,
    x: [&[f32]; 2],
    form: ActivationForm,
    stretches: Stretches,
    quad: QuadRows<'_>,
) {
    // SAFETY: the proof shows that the instructions are present.
    unsafe { quantize_quad_avx2(proof, x, form, stretches, quad) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_quad_avx2(
    proof: Avx2,
    x: [&[f32]; 2],
    form: ActivationForm,
    stretches: Stretches,
    quad: QuadRows<'_>,
) {
    let mut limits = [0.0; QUAD];
    for (limit, row) in limits.iter_mut().zip(x[0].chunks_exact(quad.groups.len() * GROUP)) {
        *limit = outlier_limit::<Avx2Lanes>(proof, row);
    }
    for_each_batch(x, stretches, quad, |place, range, batch| {
        quantize_batch(place, range, batch, limits, form);
    });
}

/// Quantises the groups of a stretch that `range` names; `batch` has zeros behind them.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn quantize_batch(
    place: &mut StretchRows<'_>,
    range: Range<usize>,
    batch: &Batch<&[f32; GROUP], BATCH>,
    limits: [f32; QUAD],
    form: ActivationForm,
) {
    let found = batch_scales(batch, limits);
    let scales = lanes(found.scales);
    // Adds 128 to each byte, or nothing.
    let zeros = _mm256_set1_epi32(i32::from_le_bytes([form.zero; 4]));
    let mut halves = [[_mm256_setzero_ps(); LANES]; 2];
    for (g, (index, scales)) in range.clone().zip(scales.as_chunks().0).enumerate() {
        place.groups[index].scales = *scales;
        place.groups[index].slots = [slot(index); QUAD];
        for (r, batch) in batch.iter().enumerate() {
            let lane = g * QUAD + r;
            let x = load_group(batch[g]);
            let inverse = _mm256_set1_ps(found.inverses[lane]);
            let (codes, bytes);
            if found.outliers & (1 << lane) == 0 {
                codes = x.map(|x| round(x, inverse));
                bytes = low_bytes(codes);
            } else {
                let word = found.words[lane];
                let wide = WideCodes::of(x, inverse);
                (codes, bytes) = (wide.codes, wide.low);
                place.groups[index].slots[r] = place.put_wide_word(index, word, wide.high[word]);
            }
            put_bytes(_mm256_xor_si256(bytes, zeros), &mut place.groups[index].codes[r]);
            for (half, codes) in halves.iter_mut().zip(codes.as_chunks().0) {
                let [low, high] = *codes;
                half[lane] = _mm256_add_ps(low, high);
            }
        }
    }
    let Some(parts) = form.sums else { return };
    // Integers below 2^24, whose sums are exact in any order.
    let [first, second] = halves.map(|half| sum_lanes(&half));
    let sums = match parts {
        PartSums::Group => [_mm256_add_ps(first, second), _mm256_setzero_ps()],
        PartSums::Halves => [first, second],
    };
    for (part, sums) in sums.into_iter().enumerate() {
        let sums = lanes(_mm256_mul_ps(found.scales, sums));
        for (group, sums) in place.groups[range.clone()].iter_mut().zip(sums.as_chunks().0) {
            group.sums[part] = *sums;
        }
    }
}

/// What the groups of a batch are multiplied with.
struct BatchScales {
    scales: __m256,
    inverses: [f32; LANES],
    /// Bit `i` is set where the group of lane `i` has an outlier.
    outliers: u32,
    /// The outliers' words.
    words: [usize; LANES],
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn batch_scales(batch: &Batch<&[f32; GROUP], BATCH>, limits: [f32; QUAD]) -> BatchScales {
    let mut largest = [_mm256_setzero_ps(); LANES];
    for (r, groups) in batch.iter().enumerate() {
        for (g, group) in groups.iter().enumerate() {
            let [a, b, c, d] = load_group(group).map(|x| abs(x));
            largest[g * QUAD + r] = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
        }
    }
    let largest = max_lanes(&largest);
    let limits = [limits; BATCH];
    let limits = load(limits.as_flattened().first_chunk().expect("eight limits"));
    let is_outlier = _mm256_cmp_ps::<_CMP_GT_OQ>(_mm256_mul_ps(largest, largest), limits);
    let outliers = _mm256_movemask_ps(is_outlier).cast_unsigned();
    let mut reach = lanes(largest);
    let mut words = [0; LANES];
    let mut left = outliers;
    while left != 0 {
        let lane = left.trailing_zeros() as usize % LANES;
        left &= left - 1;
        let group = batch[lane % QUAD][lane / QUAD];
        let (word, rest) = outlier_word(load_group(group), reach[lane]);
        words[lane] = word;
        reach[lane] = rest.max(reach[lane] * (1.0 / 256.0));
    }
    let reach = load(&reach);
    let infinity = _mm256_set1_ps(f32::INFINITY);
    let most = _mm256_set1_ps(127.0);
    // A subnormal reach makes the inverse infinite; such a group is zero for all purposes.
    let inverses = _mm256_div_ps(most, reach);
    let is_finite = _mm256_cmp_ps::<_CMP_LT_OQ>(inverses, infinity);
    let inverses = lanes(_mm256_and_ps(inverses, is_finite));
    let is_finite = _mm256_cmp_ps::<_CMP_LT_OQ>(limits, infinity);
    let scales = _mm256_div_ps(reach, most);
    let scales = _mm256_blendv_ps(_mm256_set1_ps(f32::NAN), scales, is_finite);
    BatchScales { scales, inverses, outliers, words }
}

/// Returns the word of the largest value, whose magnitude is given, and the largest of the other
/// words.
#[inline]
#[target_feature(enable = "avx2")]
fn outlier_word(x: Group, largest: f32) -> (usize, f32) {
    const WORD_LANES: usize = GROUP / GROUP_WORDS;
    let maxima = x.map(|x| word_maxima(x));
    let largest = _mm256_set1_ps(largest);
    let mut found = 0;
    for (i, maxima) in maxima.iter().enumerate() {
        let is_largest = _mm256_cmp_ps::<_CMP_EQ_OQ>(*maxima, largest);
        found |= _mm256_movemask_ps(is_largest).cast_unsigned() << (i * LANES);
    }
    let word = found.trailing_zeros() as usize / WORD_LANES % GROUP_WORDS;
    let maxima = maxima.map(|maxima| lanes(maxima));
    let mut rest = 0.0_f32;
    for (i, values) in maxima.as_flattened().chunks_exact(WORD_LANES).enumerate() {
        rest = if i == word { rest } else { rest.max(values[0]) };
    }
    (word, rest)
}

/// Returns the largest magnitude of each four lanes in all of them.
#[inline]
#[target_feature(enable = "avx2")]
fn word_maxima(x: __m256) -> __m256 {
    let x = abs(x);
    let x = _mm256_max_ps(x, _mm256_shuffle_ps::<0b01_00_11_10>(x, x));
    _mm256_max_ps(x, _mm256_shuffle_ps::<0b10_11_00_01>(x, x))
}

/// A group with codes of up to 15 bits and a sign.
struct WideCodes {
    /// What was written.
    codes: Group,
    low: __m256i,
    high: GroupCodes,
}

impl WideCodes {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn of(x: Group, inverse: __m256) -> Self {
        let byte = _mm256_set1_ps(256.0);
        let (least, most) = (_mm256_set1_ps(-127.0), _mm256_set1_ps(127.0));
        let (mut codes, mut lows, mut highs) = (x, x, x);
        for i in 0..VECTORS {
            let code = round(x[i], inverse);
            highs[i] = round(code, _mm256_set1_ps(1.0 / 256.0));
            let low = _mm256_fnmadd_ps(highs[i], byte, code);
            lows[i] = _mm256_max_ps(_mm256_min_ps(low, most), least);
            codes[i] = _mm256_fmadd_ps(highs[i], byte, lows[i]);
        }
        let mut high = GroupCodes::default();
        put_bytes(low_bytes(highs), &mut high);
        Self { codes, low: low_bytes(lows), high }
    }
}

/// Returns `x * inverse`, rounded.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn round(x: __m256, inverse: __m256) -> __m256 {
    let shift = _mm256_set1_ps(ROUND);
    _mm256_sub_ps(_mm256_fmadd_ps(x, inverse, shift), shift)
}

/// Returns integers of seven bits and a sign as bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn low_bytes(codes: Group) -> __m256i {
    // Adding this leaves a small integer in the low bits.
    let shift = _mm256_set1_ps(ROUND);
    let bits = _mm256_castps_si256(shift);
    let [a, b, c, d] =
        codes.map(|x| _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(x, shift)), bits));
    // Packing keeps to the halves of vectors: words 0 2 4 6 come first, then 1 3 5 7.
    let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[inline]
#[target_feature(enable = "avx2")]
fn put_bytes(bytes: __m256i, out: &mut GroupCodes) {
    // SAFETY: `out` is one writable vector; the instruction needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) };
}

/// Defines a function that brings the result of an operation over all lanes of each of eight
/// vectors to its lane.
macro_rules! reductions {
    ($($name:ident: $op:ident),*) => {$(
        #[inline]
        #[target_feature(enable = "avx2")]
        fn $name(vectors: &[__m256; LANES]) -> __m256 {
            // Lanes of four vectors, each in both halves of the result.
            let mut fours = [_mm256_setzero_ps(); 2];
            for (four, vectors) in fours.iter_mut().zip(vectors.as_chunks().0) {
                let [a, b, c, d] = *vectors;
                let first = $op(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let second = $op(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                let low = _mm256_shuffle_ps::<0b01_00_01_00>(first, second);
                *four = $op(low, _mm256_shuffle_ps::<0b11_10_11_10>(first, second));
            }
            let low = _mm256_permute2f128_ps::<0b10_0000>(fours[0], fours[1]);
            $op(low, _mm256_permute2f128_ps::<0b11_0001>(fours[0], fours[1]))
        }
    )*};
}
reductions! { max_lanes: _mm256_max_ps, sum_lanes: _mm256_add_ps }

#[inline]
#[target_feature(enable = "avx2")]
fn abs(x: __m256) -> __m256 {
    _mm256_andnot_ps(_mm256_set1_ps(-0.0), x)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_group(x: &[f32; GROUP]) -> Group {
    let vectors = x.as_chunks::<LANES>().0;
    [0, 1, 2, 3].map(|i| load(&vectors[i]))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(x: &[f32; LANES]) -> __m256 {
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn lanes(vector: __m256) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), vector) };
    lanes
}
