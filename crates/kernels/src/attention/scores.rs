//! What becomes of the products of queries with the keys of a partition: scores, then weights.
//!
//! - A score is the product, times the scales of the query and the key where they are codes, plus
//!   what the key offset adds, squeezed below the soft cap where there is one.
//! - A weight is two to the power of the score less the partition's largest; weights are summed by
//!   lane, then over the lanes.
//! - Where values are codes, a weight is then multiplied by the value's scale and rounded to a
//!   multiple of the row's largest such product over [`WEIGHT_LIMIT`].

use super::PARTITION;
use super::partition_kv::strips;
use crate::aligned_floats::AlignedFloats;
use crate::exp::exp2_lanes;
use crate::key_offset::OffsetPair;
use crate::kv_rotation::ROUND;
use crate::lanes::{LANES, Lanes};
use crate::tanh::soft_cap_lanes;
use std::ops::Range;

/// What the largest weight of a row in a partition is rounded to: 15 bits, so that the sum of the
/// products of a partition's weights with codes fits 32 bits.
pub(super) const WEIGHT_LIMIT: f32 = 32_767.0;
/// Least number that [`WEIGHT_LIMIT`] is divided by, below any product of a largest weight, 1, with
/// a scale: keeps factors finite.
const LEAST_WEIGHT: f32 = f32::from_bits(0x0880_0000); // 2^-110

/// A partition of some rows' context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition<'a> {
    /// Its place in the context, counted in partitions.
    pub(super) index: usize,
    /// What the stored keys lack.
    pub(super) offset: &'a [OffsetPair],
    /// What scores are squeezed below, in their unit: the weight is two to the power of a score.
    pub(super) soft_cap: Option<f32>,
}

impl Partition<'_> {
    /// Returns whether scores are anything but the products with the keys, which have `scales`.
    pub(super) fn changes(&self, scales: Scales<'_>) -> bool {
        scales.is_some() || !self.offset.is_empty() || self.soft_cap.is_some()
    }
}

/// The scores of each row with the tokens of a partition, then their weights.
pub(super) type Scores = AlignedFloats;

/// Scales of a partition's keys or values; `None` where elements have none.
pub(super) type Scales<'a> = Option<&'a [f32; PARTITION]>;

/// Makes scores of a row's products with the tokens that it sees: times the scales of query
/// and key, with what stored keys lack, and below the soft cap.
#[inline(always)]
pub(super) fn finish_scores<V: Lanes>(
    proof: V::Proof,
    partition: Partition<'_>,
    scales: Option<(f32, &[f32; PARTITION])>,
    factors: &[[f32; 2]],
    seen: Range<usize>,
    scores: &mut [f32; PARTITION],
) {
    for first in strips(seen) {
        let place = &mut scores.as_chunks_mut::<LANES>().0[first / LANES];
        let mut score = V::load(proof, place);
        if let Some((query_scale, key_scales)) = scales {
            let key_scales = V::load(proof, &key_scales.as_chunks().0[first / LANES]);
            score = score.mul(key_scales.mul(V::splat(proof, query_scale)));
        }
        for (pair, [on_cos, on_sin]) in partition.offset.iter().zip(factors) {
            let (cos, sin) = pair.turns.strip(partition.index * PARTITION + first);
            score = V::load(proof, cos).mul_add(V::splat(proof, *on_cos), score);
            score = V::load(proof, sin).mul_add(V::splat(proof, *on_sin), score);
        }
        if let Some(cap) = partition.soft_cap {
            score = soft_cap_lanes(proof, cap, score);
        }
        score.store(place);
    }
}

/// Turns the scores of `R` rows in some strips into weights; writes the largest score and the sum
/// of the weights of each row, which are nobody's where it sees nothing. With `scales`, each weight
/// is then multiplied by its token's.
///
/// A token that the row does not see has the weight `2^-126`, which changes no bit of the sum,
/// because the largest weight is 1: how many such tokens the strips hold does not matter.
#[inline(always)]
pub(super) fn weights<V: Lanes, const R: usize>(
    proof: V::Proof,
    scores: &mut [[f32; PARTITION]],
    strips: Range<usize>,
    scales: Scales<'_>,
    maximum: &mut [f32],
    sum: &mut [f32],
) {
    let scores = scores.first_chunk_mut::<R>().expect("a row more than there are");
    let strips = strips.start..strips.end.min(PARTITION / LANES);
    let mut largest = [V::splat(proof, f32::NEG_INFINITY); R];
    for strip in strips.clone() {
        for r in 0..R {
            // A NaN may be dropped here; it comes back in the sum, as its weight is NaN.
            let score = V::load(proof, &scores[r].as_chunks().0[strip]);
            largest[r] = largest[r].max(score);
        }
    }
    let mut total = [V::splat(proof, 0.0); R];
    for (largest, maximum) in largest.iter_mut().zip(maximum) {
        *maximum = largest.max_lane();
        *largest = V::splat(proof, *maximum);
    }
    for strip in strips {
        for r in 0..R {
            let place = &mut scores[r].as_chunks_mut::<LANES>().0[strip];
            let mut weight = exp2_lanes(proof, V::load(proof, place).sub(largest[r]));
            total[r] = total[r].add(weight);
            if let Some(scales) = scales {
                weight = weight.mul(V::load(proof, &scales.as_chunks().0[strip]));
            }
            weight.store(place);
        }
    }
    for (total, sum) in total.iter().zip(sum) {
        *sum = total.sum_lanes();
    }
}

/// Makes the weights, in some strips, of tokens that a row does not see 0: behind those tokens lie
/// anybody's scales, or none.
#[inline(always)]
pub(super) fn clear_unseen(
    weights: &mut [f32; PARTITION],
    strips: &Range<usize>,
    seen: &Range<usize>,
) {
    let (start, end) = (strips.start * LANES, strips.end * LANES);
    weights[start..seen.start.clamp(start, end)].fill(0.0);
    weights[seen.end.clamp(start, end)..end].fill(0.0);
}

/// Rounds the weights of `R` rows in some strips, which are already times the scales of their
/// values, to integers, which take the places of pairs of weights, from the first on. Writes what
/// each row's unit stands for, NaN where a weight is not finite.
#[inline(always)]
pub(super) fn encode_weights<V: Lanes, const R: usize>(
    proof: V::Proof,
    weights: &mut [[f32; PARTITION]],
    strips: Range<usize>,
    units: &mut [f32],
) {
    let weights = weights.first_chunk_mut::<R>().expect("a row more than there are");
    let strips = strips.start..strips.end.min(PARTITION / LANES);
    let zero = V::splat(proof, 0.0);
    let (mut largest, mut broken) = ([V::splat(proof, LEAST_WEIGHT); R], [zero; R]);
    for strip in strips.clone() {
        for r in 0..R {
            let weight = V::load(proof, &weights[r].as_chunks().0[strip]);
            largest[r] = weight.max(largest[r]);
            broken[r] = weight.mul_add(zero, broken[r]);
        }
    }
    let mut factors = [zero; R];
    for r in 0..R {
        let largest = largest[r].max_lane();
        factors[r] = V::splat(proof, WEIGHT_LIMIT / largest);
        units[r] = largest / WEIGHT_LIMIT + broken[r].sum_lanes();
    }
    let round = V::splat(proof, ROUND);
    for strip in strips {
        for r in 0..R {
            let weight = V::load(proof, &weights[r].as_chunks().0[strip]);
            let codes = weight.mul_add(factors[r], round).low_halves();
            // Before what is still to be read: codes are half as wide as weights.
            let places: &mut [i16] = bytemuck::cast_slice_mut(&mut weights[r]);
            places[strip * LANES..][..LANES].copy_from_slice(&codes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::for_each_lanes;
    use crate::isa::Isa;

    for_each_lanes! {
        fn encode_row(weights: &mut [[f32; PARTITION]], strips: Range<usize>, units: &mut [f32]) = encode_row_body
    }

    #[inline(always)]
    fn encode_row_body<V: Lanes>(
        proof: V::Proof,
        weights: &mut [[f32; PARTITION]],
        strips: Range<usize>,
        units: &mut [f32],
    ) {
        encode_weights::<V, 1>(proof, weights, strips, units);
    }

    fn encode(
        isa: Isa,
        row: &mut [f32; PARTITION],
        strips: Range<usize>,
        seen: Range<usize>,
    ) -> f32 {
        clear_unseen(row, &strips, &seen);
        let mut unit = [0.0];
        encode_row(isa, std::slice::from_mut(row), strips, &mut unit);
        unit[0]
    }

    #[test]
    fn weights_become_integers_of_a_unit_and_unseen_ones_zero() {
        let weights: [f32; PARTITION] =
            std::array::from_fn(|i| ((i * 37 % 64) as f32 / 64.0).powi(3) * 1e-6);
        for seen in [0..128, 17..120, 40..41, 0..16, 64..64] {
            let strips = seen.start / LANES..seen.end.div_ceil(LANES);
            for isa in Isa::all_present() {
                let mut row = weights;
                row[..seen.start].fill(f32::NAN);
                row[seen.end..].fill(f32::INFINITY);
                let unit = encode(isa, &mut row, strips.clone(), seen.clone());
                let codes: &[i16] = bytemuck::cast_slice(&row);
                for token in strips.start * LANES..strips.end * LANES {
                    let expected = if seen.contains(&token) { weights[token] } else { 0.0 };
                    let error = (f32::from(codes[token]) * unit - expected).abs();
                    assert!(codes[token] >= 0 && error <= unit * 0.51, "{token} of {seen:?}");
                }
                let largest = codes[seen.clone()].iter().max();
                assert!(seen.is_empty() || largest == Some(&32_767));
            }
        }
    }

    #[test]
    fn a_weight_that_is_not_finite_breaks_the_unit_of_its_row() {
        for isa in Isa::all_present() {
            for broken in [f32::NAN, f32::INFINITY] {
                let mut row = [0.5; PARTITION];
                row[77] = broken;
                assert!(encode(isa, &mut row, 0..8, 0..128).is_nan());
                let mut row = [0.5; PARTITION];
                row[77] = broken;
                assert!(encode(isa, &mut row, 0..8, 0..77).is_finite());
            }
        }
    }
}
