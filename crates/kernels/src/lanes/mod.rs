//! Sixteen f32 lanes as one value: the vector that generic kernels are written with.
//!
//! [`Lanes`] has an implementation for each instruction set. All of them perform the same IEEE
//! operations lane by lane, and reductions in one fixed order, so that a kernel written with
//! `Lanes` gives the same bits everywhere (NaN payloads apart).
//!
//! A value can only be made from a proof that its instructions are present, so holding one is a
//! proof too; that is why the methods are safe. Kernels are `#[inline(always)]` bodies over
//! `V: Lanes`, compiled for each instruction set by [`crate::dispatch::for_each_lanes`]. Closures
//! are kept out of hot loops: one that crosses a generic function without the instructions enabled
//! is not inlined.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2Lanes;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512Lanes;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{NeonLanes, widen_f16};
pub(crate) use portable::PortableLanes;

use crate::float_format::{Bf16, F16, StoredFloat};

/// Number of lanes: one 512-bit vector of f32.
pub(crate) const LANES: usize = 16;

/// Sixteen f32 lanes.
pub(crate) trait Lanes: Copy {
    /// Shows that the instructions are present.
    type Proof: Copy;

    /// Sixteen integers.
    type Sums: PairSums<Proof = Self::Proof>;

    /// Values that a kernel can keep in registers beside its operands.
    const ACCUMULATORS: usize;

    /// Has the compiler load again what it needs after this instead of keeping it in registers,
    /// where those are few: kept values would push accumulators out to memory.
    #[inline(always)]
    fn forget_loads() {}

    /// Returns `value` in every lane.
    fn splat(proof: Self::Proof, value: f32) -> Self;
    /// Returns the lanes of an array.
    fn load(proof: Self::Proof, lanes: &[f32; LANES]) -> Self;
    /// Returns bf16 lanes, widened.
    fn load_bf16(proof: Self::Proof, lanes: &[Bf16; LANES]) -> Self;
    /// Returns f16 lanes, widened.
    fn load_f16(proof: Self::Proof, lanes: &[F16; LANES]) -> Self;
    /// Returns sums of products of integers, rounded to the nearest floats.
    fn from_sums(sums: Self::Sums) -> Self;
    /// Writes the lanes to an array.
    fn store(self, lanes: &mut [f32; LANES]);

    /// Returns `self + other`.
    fn add(self, other: Self) -> Self;
    /// Returns `self - other`.
    fn sub(self, other: Self) -> Self;
    /// Returns `self * other`.
    fn mul(self, other: Self) -> Self;
    /// Returns `self * factor + term`, rounded once.
    fn mul_add(self, factor: Self, term: Self) -> Self;
    /// Returns the larger of the two; `other` where one is NaN.
    fn max(self, other: Self) -> Self;
    /// Returns `self` where it is at most `limit` or NaN, else `limit`.
    fn at_most(self, limit: Self) -> Self;
    /// Returns `|self|`.
    fn abs(self) -> Self;
    /// Returns `self`, or 0 where `x < limit`.
    fn zero_where_below(self, x: Self, limit: Self) -> Self;
    /// Returns `self * 2^n`, where `n + 127`, from 1 to 254, lies in the low bits of `shifted`, as
    /// adding [`crate::exp::ROUND_TO_POWER`] to a number leaves it.
    fn scale_by_power(self, shifted: Self) -> Self;
    /// Returns lane `i ^ DISTANCE` in lane `i`; `DISTANCE` is 1, 2, 4 or 8.
    fn swapped<const DISTANCE: usize>(self) -> Self;
    /// Returns the low byte of each lane's bits.
    fn low_bytes(self) -> [i8; LANES];
    /// Returns the low sixteen of each lane's bits.
    fn low_halves(self) -> [i16; LANES];
    /// Returns the sum of all lanes: lane `i` with `i + 8`, then with `i + 4`, `i + 2`, `i + 1`.
    fn sum_lanes(self) -> f32;
    /// Returns the largest lane, in the order of [`Lanes::sum_lanes`].
    fn max_lane(self) -> f32;
}

/// Sixteen 32-bit integers, each a sum of products of 16-bit integers that come in pairs.
///
/// Exact as long as no sum leaves its 32 bits, so neither the order nor the instructions matter.
pub(crate) trait PairSums: Copy {
    /// Shows that the instructions are present.
    type Proof: Copy;
    /// Sixteen pairs of 16-bit integers.
    type Pairs: Copy;

    /// Returns zeros.
    fn zero(proof: Self::Proof) -> Self;
    /// Returns `pair` sixteen times.
    fn splat_pair(proof: Self::Proof, pair: [i16; 2]) -> Self::Pairs;
    /// Returns pairs of bytes, widened.
    fn load_i8(proof: Self::Proof, pairs: &[[i8; 2]; LANES]) -> Self::Pairs;
    /// Returns the pairs of an array.
    fn load_i16(proof: Self::Proof, pairs: &[[i16; 2]; LANES]) -> Self::Pairs;
    /// Returns `self + a[0] * b[0] + a[1] * b[1]`.
    fn add_products(self, a: Self::Pairs, b: Self::Pairs) -> Self;
}

/// A stored float that is read sixteen at a time.
pub(crate) trait LaneFloat: StoredFloat {
    /// Returns sixteen stored floats, widened.
    fn load<V: Lanes>(proof: V::Proof, lanes: &[Self; LANES]) -> V;
}

impl LaneFloat for f32 {
    #[inline(always)]
    fn load<V: Lanes>(proof: V::Proof, lanes: &[Self; LANES]) -> V {
        V::load(proof, lanes)
    }
}

impl LaneFloat for Bf16 {
    #[inline(always)]
    fn load<V: Lanes>(proof: V::Proof, lanes: &[Self; LANES]) -> V {
        V::load_bf16(proof, lanes)
    }
}

impl LaneFloat for F16 {
    #[inline(always)]
    fn load<V: Lanes>(proof: V::Proof, lanes: &[Self; LANES]) -> V {
        V::load_f16(proof, lanes)
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "test numbers are small")]
mod tests {
    use super::*;
    use crate::dispatch::for_each_lanes;
    use crate::exp::ROUND_TO_POWER;
    use crate::isa::Isa;

    for_each_lanes! {
        fn apply(a: &[f32; LANES], b: &[f32; LANES]) -> Vec<[f32; LANES]> = apply_body
    }

    /// The results of every operation on `a` and `b`.
    #[inline(always)]
    fn apply_body<V: Lanes>(
        proof: V::Proof,
        a: &[f32; LANES],
        b: &[f32; LANES],
    ) -> Vec<[f32; LANES]> {
        let (x, y) = (V::load(proof, a), V::load(proof, b));
        let bf16 = a.map(Bf16::narrow);
        let f16 = a.map(F16::narrow);
        let rounded = x.add(V::splat(proof, 12_582_912.0));
        let power = x.add(V::splat(proof, ROUND_TO_POWER));
        let results = [
            x.add(y),
            x.sub(y),
            x.mul(y),
            x.mul_add(y, x),
            x.max(y),
            x.at_most(y),
            x.abs(),
            x.zero_where_below(y, x),
            y.scale_by_power(power),
            V::load_bf16(proof, &bf16),
            V::load_f16(proof, &f16),
            x.swapped::<1>(),
            x.swapped::<2>(),
            x.swapped::<4>(),
            x.swapped::<8>(),
            V::splat(proof, x.sum_lanes()),
            V::splat(proof, x.max_lane()),
        ];
        let mut out: Vec<_> = results
            .into_iter()
            .map(|result| {
                let mut lanes = [0.0; LANES];
                result.store(&mut lanes);
                lanes
            })
            .collect();
        out.push(rounded.low_bytes().map(f32::from));
        let many = x.mul_add(V::splat(proof, 1000.0), V::splat(proof, 12_582_912.0));
        out.push(many.low_halves().map(f32::from));
        out
    }

    for_each_lanes! {
        fn sums(bytes: &[[i8; 2]; LANES], words: &[[i16; 2]; LANES], pair: [i16; 2]) -> [f32; LANES] = sums_body
    }

    /// The sum of the products of bytes with words, and of both with a pair.
    #[inline(always)]
    fn sums_body<V: Lanes>(
        proof: V::Proof,
        bytes: &[[i8; 2]; LANES],
        words: &[[i16; 2]; LANES],
        pair: [i16; 2],
    ) -> [f32; LANES] {
        let bytes = V::Sums::load_i8(proof, bytes);
        let words = V::Sums::load_i16(proof, words);
        let pair = V::Sums::splat_pair(proof, pair);
        let zero = V::Sums::zero(proof);
        let sums = zero.add_products(bytes, words).add_products(pair, bytes);
        let mut out = [0.0; LANES];
        V::from_sums(sums.add_products(words, pair)).store(&mut out);
        out
    }

    fn check(a: [f32; LANES], b: [f32; LANES]) {
        let mut tree = a;
        for half in [8, 4, 2, 1] {
            (0..half).for_each(|i| tree[i] += tree[i + half]);
        }
        let pair = |f: fn(f32, f32) -> f32| std::array::from_fn(|i| f(a[i], b[i]));
        let one = |f: fn(f32) -> f32| a.map(f);
        let expected: Vec<[f32; LANES]> = vec![
            pair(|a, b| a + b),
            pair(|a, b| a - b),
            pair(|a, b| a * b),
            pair(|a, b| a.mul_add(b, a)),
            pair(|a, b| if a > b { a } else { b }),
            pair(|a, b| if b < a { b } else { a }),
            one(f32::abs),
            pair(|a, b| if b < a { 0.0 } else { a }),
            // The lane is rounded with 127 added, so that ties go to odd powers.
            pair(|a, b| b * 2.0_f32.powi((f64::from(a) + 127.0).round_ties_even() as i32 - 127)),
            one(|a| Bf16::narrow(a).widen()),
            one(|a| F16::narrow(a).widen()),
            std::array::from_fn(|i| a[i ^ 1]),
            std::array::from_fn(|i| a[i ^ 2]),
            std::array::from_fn(|i| a[i ^ 4]),
            std::array::from_fn(|i| a[i ^ 8]),
            [tree[0]; LANES],
            [a.iter().copied().fold(f32::MIN, f32::max); LANES],
            one(|a| f32::from(a.round_ties_even() as i32 as i8)),
            one(|a| f32::from((f64::from(a) * 1000.0).round_ties_even() as i32 as i16)),
        ];
        for isa in Isa::all_present() {
            for (i, (got, expected)) in apply(isa, &a, &b).iter().zip(&expected).enumerate() {
                let bits = |lanes: &[f32; LANES]| lanes.map(f32::to_bits);
                assert_eq!(bits(got), bits(expected), "operation {i} on {}", isa.name());
            }
        }
    }

    #[test]
    fn every_isa_gives_the_bits_of_plain_arithmetic() {
        for seed in 1..50_u16 {
            let number = |i: usize, k: u16| {
                let n = (i as f32 + f32::from(seed * k)) * 0.618;
                (n.fract() - 0.5) * f32::from(seed)
            };
            check(std::array::from_fn(|i| number(i, 3)), std::array::from_fn(|i| number(i, 7)));
        }
    }

    #[test]
    fn sums_of_products_of_pairs_are_exact() {
        for seed in 0..200 {
            let bits =
                |lane: usize, of: usize| mini_infer_core::mix64(seed * 64 + (lane * 2 + of) as u64);
            let pair = [i16::MIN + 1 + seed as i16, i16::MAX - seed as i16];
            let bytes = std::array::from_fn(|i| [0, 1].map(|of| (bits(i, of) as i8).max(-127)));
            let words = std::array::from_fn(|i| [0, 1].map(|of| (bits(i, of) >> 8) as i16 / 2));
            let expected: [f32; LANES] = std::array::from_fn(|i| {
                let [b, w, p] =
                    [bytes[i].map(i64::from), words[i].map(i64::from), pair.map(i64::from)];
                (0..2).map(|of| b[of] * w[of] + p[of] * b[of] + w[of] * p[of]).sum::<i64>() as f32
            });
            for isa in Isa::all_present() {
                assert_eq!(sums(isa, &bytes, &words, pair), expected, "{}", isa.name());
            }
        }
    }
}
