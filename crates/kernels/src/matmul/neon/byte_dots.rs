//! Exact dot products of signed bytes, with the instructions that a processor has for them.
//!
//! A vector of codes holds four input features of four output features, the layout of the tiles; a
//! vector of activations holds sixteen input features of one row. Sums are 32-bit integers, one for
//! each output feature.

use crate::isa::{Dotprod, I8mm};
use crate::neon_bytes::{sdot, smmla};
use std::arch::aarch64::{
    int8x16_t, int32x4_t, vaddq_s32, vdupq_laneq_s32, vdupq_n_s32, vget_low_s8, vmlal_high_s8,
    vmlal_s8, vmull_high_s8, vmull_s8, vpadalq_s16, vpaddq_s32, vreinterpretq_s8_s32,
    vreinterpretq_s8_s64, vreinterpretq_s32_s8, vreinterpretq_s32_s64, vreinterpretq_s64_s8,
    vreinterpretq_s64_s32, vzip1q_s32, vzip1q_s64, vzip2q_s32, vzip2q_s64,
};

/// Sixteen input features of four output features.
pub(super) type CodeVectors = [int8x16_t; 4];

/// Calls an intrinsic that takes and returns registers only.
macro_rules! on_registers {
    ($call:expr) => {{
        // SAFETY: NEON is part of every processor that `isa` allows this file on, and the
        // intrinsic touches no memory.
        unsafe { $call }
    }};
}

/// Multiplies bytes. A value shows that its instructions are present.
pub(super) trait ByteDots: Copy {
    /// Returns `sum` with the dot products of one row's activations, `[codes.len()]` vectors,
    /// added.
    fn row(self, sum: int32x4_t, codes: &[CodeVectors], x: &[int8x16_t]) -> int32x4_t;

    /// Returns the same as [`ByteDots::row`] for each of two rows.
    #[inline(always)]
    fn two_rows(
        self,
        sums: [int32x4_t; 2],
        codes: &[CodeVectors],
        x: [&[int8x16_t]; 2],
    ) -> [int32x4_t; 2] {
        [self.row(sums[0], codes, x[0]), self.row(sums[1], codes, x[1])]
    }
}

/// Multiplies bytes with the instructions that every processor has: products of 16 bits, two of
/// them added (2 * 128 * 127 < 2^15), and neighbours added into 32 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widening;

impl ByteDots for Widening {
    #[inline(always)]
    fn row(self, sum: int32x4_t, codes: &[CodeVectors], x: &[int8x16_t]) -> int32x4_t {
        let zero = on_registers!(vdupq_n_s32(0));
        // Two lanes for each output feature, of two features in each half.
        let mut halves = [zero; 2];
        for (codes, x) in codes.iter().zip(x) {
            let words = on_registers!(vreinterpretq_s32_s8(*x));
            let first = on_registers!(vdupq_laneq_s32::<0>(words));
            let second = on_registers!(vdupq_laneq_s32::<1>(words));
            halves = add_pair(halves, [codes[0], codes[1]], [first, second]);
            let first = on_registers!(vdupq_laneq_s32::<2>(words));
            let second = on_registers!(vdupq_laneq_s32::<3>(words));
            halves = add_pair(halves, [codes[2], codes[3]], [first, second]);
        }
        on_registers!(vaddq_s32(sum, vpaddq_s32(halves[0], halves[1])))
    }
}

/// Adds the products of two vectors of codes with one word of activations each.
#[inline(always)]
fn add_pair(sums: [int32x4_t; 2], codes: [int8x16_t; 2], words: [int32x4_t; 2]) -> [int32x4_t; 2] {
    let x = words.map(|word| on_registers!(vreinterpretq_s8_s32(word)));
    let low = on_registers!(vmull_s8(vget_low_s8(codes[0]), vget_low_s8(x[0])));
    let low = on_registers!(vmlal_s8(low, vget_low_s8(codes[1]), vget_low_s8(x[1])));
    let high = on_registers!(vmull_high_s8(codes[0], x[0]));
    let high = on_registers!(vmlal_high_s8(high, codes[1], x[1]));
    [on_registers!(vpadalq_s16(sums[0], low)), on_registers!(vpadalq_s16(sums[1], high))]
}

impl ByteDots for Dotprod {
    #[inline(always)]
    fn row(self, mut sum: int32x4_t, codes: &[CodeVectors], x: &[int8x16_t]) -> int32x4_t {
        for (codes, x) in codes.iter().zip(x) {
            // SAFETY: `self` shows that the instruction is present.
            sum = unsafe { sdot::<0>(sum, codes[0], *x) };
            // SAFETY: as above.
            sum = unsafe { sdot::<1>(sum, codes[1], *x) };
            // SAFETY: as above.
            sum = unsafe { sdot::<2>(sum, codes[2], *x) };
            // SAFETY: as above.
            sum = unsafe { sdot::<3>(sum, codes[3], *x) };
        }
        sum
    }
}

impl ByteDots for I8mm {
    #[inline(always)]
    fn row(self, sum: int32x4_t, codes: &[CodeVectors], x: &[int8x16_t]) -> int32x4_t {
        self.dotprod().row(sum, codes, x)
    }

    #[inline(always)]
    fn two_rows(
        self,
        sums: [int32x4_t; 2],
        codes: &[CodeVectors],
        x: [&[int8x16_t]; 2],
    ) -> [int32x4_t; 2] {
        // Matrices of two rows by two output features, for the lower and the upper two features.
        let mut matrices = [on_registers!(vdupq_n_s32(0)); 2];
        for (codes, (x0, x1)) in codes.iter().zip(x[0].iter().zip(x[1])) {
            let x0 = on_registers!(vreinterpretq_s64_s8(*x0));
            let x1 = on_registers!(vreinterpretq_s64_s8(*x1));
            let x = on_registers!(vreinterpretq_s8_s64(vzip1q_s64(x0, x1)));
            matrices = self.add_octets(matrices, [codes[0], codes[1]], x);
            let x = on_registers!(vreinterpretq_s8_s64(vzip2q_s64(x0, x1)));
            matrices = self.add_octets(matrices, [codes[2], codes[3]], x);
        }
        let [low, high] = matrices.map(|matrix| on_registers!(vreinterpretq_s64_s32(matrix)));
        let rows = [on_registers!(vzip1q_s64(low, high)), on_registers!(vzip2q_s64(low, high))];
        let rows = rows.map(|row| on_registers!(vreinterpretq_s32_s64(row)));
        [on_registers!(vaddq_s32(sums[0], rows[0])), on_registers!(vaddq_s32(sums[1], rows[1]))]
    }
}

impl I8mm {
    /// Adds the products of eight input features of two rows, `x`, with those of four output
    /// features, whose codes lie in two vectors.
    #[inline(always)]
    fn add_octets(
        self,
        matrices: [int32x4_t; 2],
        codes: [int8x16_t; 2],
        x: int8x16_t,
    ) -> [int32x4_t; 2] {
        let [a, b] = codes.map(|codes| on_registers!(vreinterpretq_s32_s8(codes)));
        let low = on_registers!(vreinterpretq_s8_s32(vzip1q_s32(a, b)));
        let high = on_registers!(vreinterpretq_s8_s32(vzip2q_s32(a, b)));
        // SAFETY: `self` shows that the instruction is present.
        let low = unsafe { smmla(matrices[0], x, low) };
        // SAFETY: as above.
        let high = unsafe { smmla(matrices[1], x, high) };
        [low, high]
    }
}
