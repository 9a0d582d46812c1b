//! Lanes as one AVX-512 register.
//!
//! Every method relies on one fact: a value exists only if [`Avx512::detect`] found the
//! instructions, because all constructors take that proof.

use super::{LANES, Lanes, PairSums};
use crate::float_format::{Bf16, F16};
use crate::isa::Avx512;
use std::arch::x86_64::{
    __m256i, __m512, __m512i, _CMP_LT_OQ, _mm_cvtss_f32, _mm_storeu_si128, _mm256_loadu_si256,
    _mm256_storeu_si256, _mm512_abs_ps, _mm512_add_ps, _mm512_castps_si512, _mm512_castps512_ps128,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi8_epi16, _mm512_cvtepi32_epi8,
    _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_dpwssd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_maskz_mov_ps,
    _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_shuffle_ps, _mm512_slli_epi32,
    _mm512_storeu_ps, _mm512_sub_ps,
};

/// Sixteen lanes in one register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Lanes(__m512);

/// Calls an intrinsic that takes and returns registers only.
macro_rules! on_registers {
    ($call:expr) => {{
        // SAFETY: the instructions are present, as the module header shows, and the intrinsic
        // touches no memory.
        unsafe { $call }
    }};
}

/// Shuffles that bring lane `i + 8`, `i + 4`, `i + 2` or `i + 1` to lane `i`.
macro_rules! reduce {
    ($lanes:expr, $op:ident) => {{
        let all = $lanes;
        let eight = on_registers!($op(all, _mm512_shuffle_f32x4::<0b01_00_11_10>(all, all)));
        let four = on_registers!($op(eight, _mm512_shuffle_f32x4::<0b10_11_00_01>(eight, eight)));
        let two = on_registers!($op(four, _mm512_shuffle_ps::<0b01_00_11_10>(four, four)));
        let one = on_registers!($op(two, _mm512_shuffle_ps::<0b10_11_00_01>(two, two)));
        on_registers!(_mm_cvtss_f32(_mm512_castps512_ps128(one)))
    }};
}

#[inline(always)]
fn load_words<T>(lanes: &[T; LANES]) -> __m256i {
    const { assert!(size_of::<T>() == 2) };
    // SAFETY: the array is 32 readable bytes; the instruction needs no alignment. Only called
    // with a proof of AVX-512 at hand.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

impl Lanes for Avx512Lanes {
    type Proof = Avx512;
    type Sums = Avx512Sums;

    const ACCUMULATORS: usize = 24;

    #[inline(always)]
    fn splat(_proof: Avx512, value: f32) -> Self {
        Self(on_registers!(_mm512_set1_ps(value)))
    }

    #[inline(always)]
    fn load(_proof: Avx512, lanes: &[f32; LANES]) -> Self {
        // SAFETY: the array is 64 readable bytes; the proof shows the instruction.
        Self(unsafe { _mm512_loadu_ps(lanes.as_ptr()) })
    }

    #[inline(always)]
    fn load_bf16(_proof: Avx512, lanes: &[Bf16; LANES]) -> Self {
        let words = load_words(lanes);
        let wide = on_registers!(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words)));
        Self(on_registers!(_mm512_castsi512_ps(wide)))
    }

    #[inline(always)]
    fn load_f16(_proof: Avx512, lanes: &[F16; LANES]) -> Self {
        let words = load_words(lanes);
        Self(on_registers!(_mm512_cvtph_ps(words)))
    }

    #[inline(always)]
    fn from_sums(sums: Avx512Sums) -> Self {
        Self(on_registers!(_mm512_cvtepi32_ps(sums.0)))
    }

    #[inline(always)]
    fn store(self, lanes: &mut [f32; LANES]) {
        // SAFETY: the array is 64 writable bytes; `self` shows the instruction.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), self.0) };
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(on_registers!(_mm512_add_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(on_registers!(_mm512_sub_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(on_registers!(_mm512_mul_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        Self(on_registers!(_mm512_fmadd_ps(self.0, factor.0, term.0)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(on_registers!(_mm512_max_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn at_most(self, limit: Self) -> Self {
        Self(on_registers!(_mm512_min_ps(limit.0, self.0)))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(on_registers!(_mm512_abs_ps(self.0)))
    }

    #[inline(always)]
    fn zero_where_below(self, x: Self, limit: Self) -> Self {
        let below = on_registers!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x.0, limit.0));
        Self(on_registers!(_mm512_maskz_mov_ps(!below, self.0)))
    }

    #[inline(always)]
    fn scale_by_power(self, shifted: Self) -> Self {
        let power = on_registers!(_mm512_slli_epi32::<23>(_mm512_castps_si512(shifted.0)));
        Self(on_registers!(_mm512_mul_ps(self.0, _mm512_castsi512_ps(power))))
    }

    #[inline(always)]
    fn swapped<const DISTANCE: usize>(self) -> Self {
        const { assert!(matches!(DISTANCE, 1 | 2 | 4 | 8)) };
        let all = self.0;
        Self(match DISTANCE {
            1 => on_registers!(_mm512_shuffle_ps::<0b10_11_00_01>(all, all)),
            2 => on_registers!(_mm512_shuffle_ps::<0b01_00_11_10>(all, all)),
            4 => on_registers!(_mm512_shuffle_f32x4::<0b10_11_00_01>(all, all)),
            _ => on_registers!(_mm512_shuffle_f32x4::<0b01_00_11_10>(all, all)),
        })
    }

    #[inline(always)]
    fn low_bytes(self) -> [i8; LANES] {
        let bytes = on_registers!(_mm512_cvtepi32_epi8(_mm512_castps_si512(self.0)));
        let mut out = [0; LANES];
        // SAFETY: the array is 16 writable bytes; `self` shows the instruction.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), bytes) };
        out
    }

    #[inline(always)]
    fn low_halves(self) -> [i16; LANES] {
        let words = on_registers!(_mm512_cvtepi32_epi16(_mm512_castps_si512(self.0)));
        let mut out = [0; LANES];
        // SAFETY: the array is 32 writable bytes; `self` shows the instruction.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), words) };
        out
    }

    #[inline(always)]
    fn sum_lanes(self) -> f32 {
        reduce!(self.0, _mm512_add_ps)
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        reduce!(self.0, _mm512_max_ps)
    }
}

/// Sixteen integers in one register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Sums(__m512i);

impl PairSums for Avx512Sums {
    type Proof = Avx512;
    type Pairs = __m512i;

    #[inline(always)]
    fn zero(_proof: Avx512) -> Self {
        Self(on_registers!(_mm512_setzero_si512()))
    }

    #[inline(always)]
    fn splat_pair(_proof: Avx512, pair: [i16; 2]) -> __m512i {
        on_registers!(_mm512_set1_epi32(bytemuck::cast(pair)))
    }

    #[inline(always)]
    fn load_i8(_proof: Avx512, pairs: &[[i8; 2]; LANES]) -> __m512i {
        // SAFETY: the array is 32 readable bytes; the instruction needs no alignment, and the
        // proof shows it.
        let bytes = unsafe { _mm256_loadu_si256(pairs.as_ptr().cast()) };
        on_registers!(_mm512_cvtepi8_epi16(bytes))
    }

    #[inline(always)]
    fn load_i16(_proof: Avx512, pairs: &[[i16; 2]; LANES]) -> __m512i {
        // SAFETY: the array is 64 readable bytes; the proof shows the instruction.
        unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) }
    }

    #[inline(always)]
    fn add_products(self, a: __m512i, b: __m512i) -> Self {
        Self(on_registers!(_mm512_dpwssd_epi32(self.0, a, b)))
    }
}
