//! Quantises rows for panels: the arithmetic of [`crate::activation_rows`], sixteen groups at once.
//!
//! Four groups of four rows make a batch. Their maxima come to the lanes of one vector, so that
//! scales and inverses are found for all sixteen together; lane `4 g + r` is that of group `g` of
//! row `r`, so that four lanes are what a [`PanelGroup`] holds together.
//!
//! Cost: reads 128 bytes and writes 48 for each group of a row.
//!
//! [`PanelGroup`]: super::super::activations::PanelGroup

use super::super::activations::{ActivationForm, QuadRows, Stretches, ZERO, slot};
use super::super::row_batches::{Batch, StretchRows, for_each_batch};
use crate::activation_rows::{GROUP, GROUP_WORDS, GroupCodes, PartSums, QUAD, outlier_limit};
use crate::exp::ROUND;
use crate::isa::Avx512;
use crate::lanes::{Avx512Lanes, LANES};
use std::arch::x86_64::{
    __m512, _CMP_EQ_OQ, _CMP_GT_OQ, _CMP_LT_OQ, _mm_cvtss_f32, _mm_storeu_si128, _mm512_abs_ps,
    _mm512_add_ps, _mm512_castps_si512, _mm512_castps512_ps128, _mm512_cmp_ps_mask,
    _mm512_cvtepi32_epi8, _mm512_div_ps, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_ps,
    _mm512_mask_mov_ps, _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_shuffle_ps, _mm512_storeu_ps,
    _mm512_sub_ps,
};
use std::ops::Range;

/// Groups of a batch.
const BATCH: usize = 4;
const _: () = assert!(BATCH * QUAD == LANES, "a batch fills a vector");

/// Quantises up to four rows, the first of `x`; rows that it lacks are zeros. The second, which
/// come after them, are asked for meanwhile.
pub(in super::super) fn quantize_quad(
    proof: Avx512,
    x: [&[f32]; 2],
    form: ActivationForm,
    stretches: Stretches,
    quad: QuadRows<'_>,
) {
    debug_assert_eq!(form.zero, ZERO, "products with AVX-512 take unsigned codes");
    // SAFETY: the proof shows that the instructions are present.
    unsafe { quantize_quad_avx512(proof, x, form, stretches, quad) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn quantize_quad_avx512(
    proof: Avx512,
    x: [&[f32]; 2],
    form: ActivationForm,
    stretches: Stretches,
    quad: QuadRows<'_>,
) {
    let mut limits = [0.0; QUAD];
    for (limit, row) in limits.iter_mut().zip(x[0].chunks_exact(quad.groups.len() * GROUP)) {
        *limit = outlier_limit::<Avx512Lanes>(proof, row);
    }
    for_each_batch(x, stretches, quad, |place, range, batch| {
        quantize_batch(place, range, batch, limits, form.sums);
    });
}

/// Quantises the groups of a stretch that `range` names; `batch` has zeros behind them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn quantize_batch(
    place: &mut StretchRows<'_>,
    range: Range<usize>,
    batch: &Batch<&[f32; GROUP], BATCH>,
    limits: [f32; QUAD],
    parts: Option<PartSums>,
) {
    let found = batch_scales(batch, limits);
    let scales = lanes(found.scales);
    let mut codes = [[[_mm512_setzero_ps(); BATCH]; QUAD]; 2];
    for (g, (index, scales)) in range.clone().zip(scales.as_chunks().0).enumerate() {
        place.groups[index].scales = *scales;
        place.groups[index].slots = [slot(index); QUAD];
        for r in 0..QUAD {
            let lane = g * QUAD + r;
            let x = load_group(batch[r][g]);
            let inverse = _mm512_set1_ps(found.inverses[lane]);
            let values;
            if found.outliers & (1 << lane) == 0 {
                values = put_codes(x, inverse, &mut place.groups[index].codes[r]);
            } else {
                let word = found.words[lane];
                let high;
                let codes = &mut place.groups[index].codes[r];
                (values, high) = put_wide_codes(x, inverse, word, codes);
                place.groups[index].slots[r] = place.put_wide_word(index, word, high);
            }
            [codes[0][r][g], codes[1][r][g]] = values;
        }
    }
    let Some(parts) = parts else { return };
    let [first, second] = [sum_lanes(&codes[0]), sum_lanes(&codes[1])];
    let sums = match parts {
        PartSums::Group => [_mm512_add_ps(first, second), _mm512_setzero_ps()],
        PartSums::Halves => [first, second],
    };
    for (part, sums) in sums.into_iter().enumerate() {
        let sums = lanes(_mm512_mul_ps(found.scales, sums));
        for (group, sums) in place.groups[range.clone()].iter_mut().zip(sums.as_chunks().0) {
            group.sums[part] = *sums;
        }
    }
}

/// What the groups of a batch are multiplied with.
struct BatchScales {
    scales: __m512,
    inverses: [f32; LANES],
    /// Bit `i` is set where the group of lane `i` has an outlier.
    outliers: u16,
    /// The outliers' words.
    words: [usize; LANES],
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn batch_scales(batch: &Batch<&[f32; GROUP], BATCH>, limits: [f32; QUAD]) -> BatchScales {
    let mut largest = [[_mm512_setzero_ps(); BATCH]; QUAD];
    for (largest, groups) in largest.iter_mut().zip(batch) {
        for (largest, group) in largest.iter_mut().zip(groups) {
            let x = load_group(group);
            *largest = _mm512_max_ps(_mm512_abs_ps(x[0]), _mm512_abs_ps(x[1]));
        }
    }
    let largest = max_lanes(&largest);
    let limits = [limits; BATCH];
    let limits = load(limits.as_flattened().first_chunk().expect("sixteen limits"));
    let outliers = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(_mm512_mul_ps(largest, largest), limits);
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
    let infinity = _mm512_set1_ps(f32::INFINITY);
    let most = _mm512_set1_ps(127.0);
    // A subnormal reach makes the inverse infinite; such a group is zero for all purposes.
    let inverses = _mm512_div_ps(most, reach);
    let finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(inverses, infinity);
    let inverses = lanes(_mm512_maskz_mov_ps(finite, inverses));
    let finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(limits, infinity);
    let scales = _mm512_div_ps(reach, most);
    let scales = _mm512_mask_mov_ps(_mm512_set1_ps(f32::NAN), finite, scales);
    BatchScales { scales, inverses, outliers, words }
}

/// Returns the word of the largest value, whose magnitude is given, and the largest of the other
/// words.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn outlier_word(x: [__m512; 2], largest: f32) -> (usize, f32) {
    let words = [word_maxima(x[0]), word_maxima(x[1])];
    let largest = _mm512_set1_ps(largest);
    let first = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(words[0], largest);
    let second = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(words[1], largest);
    let lane = (u32::from(first) | u32::from(second) << LANES).trailing_zeros() as usize;
    let word = lane / 4 % GROUP_WORDS;
    let others = !(0b1111_u32 << (word * 4));
    #[expect(clippy::cast_possible_truncation, reason = "half of the lanes each")]
    let [first, second] = [others as u16, (others >> LANES) as u16];
    let rest =
        _mm512_max_ps(_mm512_maskz_mov_ps(first, words[0]), _mm512_maskz_mov_ps(second, words[1]));
    let rest = _mm512_max_ps(rest, _mm512_shuffle_f32x4::<0b01_00_11_10>(rest, rest));
    let rest = _mm512_max_ps(rest, _mm512_shuffle_f32x4::<0b10_11_00_01>(rest, rest));
    (word, _mm_cvtss_f32(_mm512_castps512_ps128(rest)))
}

/// Returns the largest magnitude of each four lanes in all of them.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn word_maxima(x: __m512) -> __m512 {
    let x = _mm512_abs_ps(x);
    let x = _mm512_max_ps(x, _mm512_shuffle_ps::<0b01_00_11_10>(x, x));
    _mm512_max_ps(x, _mm512_shuffle_ps::<0b10_11_00_01>(x, x))
}

/// Writes the codes of a group without an outlier, and returns them.
#[inline]
#[target_feature(enable = "avx512f")]
fn put_codes(x: [__m512; 2], inverse: __m512, out: &mut GroupCodes) -> [__m512; 2] {
    // Rounds as `ROUND` does: the difference is even.
    let shift = _mm512_set1_ps(ROUND + f32::from(ZERO));
    let shifted = [_mm512_fmadd_ps(x[0], inverse, shift), _mm512_fmadd_ps(x[1], inverse, shift)];
    put_low_bytes(shifted, out);
    [_mm512_sub_ps(shifted[0], shift), _mm512_sub_ps(shifted[1], shift)]
}

/// Writes the low bytes of the codes of a group whose `word` has wide codes; returns the codes, and
/// the high bytes of the word.
#[inline]
#[target_feature(enable = "avx512f")]
fn put_wide_codes(
    x: [__m512; 2],
    inverse: __m512,
    word: usize,
    out: &mut GroupCodes,
) -> ([__m512; 2], i32) {
    let shift = _mm512_set1_ps(ROUND);
    let zero = _mm512_set1_ps(ROUND + f32::from(ZERO));
    let byte = _mm512_set1_ps(256.0);
    let (least, most) = (_mm512_set1_ps(-127.0), _mm512_set1_ps(127.0));
    let (mut low, mut high) = ([_mm512_setzero_ps(); 2], [_mm512_setzero_ps(); 2]);
    let mut codes = low;
    for i in 0..2 {
        let code = _mm512_sub_ps(_mm512_fmadd_ps(x[i], inverse, shift), shift);
        high[i] = _mm512_fmadd_ps(code, _mm512_set1_ps(1.0 / 256.0), shift);
        let highs = _mm512_sub_ps(high[i], shift);
        let lows = _mm512_fnmadd_ps(highs, byte, code);
        let lows = _mm512_max_ps(_mm512_min_ps(lows, most), least);
        low[i] = _mm512_add_ps(lows, zero);
        codes[i] = _mm512_fmadd_ps(highs, byte, lows);
    }
    put_low_bytes(low, out);
    let mut highs = GroupCodes::default();
    put_low_bytes(high, &mut highs);
    (codes, highs[word])
}

/// Writes the low bytes of all lanes' bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn put_low_bytes(x: [__m512; 2], out: &mut GroupCodes) {
    for (x, out) in x.into_iter().zip(out.as_chunks_mut::<{ LANES / 4 }>().0) {
        let bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(x));
        // SAFETY: `out` is 16 writable bytes; the instruction needs no alignment.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), bytes) };
    }
}

/// Defines a function that brings the result of an operation over all lanes of each of a batch's
/// vectors to its lane.
macro_rules! reductions {
    ($($name:ident: $op:ident),*) => {$(
        #[inline]
        #[target_feature(enable = "avx512f")]
        fn $name(batch: &Batch<__m512, BATCH>) -> __m512 {
            let mut rows = [_mm512_setzero_ps(); QUAD];
            for (row, [a, b, c, d]) in rows.iter_mut().zip(*batch) {
                let (low, high) = (pairs::<0b01_00_01_00>(a, b), pairs::<0b11_10_11_10>(a, b));
                let first = $op(low, high);
                let (low, high) = (pairs::<0b01_00_01_00>(c, d), pairs::<0b11_10_11_10>(c, d));
                let second = $op(low, high);
                let even = pairs::<0b10_00_10_00>(first, second);
                *row = $op(even, pairs::<0b11_01_11_01>(first, second));
            }
            let [a, b, c, d] = rows;
            let low = _mm512_shuffle_ps::<0b01_00_01_00>(a, b);
            let first = $op(low, _mm512_shuffle_ps::<0b11_10_11_10>(a, b));
            let low = _mm512_shuffle_ps::<0b01_00_01_00>(c, d);
            let second = $op(low, _mm512_shuffle_ps::<0b11_10_11_10>(c, d));
            let even = _mm512_shuffle_ps::<0b10_00_10_00>(first, second);
            $op(even, _mm512_shuffle_ps::<0b11_01_11_01>(first, second))
        }
    )*};
}
reductions! { max_lanes: _mm512_max_ps, sum_lanes: _mm512_add_ps }

/// Returns two quarters of each vector.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs<const QUARTERS: i32>(a: __m512, b: __m512) -> __m512 {
    _mm512_shuffle_f32x4::<QUARTERS>(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_group(x: &[f32; GROUP]) -> [__m512; 2] {
    let halves = x.as_chunks::<LANES>().0;
    [load(&halves[0]), load(&halves[1])]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(x: &[f32; LANES]) -> __m512 {
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(vector: __m512) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), vector) };
    lanes
}
