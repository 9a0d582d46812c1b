//! Lanes as two AVX2 registers.
//!
//! Every method relies on one fact: a value exists only if [`Avx2::detect`] found the
//! instructions (AVX2, FMA and F16C), because all constructors take that proof.

use super::{LANES, Lanes, PairSums};
use crate::float_format::{Bf16, F16};
use crate::isa::Avx2;
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_LT_OQ, _mm_cvtss_f32, _mm_loadu_si128, _mm256_add_epi32,
    _mm256_add_ps, _mm256_andnot_ps, _mm256_castps_si256, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_permute_ps,
    _mm256_permute2f128_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_si256,
    _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};
use std::sync::atomic::{Ordering, compiler_fence};

/// Sixteen lanes in two registers, the lower eight first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2Lanes(__m256, __m256);

/// Calls an intrinsic that takes and returns registers only.
macro_rules! on_registers {
    ($call:expr) => {{
        // SAFETY: the instructions are present, as the module header shows, and the intrinsic
        // touches no memory.
        unsafe { $call }
    }};
}

/// Applies a two-operand intrinsic to both halves.
macro_rules! both {
    ($op:ident, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        Self(on_registers!($op(a.0, b.0)), on_registers!($op(a.1, b.1)))
    }};
}

/// Combines lane `i` with lane `i + 8`, then `i + 4`, `i + 2` and `i + 1`.
macro_rules! reduce {
    ($lanes:expr, $op:ident) => {{
        let eight = on_registers!($op($lanes.0, $lanes.1));
        let swapped = on_registers!(_mm256_permute2f128_ps::<0x01>(eight, eight));
        let four = on_registers!($op(eight, swapped));
        let two = on_registers!($op(four, _mm256_permute_ps::<0b01_00_11_10>(four)));
        let one = on_registers!($op(two, _mm256_permute_ps::<0b10_11_00_01>(two)));
        on_registers!(_mm_cvtss_f32(_mm256_castps256_ps128(one)))
    }};
}

#[inline(always)]
fn load_words<T>(lanes: &[T; LANES]) -> [__m128i; 2] {
    const { assert!(size_of::<T>() == 2) };
    let halves = lanes.as_chunks::<{ LANES / 2 }>().0;
    // SAFETY: each half is 16 readable bytes; the instruction needs no alignment and is part of
    // every x86-64 processor.
    halves
        .first_chunk()
        .expect("two halves")
        .each_ref()
        .map(|half: &[T; LANES / 2]| unsafe { _mm_loadu_si128(half.as_ptr().cast()) })
}

#[inline(always)]
fn halves(lanes: &[f32; LANES]) -> [&[f32; LANES / 2]; 2] {
    let halves = lanes.as_chunks().0;
    [&halves[0], &halves[1]]
}

#[inline(always)]
fn power_of_two(shifted: __m256) -> __m256 {
    let power = on_registers!(_mm256_slli_epi32::<23>(_mm256_castps_si256(shifted)));
    on_registers!(_mm256_castsi256_ps(power))
}

#[inline(always)]
fn widen_bf16(words: __m128i) -> __m256 {
    let wide = on_registers!(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)));
    on_registers!(_mm256_castsi256_ps(wide))
}

#[inline(always)]
fn zero_where_below(value: __m256, x: __m256, limit: __m256) -> __m256 {
    let below = on_registers!(_mm256_cmp_ps::<_CMP_LT_OQ>(x, limit));
    on_registers!(_mm256_andnot_ps(below, value))
}

impl Lanes for Avx2Lanes {
    type Proof = Avx2;
    type Sums = Avx2Sums;

    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    fn forget_loads() {
        compiler_fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn splat(_proof: Avx2, value: f32) -> Self {
        let half = on_registers!(_mm256_set1_ps(value));
        Self(half, half)
    }

    #[inline(always)]
    fn load(_proof: Avx2, lanes: &[f32; LANES]) -> Self {
        let [low, high] = halves(lanes);
        // SAFETY: the half is 32 readable bytes; the proof shows the instruction.
        let low = unsafe { _mm256_loadu_ps(low.as_ptr()) };
        // SAFETY: as above.
        let high = unsafe { _mm256_loadu_ps(high.as_ptr()) };
        Self(low, high)
    }

    #[inline(always)]
    fn load_bf16(_proof: Avx2, lanes: &[Bf16; LANES]) -> Self {
        let [low, high] = load_words(lanes);
        Self(widen_bf16(low), widen_bf16(high))
    }

    #[inline(always)]
    fn load_f16(_proof: Avx2, lanes: &[F16; LANES]) -> Self {
        let [low, high] = load_words(lanes);
        Self(on_registers!(_mm256_cvtph_ps(low)), on_registers!(_mm256_cvtph_ps(high)))
    }

    #[inline(always)]
    fn from_sums(Avx2Sums(low, high): Avx2Sums) -> Self {
        Self(on_registers!(_mm256_cvtepi32_ps(low)), on_registers!(_mm256_cvtepi32_ps(high)))
    }

    #[inline(always)]
    fn store(self, lanes: &mut [f32; LANES]) {
        let (low, high) = lanes.split_at_mut(LANES / 2);
        // SAFETY: the half is 32 writable bytes; `self` shows the instruction.
        unsafe { _mm256_storeu_ps(low.as_mut_ptr(), self.0) };
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(high.as_mut_ptr(), self.1) };
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        both!(_mm256_add_ps, self, other)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        both!(_mm256_sub_ps, self, other)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        both!(_mm256_mul_ps, self, other)
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        let low = on_registers!(_mm256_fmadd_ps(self.0, factor.0, term.0));
        Self(low, on_registers!(_mm256_fmadd_ps(self.1, factor.1, term.1)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        both!(_mm256_max_ps, self, other)
    }

    #[inline(always)]
    fn at_most(self, limit: Self) -> Self {
        both!(_mm256_min_ps, limit, self)
    }

    #[inline(always)]
    fn abs(self) -> Self {
        let sign = on_registers!(_mm256_set1_ps(-0.0));
        both!(_mm256_andnot_ps, Self(sign, sign), self)
    }

    #[inline(always)]
    fn zero_where_below(self, x: Self, limit: Self) -> Self {
        Self(zero_where_below(self.0, x.0, limit.0), zero_where_below(self.1, x.1, limit.1))
    }

    #[inline(always)]
    fn scale_by_power(self, shifted: Self) -> Self {
        both!(_mm256_mul_ps, self, Self(power_of_two(shifted.0), power_of_two(shifted.1)))
    }

    #[inline(always)]
    fn swapped<const DISTANCE: usize>(self) -> Self {
        const { assert!(matches!(DISTANCE, 1 | 2 | 4 | 8)) };
        let half = |half: __m256| match DISTANCE {
            1 => on_registers!(_mm256_permute_ps::<0b10_11_00_01>(half)),
            2 => on_registers!(_mm256_permute_ps::<0b01_00_11_10>(half)),
            _ => on_registers!(_mm256_permute2f128_ps::<0x01>(half, half)),
        };
        if DISTANCE == 8 { Self(self.1, self.0) } else { Self(half(self.0), half(self.1)) }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the low byte is what is asked for")]
    fn low_bytes(self) -> [i8; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        let mut bytes = [0; LANES];
        for (byte, lane) in bytes.iter_mut().zip(lanes) {
            *byte = lane.to_bits() as i8;
        }
        bytes
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
    fn low_halves(self) -> [i16; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        let mut words = [0; LANES];
        for (word, lane) in words.iter_mut().zip(lanes) {
            *word = lane.to_bits() as i16;
        }
        words
    }

    #[inline(always)]
    fn sum_lanes(self) -> f32 {
        reduce!(self, _mm256_add_ps)
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        reduce!(self, _mm256_max_ps)
    }
}

/// Sixteen integers in two registers, the lower eight first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2Sums(__m256i, __m256i);

impl PairSums for Avx2Sums {
    type Proof = Avx2;
    type Pairs = [__m256i; 2];

    #[inline(always)]
    fn zero(_proof: Avx2) -> Self {
        let half = on_registers!(_mm256_setzero_si256());
        Self(half, half)
    }

    #[inline(always)]
    fn splat_pair(_proof: Avx2, pair: [i16; 2]) -> [__m256i; 2] {
        let half = on_registers!(_mm256_set1_epi32(bytemuck::cast(pair)));
        [half, half]
    }

    #[inline(always)]
    fn load_i8(_proof: Avx2, pairs: &[[i8; 2]; LANES]) -> [__m256i; 2] {
        let [low, high] = load_words(pairs);
        [on_registers!(_mm256_cvtepi8_epi16(low)), on_registers!(_mm256_cvtepi8_epi16(high))]
    }

    #[inline(always)]
    fn load_i16(_proof: Avx2, pairs: &[[i16; 2]; LANES]) -> [__m256i; 2] {
        let halves: &[[[i16; 2]; LANES / 2]; 2] = pairs.as_chunks().0.first_chunk().expect("two");
        // SAFETY: each half is 32 readable bytes; the instruction needs no alignment, and the
        // proof shows it.
        halves.each_ref().map(|half| unsafe { _mm256_loadu_si256(half.as_ptr().cast()) })
    }

    #[inline(always)]
    fn add_products(self, a: [__m256i; 2], b: [__m256i; 2]) -> Self {
        Self(
            on_registers!(_mm256_add_epi32(self.0, _mm256_madd_epi16(a[0], b[0]))),
            on_registers!(_mm256_add_epi32(self.1, _mm256_madd_epi16(a[1], b[1]))),
        )
    }
}
