//! The stored forms of a KV element, as attention reads them.

use crate::float_format::{Bf16, F16};
use crate::lanes::{LANES, LaneFloat, Lanes};
use bytemuck::Pod;

/// An element of a key or value in its stored form.
pub(crate) trait KvElement: Pod + Send + Sync {
    /// Whether elements are those of a rotated head (see [`crate::kv_rotation`]), divided by a
    /// scale that the token's elements of a head share.
    const IS_SCALED: bool;

    /// Returns sixteen elements, widened.
    fn load<V: Lanes>(proof: V::Proof, lanes: &[Self; LANES]) -> V;
}

macro_rules! unscaled {
    ($($float:ty),*) => {$(
        impl KvElement for $float {
            const IS_SCALED: bool = false;

            #[inline(always)]
            fn load<V: Lanes>(proof: V::Proof, lanes: &[Self; LANES]) -> V {
                LaneFloat::load(proof, lanes)
            }
        }
    )*};
}

unscaled!(f32, F16, Bf16);

impl KvElement for i8 {
    const IS_SCALED: bool = true;

    #[inline(always)]
    fn load<V: Lanes>(proof: V::Proof, lanes: &[Self; LANES]) -> V {
        V::load_i8(proof, lanes)
    }
}
