//! Lanes as four NEON registers.
//!
//! Every method relies on one fact: NEON is part of every 64-bit ARM processor that this crate is
//! compiled for, which `isa` asserts.

use super::{LANES, Lanes, PairSums};
use crate::float_format::{Bf16, F16};
use crate::isa::Neon;
use std::arch::aarch64::{
    float32x4_t, int16x8_t, int32x4_t, uint16x8_t, uint32x4_t, vabsq_f32, vaddq_f32, vaddq_s32,
    vbicq_u32, vbslq_f32, vcgtq_f32, vcltq_f32, vcombine_u16, vcvtq_f32_s32, vdupq_n_f32,
    vdupq_n_s32, vdupq_n_u16, vextq_f32, vfmaq_f32, vget_high_s8, vget_low_s8, vget_low_s16,
    vgetq_lane_f32, vld1_u16, vld1q_f32, vld1q_s8, vld1q_s16, vld1q_u16, vmovl_s8, vmovn_high_u16,
    vmovn_u16, vmovn_u32, vmull_high_s16, vmull_s16, vmulq_f32, vpaddq_s32, vreinterpretq_f32_u16,
    vreinterpretq_f32_u32, vreinterpretq_s8_u8, vreinterpretq_s16_s32, vreinterpretq_s16_u16,
    vreinterpretq_u32_f32, vrev64q_f32, vshlq_n_u32, vst1q_f32, vst1q_s8, vst1q_s16, vsubq_f32,
    vzip1q_u16, vzip2q_u16,
};
use std::arch::asm;

/// Lanes of one register.
const QUARTER: usize = LANES / 4;

/// Sixteen lanes in four registers, the lowest four first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeonLanes([float32x4_t; 4]);

/// Calls an intrinsic that takes and returns registers only.
macro_rules! on_registers {
    ($call:expr) => {{
        // SAFETY: NEON is present, as the module header says, and the intrinsic touches no memory.
        unsafe { $call }
    }};
}

/// Applies a two-operand function to all quarters.
macro_rules! each {
    ($op:ident, $a:expr, $b:expr) => {{
        let (Self([a0, a1, a2, a3]), Self([b0, b1, b2, b3])) = ($a, $b);
        Self([$op(a0, b0), $op(a1, b1), $op(a2, b2), $op(a3, b3)])
    }};
}

/// Combines lane `i` with lane `i + 8`, then `i + 4`, `i + 2` and `i + 1`.
macro_rules! reduce {
    ($lanes:expr, $op:ident) => {{
        let NeonLanes([a, b, c, d]) = $lanes;
        let four = $op($op(a, c), $op(b, d));
        let two = $op(four, on_registers!(vextq_f32::<2>(four, four)));
        let one = $op(two, on_registers!(vextq_f32::<1>(two, two)));
        on_registers!(vgetq_lane_f32::<0>(one))
    }};
}

#[inline(always)]
fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    on_registers!(vaddq_f32(a, b))
}

#[inline(always)]
fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    on_registers!(vsubq_f32(a, b))
}

#[inline(always)]
fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    on_registers!(vmulq_f32(a, b))
}

/// Returns the larger of the two; `b` where one is NaN, which NEON's own maximum would return.
#[inline(always)]
fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    on_registers!(vbslq_f32(vcgtq_f32(a, b), a, b))
}

/// Returns `a` where it is at most `limit` or NaN, else `limit`.
#[inline(always)]
fn at_most(a: float32x4_t, limit: float32x4_t) -> float32x4_t {
    on_registers!(vbslq_f32(vcltq_f32(limit, a), limit, a))
}

#[inline(always)]
fn scale_by_power(a: float32x4_t, shifted: float32x4_t) -> float32x4_t {
    let power = on_registers!(vshlq_n_u32::<23>(vreinterpretq_u32_f32(shifted)));
    mul(a, on_registers!(vreinterpretq_f32_u32(power)))
}

#[inline(always)]
fn zero_where_below(value: float32x4_t, x: float32x4_t, limit: float32x4_t) -> float32x4_t {
    let below = on_registers!(vcltq_f32(x, limit));
    let value = on_registers!(vreinterpretq_u32_f32(value));
    on_registers!(vreinterpretq_f32_u32(vbicq_u32(value, below)))
}

/// Returns the low 16 bits of eight lanes.
#[inline(always)]
fn low_words(low: float32x4_t, high: float32x4_t) -> uint16x8_t {
    let bits = |lanes: float32x4_t| -> uint32x4_t { on_registers!(vreinterpretq_u32_f32(lanes)) };
    let (low, high) = (on_registers!(vmovn_u32(bits(low))), on_registers!(vmovn_u32(bits(high))));
    on_registers!(vcombine_u16(low, high))
}

#[inline(always)]
fn quarters<T>(lanes: &[T; LANES]) -> &[[T; QUARTER]; 4] {
    lanes.as_chunks().0.first_chunk().expect("four quarters")
}

/// Returns four halves, widened.
#[inline(always)]
pub(crate) fn widen_f16(halves: &[u16; QUARTER]) -> float32x4_t {
    // SAFETY: the array is 8 readable bytes; NEON is present.
    let halves = unsafe { vld1_u16(halves.as_ptr()) };
    let wide: float32x4_t;
    // The intrinsic for this instruction needs a newer Rust than this crate does.
    // SAFETY: NEON is present, and the instruction touches registers only.
    unsafe {
        asm!(
            "fcvtl {wide:v}.4s, {halves:v}.4h",
            wide = lateout(vreg) wide,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    wide
}

impl Lanes for NeonLanes {
    type Proof = Neon;
    type Sums = NeonSums;

    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    fn splat(_proof: Neon, value: f32) -> Self {
        Self([on_registers!(vdupq_n_f32(value)); 4])
    }

    #[inline(always)]
    fn load(_proof: Neon, lanes: &[f32; LANES]) -> Self {
        // SAFETY: each quarter is 16 readable bytes; NEON is present.
        Self(quarters(lanes).each_ref().map(|quarter| unsafe { vld1q_f32(quarter.as_ptr()) }))
    }

    #[inline(always)]
    fn load_bf16(_proof: Neon, lanes: &[Bf16; LANES]) -> Self {
        let zero = on_registers!(vdupq_n_u16(0));
        let halves = lanes.as_chunks::<{ LANES / 2 }>().0;
        // SAFETY: the half is 16 readable bytes; NEON is present.
        let low = unsafe { vld1q_u16(halves[0].as_ptr().cast()) };
        // SAFETY: as above.
        let high = unsafe { vld1q_u16(halves[1].as_ptr().cast()) };
        Self([
            on_registers!(vreinterpretq_f32_u16(vzip1q_u16(zero, low))),
            on_registers!(vreinterpretq_f32_u16(vzip2q_u16(zero, low))),
            on_registers!(vreinterpretq_f32_u16(vzip1q_u16(zero, high))),
            on_registers!(vreinterpretq_f32_u16(vzip2q_u16(zero, high))),
        ])
    }

    #[inline(always)]
    fn load_f16(_proof: Neon, lanes: &[F16; LANES]) -> Self {
        let quarters = quarters(lanes).each_ref();
        Self(quarters.map(|halves| widen_f16(&halves.map(|half| half.0))))
    }

    #[inline(always)]
    fn from_sums(sums: NeonSums) -> Self {
        Self(sums.0.map(|quarter| on_registers!(vcvtq_f32_s32(quarter))))
    }

    #[inline(always)]
    fn store(self, lanes: &mut [f32; LANES]) {
        for (quarter, register) in lanes.as_chunks_mut::<QUARTER>().0.iter_mut().zip(self.0) {
            // SAFETY: the quarter is 16 writable bytes; NEON is present.
            unsafe { vst1q_f32(quarter.as_mut_ptr(), register) };
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        each!(add, self, other)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        each!(sub, self, other)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        each!(mul, self, other)
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        let fused = |i: usize| on_registers!(vfmaq_f32(term.0[i], self.0[i], factor.0[i]));
        Self([fused(0), fused(1), fused(2), fused(3)])
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        each!(max, self, other)
    }

    #[inline(always)]
    fn at_most(self, limit: Self) -> Self {
        each!(at_most, self, limit)
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.map(|quarter| on_registers!(vabsq_f32(quarter))))
    }

    #[inline(always)]
    fn zero_where_below(self, x: Self, limit: Self) -> Self {
        let kept = |i: usize| zero_where_below(self.0[i], x.0[i], limit.0[i]);
        Self([kept(0), kept(1), kept(2), kept(3)])
    }

    #[inline(always)]
    fn scale_by_power(self, shifted: Self) -> Self {
        each!(scale_by_power, self, shifted)
    }

    #[inline(always)]
    fn swapped<const DISTANCE: usize>(self) -> Self {
        const { assert!(matches!(DISTANCE, 1 | 2 | 4 | 8)) };
        let [a, b, c, d] = self.0;
        Self(match DISTANCE {
            1 => self.0.map(|quarter| on_registers!(vrev64q_f32(quarter))),
            2 => self.0.map(|quarter| on_registers!(vextq_f32::<2>(quarter, quarter))),
            4 => [b, a, d, c],
            _ => [c, d, a, b],
        })
    }

    #[inline(always)]
    fn low_bytes(self) -> [i8; LANES] {
        let [a, b, c, d] = self.0;
        let low = on_registers!(vmovn_u16(low_words(a, b)));
        let bytes = on_registers!(vmovn_high_u16(low, low_words(c, d)));
        let mut out = [0; LANES];
        let bytes = on_registers!(vreinterpretq_s8_u8(bytes));
        // SAFETY: the array is 16 writable bytes; NEON is present.
        unsafe { vst1q_s8(out.as_mut_ptr(), bytes) };
        out
    }

    #[inline(always)]
    fn low_halves(self) -> [i16; LANES] {
        let [a, b, c, d] = self.0;
        let halves = [low_words(a, b), low_words(c, d)];
        let mut out = [0; LANES];
        for (place, half) in out.as_chunks_mut::<{ LANES / 2 }>().0.iter_mut().zip(halves) {
            let half = on_registers!(vreinterpretq_s16_u16(half));
            // SAFETY: the half is 16 writable bytes; NEON is present.
            unsafe { vst1q_s16(place.as_mut_ptr(), half) };
        }
        out
    }

    #[inline(always)]
    fn sum_lanes(self) -> f32 {
        reduce!(self, add)
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        reduce!(self, max)
    }
}

/// Sixteen integers in four registers, the lowest four first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeonSums([int32x4_t; 4]);

impl PairSums for NeonSums {
    type Proof = Neon;
    type Pairs = [int16x8_t; 4];

    #[inline(always)]
    fn zero(_proof: Neon) -> Self {
        Self([on_registers!(vdupq_n_s32(0)); 4])
    }

    #[inline(always)]
    fn splat_pair(_proof: Neon, pair: [i16; 2]) -> Self::Pairs {
        [on_registers!(vreinterpretq_s16_s32(vdupq_n_s32(bytemuck::cast(pair)))); 4]
    }

    #[inline(always)]
    fn load_i8(_proof: Neon, pairs: &[[i8; 2]; LANES]) -> Self::Pairs {
        let [low, high] = [0, LANES / 2].map(|first| {
            let half = &pairs.as_flattened()[2 * first..][..LANES];
            // SAFETY: the half is 16 readable bytes; NEON is present.
            unsafe { vld1q_s8(half.as_ptr()) }
        });
        [
            on_registers!(vmovl_s8(vget_low_s8(low))),
            on_registers!(vmovl_s8(vget_high_s8(low))),
            on_registers!(vmovl_s8(vget_low_s8(high))),
            on_registers!(vmovl_s8(vget_high_s8(high))),
        ]
    }

    #[inline(always)]
    fn load_i16(_proof: Neon, pairs: &[[i16; 2]; LANES]) -> Self::Pairs {
        let quarters: &[[[i16; 2]; QUARTER]; 4] = pairs.as_chunks().0.first_chunk().expect("four");
        // SAFETY: each quarter is 16 readable bytes; NEON is present.
        quarters.each_ref().map(|quarter| unsafe { vld1q_s16(quarter.as_ptr().cast()) })
    }

    #[inline(always)]
    fn add_products(self, a: Self::Pairs, b: Self::Pairs) -> Self {
        let Self(mut sums) = self;
        for i in 0..sums.len() {
            let low = on_registers!(vmull_s16(vget_low_s16(a[i]), vget_low_s16(b[i])));
            let high = on_registers!(vmull_high_s16(a[i], b[i]));
            sums[i] = on_registers!(vaddq_s32(sums[i], vpaddq_s32(low, high)));
        }
        Self(sums)
    }
}
