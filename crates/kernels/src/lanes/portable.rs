//! Lanes as an array.

use super::{LANES, Lanes, PairSums};
use crate::float_format::{Bf16, F16, StoredFloat};

/// Sixteen lanes in plain Rust.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortableLanes([f32; LANES]);

impl PortableLanes {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    #[inline(always)]
    fn reduce(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] = f(lanes[i], lanes[i + half]);
            }
        }
        lanes[0]
    }
}

impl Lanes for PortableLanes {
    type Proof = ();
    type Sums = PortableSums;

    const ACCUMULATORS: usize = 1;

    #[inline(always)]
    fn splat((): (), value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    fn load((): (), lanes: &[f32; LANES]) -> Self {
        Self(*lanes)
    }

    #[inline(always)]
    fn load_bf16((): (), lanes: &[Bf16; LANES]) -> Self {
        Self(lanes.map(StoredFloat::widen))
    }

    #[inline(always)]
    fn load_f16((): (), lanes: &[F16; LANES]) -> Self {
        Self(lanes.map(StoredFloat::widen))
    }

    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "rounded as the method says")]
    fn from_sums(sums: PortableSums) -> Self {
        Self(sums.0.map(|sum| sum as f32))
    }

    #[inline(always)]
    fn store(self, lanes: &mut [f32; LANES]) {
        *lanes = self.0;
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], term.0[i])))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn at_most(self, limit: Self) -> Self {
        self.zip(limit, |a, limit| if limit < a { limit } else { a })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.map(f32::abs))
    }

    #[inline(always)]
    fn zero_where_below(self, x: Self, limit: Self) -> Self {
        Self(std::array::from_fn(|i| if x.0[i] < limit.0[i] { 0.0 } else { self.0[i] }))
    }

    #[inline(always)]
    fn scale_by_power(self, shifted: Self) -> Self {
        self.zip(shifted, |a, shifted| a * f32::from_bits(shifted.to_bits() << 23))
    }

    #[inline(always)]
    fn swapped<const DISTANCE: usize>(self) -> Self {
        Self(std::array::from_fn(|i| self.0[i ^ DISTANCE]))
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the low byte is what is asked for")]
    fn low_bytes(self) -> [i8; LANES] {
        self.0.map(|lane| lane.to_bits() as i8)
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
    fn low_halves(self) -> [i16; LANES] {
        self.0.map(|lane| lane.to_bits() as i16)
    }

    #[inline(always)]
    fn sum_lanes(self) -> f32 {
        self.reduce(|a, b| a + b)
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        self.reduce(|a, b| if a > b { a } else { b })
    }
}

/// Sixteen integers in plain Rust.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortableSums([i32; LANES]);

impl PairSums for PortableSums {
    type Proof = ();
    type Pairs = [[i16; 2]; LANES];

    #[inline(always)]
    fn zero((): ()) -> Self {
        Self([0; LANES])
    }

    #[inline(always)]
    fn splat_pair((): (), pair: [i16; 2]) -> Self::Pairs {
        [pair; LANES]
    }

    #[inline(always)]
    fn load_i8((): (), pairs: &[[i8; 2]; LANES]) -> Self::Pairs {
        pairs.map(|pair| pair.map(i16::from))
    }

    #[inline(always)]
    fn load_i16((): (), pairs: &[[i16; 2]; LANES]) -> Self::Pairs {
        *pairs
    }

    #[inline(always)]
    fn add_products(self, a: Self::Pairs, b: Self::Pairs) -> Self {
        let product = |lane: usize, of: usize| i32::from(a[lane][of]) * i32::from(b[lane][of]);
        Self(std::array::from_fn(|lane| self.0[lane] + product(lane, 0) + product(lane, 1)))
    }
}
