//! Dot products of bytes with AVX2, which takes three instructions for 32 bytes: products added in
//! pairs in 16 bits, pairs added into 32 bits, and the sum; AVX-VNNI takes one.

use super::{DotKernel, NUM_WEIGHTS};
use crate::isa::{Avx2, Isa};
use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_dpbusd_avx_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_setzero_si256,
    _mm256_storeu_si256,
};
use std::hint::black_box;

/// Bytes of one vector.
const VECTOR: usize = 32;
/// Accumulators: with as many factors, a vector of weights and one of ones they fit 16 registers.
const ROWS: usize = 5;
/// Accumulators of AVX-VNNI, whose instruction takes five cycles and starts twice in each; their
/// factors are read from the L1 cache.
const VNNI_ROWS: usize = 12;

type Weights = [[u8; VECTOR]; NUM_WEIGHTS];

/// Bytes whose products with the factors all count.
static BYTES: Weights = [[3; VECTOR]; NUM_WEIGHTS];

/// Returns the kernel for bytes.
pub(super) fn int8_kernel(proof: Avx2) -> DotKernel {
    let (rows, run): (_, fn(Isa, usize) -> u32) =
        if proof.vnni.is_some() { (VNNI_ROWS, int8_with_vnni) } else { (ROWS, int8) };
    let ops = u32::try_from(NUM_WEIGHTS * rows * VECTOR * 2).expect("some ten thousand");
    DotKernel { isa: Isa::Avx2(proof), ops_per_round: ops, run }
}

fn int8(_isa: Isa, rounds: usize) -> u32 {
    // SAFETY: only `int8_kernel` hands this function out, for a proof that AVX2 is present.
    unsafe { int8_dots(&BYTES, rounds) }.cast_unsigned()
}

fn int8_with_vnni(_isa: Isa, rounds: usize) -> u32 {
    // SAFETY: only `int8_kernel` hands this function out, for proofs that AVX2 and AVX-VNNI are
    // present.
    unsafe { int8_dots_with_vnni(&BYTES, rounds) }.cast_unsigned()
}

/// Returns the sum of all dot products, modulo 2^32.
#[target_feature(enable = "avx2")]
fn int8_dots(weights: &Weights, rounds: usize) -> i32 {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_si256(); ROWS];
    let factors = factors::<ROWS>();
    for _ in 0..rounds {
        // Hides that every round reads the same weights.
        for weights in black_box(weights) {
            let weights = load(weights);
            for r in 0..ROWS {
                let pairs = _mm256_maddubs_epi16(weights, factors[r]);
                sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
    total(sums)
}

/// As [`int8_dots`], with one instruction for each product.
#[target_feature(enable = "avx2,avxvnni")]
fn int8_dots_with_vnni(weights: &Weights, rounds: usize) -> i32 {
    let mut sums = [_mm256_setzero_si256(); VNNI_ROWS];
    let factors = factors::<VNNI_ROWS>();
    for _ in 0..rounds {
        // Hides that every round reads the same weights.
        for weights in black_box(weights) {
            let weights = load(weights);
            for r in 0..VNNI_ROWS {
                sums[r] = _mm256_dpbusd_avx_epi32(sums[r], weights, factors[r]);
            }
        }
    }
    total(sums)
}

/// Returns a factor for each accumulator, which the compiler does not know.
#[inline]
#[target_feature(enable = "avx2")]
fn factors<const R: usize>() -> [__m256i; R] {
    let mut factors = [_mm256_setzero_si256(); R];
    for (r, factor) in (1..).zip(&mut factors) {
        *factor = _mm256_set1_epi8(black_box(r));
    }
    factors
}

/// Returns the sum of all lanes, modulo 2^32.
#[inline]
#[target_feature(enable = "avx2")]
fn total<const R: usize>(sums: [__m256i; R]) -> i32 {
    let zero = _mm256_setzero_si256();
    let sum = sums.into_iter().fold(zero, |a, b| _mm256_add_epi32(a, b));
    let mut lanes = [0_i32; VECTOR / size_of::<i32>()];
    // SAFETY: `lanes` is one vector long; the instruction needs no alignment.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
    lanes.into_iter().fold(0, i32::wrapping_add)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; VECTOR]) -> __m256i {
    // SAFETY: the array is one vector long; the instruction needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_bytes_is_that_of_plain_arithmetic() {
        for proof in Avx2::all_present() {
            let kernel = int8_kernel(proof);
            let rows = if proof.vnni.is_some() { VNNI_ROWS } else { ROWS };
            for rounds in [1, 2, 7] {
                // 3 * (1 + … + rows) for each of 32 bytes of 64 vectors.
                let factors = u32::try_from(rows * (rows + 1) / 2).unwrap();
                let expected = u32::try_from(rounds).unwrap() * 3 * factors * 32 * 64;
                assert_eq!((kernel.run)(kernel.isa, rounds), expected);
            }
        }
    }
}
