//! Dot products of bytes and of bf16 with AVX-512: one instruction multiplies and adds 64 bytes of
//! each operand.
//!
//! Twelve accumulators hide the latency of the instruction; with twelve factors and a vector of
//! weights they fit 32 registers.

use super::{DotKernel, NUM_WEIGHTS, weight};
use crate::float_format::Bf16;
use crate::isa::{Avx512, Isa};
use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_add_epi32, _mm512_dpbf16_ps, _mm512_dpbusd_epi32, _mm512_loadu_si512,
    _mm512_reduce_add_epi32, _mm512_reduce_add_ps, _mm512_set1_epi8, _mm512_set1_epi32,
    _mm512_setzero_ps, _mm512_setzero_si512,
};
use std::hint::black_box;

/// Bytes of one vector.
const VECTOR: usize = 64;
/// Accumulators.
const ROWS: usize = 12;

type Weights = [[u8; VECTOR]; NUM_WEIGHTS];

/// Bytes whose products with the factors all count.
static BYTES: Weights = [[3; VECTOR]; NUM_WEIGHTS];

/// bf16 of both signs, two bytes each.
static HALVES: Weights = {
    let mut weights = [[0; VECTOR]; NUM_WEIGHTS];
    let mut i = 0;
    while i < NUM_WEIGHTS {
        // The upper half of an f32 is the bf16.
        let [_, _, low, high] = weight(i).to_le_bytes();
        let mut j = 0;
        while j < VECTOR {
            weights[i][j] = low;
            weights[i][j + 1] = high;
            j += 2;
        }
        i += 1;
    }
    weights
};

/// Returns the kernel for bytes.
pub(super) fn int8_kernel(proof: Avx512) -> DotKernel {
    DotKernel { isa: Isa::Avx512(proof), ops_per_round: ops(VECTOR), run: int8 }
}

/// Returns the kernel for bf16, where the processor has the instruction, which is not part of the
/// proof.
pub(super) fn bf16_kernel(proof: Avx512) -> Option<DotKernel> {
    is_x86_feature_detected!("avx512bf16").then(|| DotKernel {
        isa: Isa::Avx512(proof),
        ops_per_round: ops(VECTOR / size_of::<Bf16>()),
        run: bf16,
    })
}

/// Returns the operations of a round with vectors of so many numbers.
fn ops(numbers: usize) -> u32 {
    u32::try_from(NUM_WEIGHTS * ROWS * numbers * 2).expect("some hundred thousand")
}

fn int8(_isa: Isa, rounds: usize) -> u32 {
    // SAFETY: only `int8_kernel` hands this function out, for a proof that AVX-512 F and VNNI are
    // present.
    unsafe { int8_dots(&BYTES, rounds) }.cast_unsigned()
}

fn bf16(_isa: Isa, rounds: usize) -> u32 {
    // SAFETY: only `bf16_kernel` hands this function out, for a proof that AVX-512 F is present
    // and after it found AVX-512 BF16.
    unsafe { bf16_dots(&HALVES, rounds) }.to_bits()
}

/// Returns the sum of all dot products, modulo 2^32.
#[target_feature(enable = "avx512f,avx512vnni")]
fn int8_dots(weights: &Weights, rounds: usize) -> i32 {
    let mut sums = [_mm512_setzero_si512(); ROWS];
    let mut factors = [_mm512_setzero_si512(); ROWS];
    for (r, factor) in (1..).zip(&mut factors) {
        *factor = _mm512_set1_epi8(black_box(r));
    }
    for _ in 0..rounds {
        // Hides that every round reads the same weights.
        for weights in black_box(weights) {
            let weights = load(weights);
            for r in 0..ROWS {
                sums[r] = _mm512_dpbusd_epi32(sums[r], weights, factors[r]);
            }
        }
    }
    let zero = _mm512_setzero_si512();
    _mm512_reduce_add_epi32(sums.into_iter().fold(zero, |a, b| _mm512_add_epi32(a, b)))
}

/// Returns the sum of all dot products.
#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_dots(weights: &Weights, rounds: usize) -> f32 {
    let mut sums = [_mm512_setzero_ps(); ROWS];
    let mut factors = [_mm512_setzero_si512(); ROWS];
    for (r, factor) in (0..).zip(&mut factors) {
        // Two bf16 in each word: 1, 2, 4 and so on, an exponent higher each.
        *factor = _mm512_set1_epi32(black_box((0x3f80 + (r << 7)) * 0x0001_0001));
    }
    for _ in 0..rounds {
        // Hides that every round reads the same weights.
        for weights in black_box(weights) {
            let weights = as_bf16(load(weights));
            for r in 0..ROWS {
                sums[r] = _mm512_dpbf16_ps(sums[r], weights, as_bf16(factors[r]));
            }
        }
    }
    sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; VECTOR]) -> __m512i {
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Returns the bits of a register as 32 bf16; there is no instruction in it.
#[inline]
#[target_feature(enable = "avx512f")]
fn as_bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both are plain registers of 64 bytes, and every bit pattern is a bf16.
    unsafe { std::mem::transmute(bits) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_bytes_is_that_of_plain_arithmetic() {
        let Some(proof) = Avx512::detect() else {
            return;
        };
        let kernel = int8_kernel(proof);
        for rounds in [1, 2, 7] {
            // 3 * (1 + … + 12) for each of 64 bytes of 64 vectors.
            let expected = u32::try_from(rounds).unwrap() * 3 * 78 * 64 * 64;
            assert_eq!((kernel.run)(kernel.isa, rounds), expected);
        }
    }

    #[test]
    fn the_sum_of_bf16_is_that_of_plain_arithmetic() {
        let Some(kernel) = Avx512::detect().and_then(bf16_kernel) else {
            return;
        };
        let mut ones = [[0; VECTOR]; NUM_WEIGHTS];
        for byte in ones.as_flattened_mut().chunks_exact_mut(2) {
            byte.copy_from_slice(&0x3f80_u16.to_le_bytes());
        }
        // SAFETY: there is a kernel, so that the instructions are present.
        let sum = unsafe { bf16_dots(&ones, 2) };
        // 1 + 2 + … + 2048 for each of 32 numbers of 64 vectors, twice.
        assert_eq!(sum.to_bits(), (4095.0_f32 * 32.0 * 64.0 * 2.0).to_bits());
        assert_eq!(kernel.ops_per_round, 64 * 12 * 64);
    }
}
