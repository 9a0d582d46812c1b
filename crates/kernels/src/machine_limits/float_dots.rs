//! Dot products of f32 with [`Lanes`]: each vector of weights meets several factors.
//!
//! A round is 64 vectors of weights; each takes one fused multiply-add for each accumulator, and
//! moves 64 bytes from the L1 cache. There are as many accumulators as hide the latency of the
//! instruction and still fit the registers.

use super::{DotKernel, NUM_WEIGHTS, weight};
use crate::dispatch::for_each_lanes;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use std::hint::black_box;

/// Accumulators with 32 registers of 16 lanes: 12, 12 factors and a vector of weights.
#[cfg(target_arch = "x86_64")]
const WIDE_ROWS: usize = 12;
/// Accumulators with 16 registers of 8 lanes: ten registers, and five for factors and weights. The
/// same with 32 registers of 4 lanes: twenty registers, and nine.
const MIDDLE_ROWS: usize = 5;
/// Accumulators with registers of 4 lanes: eight registers.
const NARROW_ROWS: usize = 2;

type Weights = [[f32; LANES]; NUM_WEIGHTS];

/// Both signs in every lane, so that sums neither grow nor become denormal.
static WEIGHTS: Weights = {
    let mut weights = [[0.0; LANES]; NUM_WEIGHTS];
    let mut i = 0;
    while i < NUM_WEIGHTS {
        weights[i] = [weight(i); LANES];
        i += 1;
    }
    weights
};

#[cfg(target_arch = "x86_64")]
for_each_lanes! {
    fn wide(weights: &Weights, rounds: usize) -> f32 = wide_body
}
for_each_lanes! {
    fn middle(weights: &Weights, rounds: usize) -> f32 = middle_body
}
for_each_lanes! {
    fn narrow(weights: &Weights, rounds: usize) -> f32 = narrow_body
}

/// Returns the kernel for an instruction set.
pub(super) fn kernel(isa: Isa) -> DotKernel {
    let (rows, run): (usize, fn(Isa, usize) -> u32) = match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(_) => (WIDE_ROWS, |isa, rounds| wide(isa, &WEIGHTS, rounds).to_bits()),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(_) => (MIDDLE_ROWS, |isa, rounds| middle(isa, &WEIGHTS, rounds).to_bits()),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(_) => (MIDDLE_ROWS, |isa, rounds| middle(isa, &WEIGHTS, rounds).to_bits()),
        Isa::Scalar => (NARROW_ROWS, |isa, rounds| narrow(isa, &WEIGHTS, rounds).to_bits()),
    };
    let ops_per_round = NUM_WEIGHTS * rows * LANES * 2;
    DotKernel { isa, ops_per_round: u32::try_from(ops_per_round).expect("some thousands"), run }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn wide_body<V: Lanes>(proof: V::Proof, weights: &Weights, rounds: usize) -> f32 {
    dots::<V, WIDE_ROWS, true>(proof, weights, rounds)
}

#[inline(always)]
fn middle_body<V: Lanes>(proof: V::Proof, weights: &Weights, rounds: usize) -> f32 {
    dots::<V, MIDDLE_ROWS, true>(proof, weights, rounds)
}

#[inline(always)]
fn narrow_body<V: Lanes>(proof: V::Proof, weights: &Weights, rounds: usize) -> f32 {
    // Without the instruction, a fused multiply-add is a call that takes a hundred times as long
    // as a multiplication and an addition.
    const FUSED: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
    dots::<V, NARROW_ROWS, FUSED>(proof, weights, rounds)
}

/// Returns the sum of all dot products.
#[inline(always)]
fn dots<V: Lanes, const ROWS: usize, const FUSED: bool>(
    proof: V::Proof,
    weights: &Weights,
    rounds: usize,
) -> f32 {
    let mut sums = [V::splat(proof, 0.0); ROWS];
    let mut factors = [V::splat(proof, 1.0); ROWS];
    let mut factor = 1.0;
    for lanes in &mut factors {
        *lanes = V::splat(proof, black_box(factor));
        factor *= 0.75;
    }
    for _ in 0..rounds {
        // Hides that every round reads the same weights.
        for weights in black_box(weights) {
            let weights = V::load(proof, weights);
            for r in 0..ROWS {
                sums[r] = if FUSED {
                    weights.mul_add(factors[r], sums[r])
                } else {
                    sums[r].add(weights.mul(factors[r]))
                };
            }
        }
    }
    sums.into_iter().map(V::sum_lanes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_plain_arithmetic_on_every_set() {
        for isa in Isa::all_present() {
            for (rows, got) in [
                #[cfg(target_arch = "x86_64")]
                (WIDE_ROWS, wide(isa, &SLOPE, 3)),
                (MIDDLE_ROWS, middle(isa, &SLOPE, 3)),
                (NARROW_ROWS, narrow(isa, &SLOPE, 3)),
            ] {
                let weights: f64 = SLOPE.iter().flatten().map(|weight| f64::from(*weight)).sum();
                let factors: f64 =
                    (0..i32::try_from(rows).unwrap()).map(|r| 0.75_f64.powi(r)).sum();
                let expected = 3.0 * weights * factors;
                let error = (f64::from(got) - expected).abs() / expected;
                assert!(error < 1e-3, "{got} for {expected} on {}", isa.name());
            }
        }
    }

    /// Weights whose sum is not zero.
    static SLOPE: Weights = {
        let mut weights = [[0.0; LANES]; NUM_WEIGHTS];
        let mut i = 0;
        while i < NUM_WEIGHTS {
            weights[i] = [1.0 / (1.0 + i as f32); LANES];
            i += 1;
        }
        weights
    };
}
