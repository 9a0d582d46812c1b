//! The stored forms of a KV element, and how attention multiplies them.
//!
//! Floats are multiplied by floats, one lane after the other in a chain of fused multiply-adds.
//! Codes are multiplied by 16-bit integers that stand for queries and weights (see
//! [`crate::attention`]), two neighbours by one instruction, and their sums are exact.

use crate::float_format::{Bf16, F16};
use crate::lanes::{LANES, LaneFloat, Lanes, PairSums};
use bytemuck::Pod;

/// An element of a key or value in its stored form, or in the form that many rows share.
pub(crate) trait KvElement: Pod + Send + Sync {
    /// Whether elements are codes: those of a rotated head (see [`crate::kv_rotation`]), divided by
    /// a scale that the token's elements of a head share.
    const IS_CODE: bool;
    /// Elements that one lane holds: of neighbouring dimensions of a key, or of neighbouring
    /// tokens' values.
    const TOGETHER: usize;

    /// [`Self::TOGETHER`] elements.
    type Lane: Pod;
    /// The form that many rows share.
    type Wide: KvElement<Multiplier = Self::Multiplier>;
    /// What a lane is multiplied by: as many numbers, in the place of one float.
    type Multiplier: Pod;
    /// Sixteen lanes, or one multiplier in each of them.
    type Operand<V: Lanes>: Copy;
    /// Sixteen sums of products.
    type Sum<V: Lanes>: Copy;

    /// Writes sixteen elements in the form that many rows share.
    fn widen<V: Lanes>(proof: V::Proof, stored: &[Self; LANES], wide: &mut [Self::Wide; LANES]);
    /// Returns a multiplier in all lanes.
    fn splat<V: Lanes>(proof: V::Proof, multiplier: Self::Multiplier) -> Self::Operand<V>;
    /// Returns stored lanes.
    fn load<V: Lanes>(proof: V::Proof, lanes: &[Self::Lane; LANES]) -> Self::Operand<V>;
    /// Returns sums of nothing.
    fn zero<V: Lanes>(proof: V::Proof) -> Self::Sum<V>;
    /// Returns sums that go on from `sums`, as [`Self::floats`] has made them; codes, whose sums
    /// are never taken up again, begin with nothing.
    fn resume<V: Lanes>(proof: V::Proof, sums: &[f32; LANES]) -> Self::Sum<V>;
    /// Adds the products of `multipliers` and `lanes`.
    fn add_products<V: Lanes>(
        sum: Self::Sum<V>,
        multipliers: Self::Operand<V>,
        lanes: Self::Operand<V>,
    ) -> Self::Sum<V>;
    /// Returns the sums as floats.
    fn floats<V: Lanes>(sum: Self::Sum<V>) -> V;
}

macro_rules! float_elements {
    ($($float:ty),*) => {$(
        impl KvElement for $float {
            const IS_CODE: bool = false;
            const TOGETHER: usize = 1;

            type Lane = Self;
            type Wide = f32;
            type Multiplier = f32;
            type Operand<V: Lanes> = V;
            type Sum<V: Lanes> = V;

            #[inline(always)]
            fn widen<V: Lanes>(proof: V::Proof, stored: &[Self; LANES], wide: &mut [f32; LANES]) {
                <Self as LaneFloat>::load::<V>(proof, stored).store(wide);
            }

            #[inline(always)]
            fn splat<V: Lanes>(proof: V::Proof, multiplier: f32) -> V {
                V::splat(proof, multiplier)
            }

            #[inline(always)]
            fn load<V: Lanes>(proof: V::Proof, lanes: &[Self; LANES]) -> V {
                LaneFloat::load(proof, lanes)
            }

            #[inline(always)]
            fn zero<V: Lanes>(proof: V::Proof) -> V {
                V::splat(proof, 0.0)
            }

            #[inline(always)]
            fn resume<V: Lanes>(proof: V::Proof, sums: &[f32; LANES]) -> V {
                V::load(proof, sums)
            }

            #[inline(always)]
            fn add_products<V: Lanes>(sum: V, multipliers: V, lanes: V) -> V {
                multipliers.mul_add(lanes, sum)
            }

            #[inline(always)]
            fn floats<V: Lanes>(sum: V) -> V {
                sum
            }
        }
    )*};
}

float_elements!(f32, F16, Bf16);

macro_rules! codes {
    ($($code:ty: $load:ident),*) => {$(
        impl KvElement for $code {
            const IS_CODE: bool = true;
            const TOGETHER: usize = 2;

            type Lane = [Self; 2];
            type Wide = i16;
            type Multiplier = [i16; 2];
            type Operand<V: Lanes> = <V::Sums as PairSums>::Pairs;
            type Sum<V: Lanes> = V::Sums;

            #[inline(always)]
            fn widen<V: Lanes>(_proof: V::Proof, stored: &[Self; LANES], wide: &mut [i16; LANES]) {
                wide.iter_mut().zip(stored).for_each(|(wide, code)| *wide = i16::from(*code));
            }

            #[inline(always)]
            fn splat<V: Lanes>(proof: V::Proof, multiplier: [i16; 2]) -> Self::Operand<V> {
                V::Sums::splat_pair(proof, multiplier)
            }

            #[inline(always)]
            fn load<V: Lanes>(proof: V::Proof, lanes: &[[Self; 2]; LANES]) -> Self::Operand<V> {
                V::Sums::$load(proof, lanes)
            }

            #[inline(always)]
            fn zero<V: Lanes>(proof: V::Proof) -> V::Sums {
                V::Sums::zero(proof)
            }

            #[inline(always)]
            fn resume<V: Lanes>(proof: V::Proof, _sums: &[f32; LANES]) -> V::Sums {
                V::Sums::zero(proof)
            }

            #[inline(always)]
            fn add_products<V: Lanes>(
                sum: V::Sums,
                multipliers: Self::Operand<V>,
                lanes: Self::Operand<V>,
            ) -> V::Sums {
                sum.add_products(multipliers, lanes)
            }

            #[inline(always)]
            fn floats<V: Lanes>(sum: V::Sums) -> V {
                V::from_sums(sum)
            }
        }
    )*};
}

codes!(i8: load_i8, i16: load_i16);
