//! Dot products of bytes with NEON: `smmla` multiplies and adds 32 bytes of each operand, `sdot`
//! 16, and without them two multiplications and an addition take 16 bytes.
//!
//! Twelve accumulators hide the latency of the instructions; with twelve factors and a vector of
//! weights they fit 32 registers.

use super::{DotKernel, NUM_WEIGHTS};
use crate::isa::{Dotprod, I8mm, Isa, Neon, NeonByteDots};
use crate::neon_bytes::{sdot, smmla};
use std::arch::aarch64::{
    int8x16_t, int32x4_t, vaddq_s32, vaddvq_s32, vdupq_n_s8, vdupq_n_s32, vget_low_s8, vld1q_s8,
    vmlal_high_s8, vmull_s8, vpadalq_s16,
};
use std::hint::black_box;

/// Bytes of one vector.
const VECTOR: usize = 16;
/// Accumulators.
const ROWS: usize = 12;

type Weights = [[i8; VECTOR]; NUM_WEIGHTS];

/// Bytes whose products with the factors all count.
static BYTES: Weights = [[3; VECTOR]; NUM_WEIGHTS];

/// Returns the kernel for bytes.
pub(super) fn int8_kernel(neon: Neon) -> DotKernel {
    // `smmla` multiplies each row of 8 bytes with both rows of the other operand.
    let (products, run): (usize, fn(Isa, usize) -> u32) = match neon.byte_dots {
        NeonByteDots::Widening => (VECTOR, |_, rounds| widening(rounds)),
        NeonByteDots::Dotprod(_) => (VECTOR, |_, rounds| dotprod(rounds)),
        NeonByteDots::I8mm(_) => (VECTOR * 2, |_, rounds| i8mm(rounds)),
    };
    let ops = u32::try_from(NUM_WEIGHTS * ROWS * products * 2).expect("some ten thousand");
    DotKernel { isa: Isa::Neon(neon), ops_per_round: ops, run }
}

/// Returns the sum of all dot products, modulo 2^32, as all three functions do.
fn widening(rounds: usize) -> u32 {
    // SAFETY: `isa` allows this file only where NEON is.
    unsafe { widening_dots(rounds) }.cast_unsigned()
}

fn dotprod(rounds: usize) -> u32 {
    Dotprod::detect().expect("`int8_kernel` had the proof");
    // SAFETY: the instructions were found, here above.
    unsafe { dotprod_dots(rounds) }.cast_unsigned()
}

fn i8mm(rounds: usize) -> u32 {
    I8mm::detect().expect("`int8_kernel` had the proof");
    // SAFETY: the instructions were found, here above.
    unsafe { i8mm_dots(rounds) }.cast_unsigned()
}

#[target_feature(enable = "neon")]
fn widening_dots(rounds: usize) -> i32 {
    let factors = factors();
    let mut sums = [vdupq_n_s32(0); ROWS];
    for _ in 0..rounds {
        // Hides that every round reads the same weights.
        for weights in black_box(&BYTES) {
            let weights = load(weights);
            for r in 0..ROWS {
                let products = vmull_s8(vget_low_s8(weights), vget_low_s8(factors[r]));
                let products = vmlal_high_s8(products, weights, factors[r]);
                sums[r] = vpadalq_s16(sums[r], products);
            }
        }
    }
    total(sums)
}

#[target_feature(enable = "neon,dotprod")]
fn dotprod_dots(rounds: usize) -> i32 {
    let factors = factors();
    let mut sums = [vdupq_n_s32(0); ROWS];
    for _ in 0..rounds {
        // Hides that every round reads the same weights.
        for weights in black_box(&BYTES) {
            let weights = load(weights);
            for r in 0..ROWS {
                sums[r] = sdot::<0>(sums[r], weights, factors[r]);
            }
        }
    }
    total(sums)
}

#[target_feature(enable = "neon,dotprod,i8mm")]
fn i8mm_dots(rounds: usize) -> i32 {
    let factors = factors();
    let mut sums = [vdupq_n_s32(0); ROWS];
    for _ in 0..rounds {
        // Hides that every round reads the same weights.
        for weights in black_box(&BYTES) {
            let weights = load(weights);
            for r in 0..ROWS {
                sums[r] = smmla(sums[r], weights, factors[r]);
            }
        }
    }
    total(sums)
}

/// Returns vectors of 1, 2, 3 and so on.
#[inline]
#[target_feature(enable = "neon")]
fn factors() -> [int8x16_t; ROWS] {
    let mut factors = [vdupq_n_s8(0); ROWS];
    for (r, factor) in (1..).zip(&mut factors) {
        *factor = vdupq_n_s8(black_box(r));
    }
    factors
}

#[inline]
#[target_feature(enable = "neon")]
fn total(sums: [int32x4_t; ROWS]) -> i32 {
    vaddvq_s32(sums.into_iter().fold(vdupq_n_s32(0), |a, b| vaddq_s32(a, b)))
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[i8; VECTOR]) -> int8x16_t {
    // SAFETY: the array is one vector long.
    unsafe { vld1q_s8(bytes.as_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_bytes_is_that_of_plain_arithmetic_on_every_set() {
        for isa in Isa::all_present() {
            let Isa::Neon(neon) = isa else { continue };
            let kernel = int8_kernel(neon);
            for rounds in [1, 2, 7] {
                // Each product is 3 * r, r = 1 … 12, so that their sum is what is counted as
                // operations, two for each product.
                let products = kernel.ops_per_round / 2 / 12;
                let expected = rounds * products * 3 * 78;
                let rounds = usize::try_from(rounds).unwrap();
                assert_eq!((kernel.run)(kernel.isa, rounds), expected, "{}", isa.name());
            }
        }
    }
}
