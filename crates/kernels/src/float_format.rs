//! The float formats that weights and KV are stored in, and their conversions.
//!
//! Conversions are written without branches, so that the compiler turns loops of them into
//! vectors on every instruction set.

use bytemuck::{Pod, Zeroable};

/// A float in its stored form.
pub(crate) trait StoredFloat: Copy + Pod + Send + Sync {
    /// Returns the value; exact.
    fn widen(self) -> f32;
    /// Rounds to nearest, ties to even; too large becomes infinite, NaN stays NaN.
    fn narrow(value: f32) -> Self;
}

/// IEEE half precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct F16(pub(crate) u16);

/// The upper half of an f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Bf16(pub(crate) u16);

impl Bf16 {
    /// Rounds a positive finite value up.
    #[inline(always)]
    pub(crate) fn narrow_up(value: f32) -> Self {
        debug_assert!(value > 0.0 && value.is_finite());
        Self(((value.to_bits() + 0xffff) >> 16) as u16)
    }
}

impl StoredFloat for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }
}

impl StoredFloat for Bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        // Rounding could carry a NaN's mantissa into infinity; a set mantissa bit keeps it NaN.
        let kept = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
        Self((kept >> 16) as u16)
    }
}

impl StoredFloat for F16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.0);
        let sign = (bits & 0x8000) << 16;
        // The exponent and mantissa in f32's place, then rebiased by a multiplication, which also
        // makes subnormal halves right.
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000); // 2^112
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | sign)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        // Normal halves: rebias the exponent by -112 and round the 13 lost bits to nearest even.
        let normal = magnitude.wrapping_sub(112 << 23);
        let normal = normal.wrapping_add(0x0fff + ((normal >> 13) & 1)) >> 13;
        // Subnormal halves: adding 0.5 leaves multiples of 2^-24, rounded to even, in the low bits.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let finite = if magnitude < 0x3880_0000 { subnormal } else { normal }; // 2^-14
        let overflowed = if magnitude >= 0x4780_0000 { 0x7c00 } else { finite }; // 65536
        let result = if magnitude > 0x7f80_0000 { 0x7e00 } else { overflowed };
        #[expect(clippy::cast_possible_truncation, reason = "all cases are below 2^16")]
        Self((result | sign) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{bf16_to_f32, f16_to_f32};

    #[test]
    fn widening_equals_the_reference_for_every_bit_pattern_and_narrowing_inverts_it() {
        for bits in 0..=u16::MAX {
            for (wide, expected, back) in [
                (F16(bits).widen(), f16_to_f32(bits), F16::narrow(f16_to_f32(bits)).0),
                (Bf16(bits).widen(), bf16_to_f32(bits), Bf16::narrow(bf16_to_f32(bits)).0),
            ] {
                if expected.is_nan() {
                    assert!(wide.is_nan());
                } else {
                    assert_eq!(wide.to_bits(), expected.to_bits(), "{bits:#06x}");
                    assert_eq!(back, bits);
                }
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        let one = 1.0_f32;
        assert_eq!(F16::narrow(one + 1.0 / 2048.0).widen(), 1.0);
        assert_eq!(F16::narrow(one + 3.0 / 2048.0).widen(), 1.0 + 2.0 / 1024.0);
        assert_eq!(Bf16::narrow(one + 1.0 / 256.0).widen(), 1.0);
        assert_eq!(Bf16::narrow(one + 3.0 / 256.0).widen(), 1.0 + 2.0 / 128.0);
        assert_eq!(Bf16::narrow_up(one).widen(), one);
        assert_eq!(Bf16::narrow_up(one + f32::EPSILON).widen(), 1.0 + 1.0 / 128.0);
        assert_eq!(F16::narrow(65519.0).widen(), 65504.0);
        assert_eq!(F16::narrow(65520.0).widen(), f32::INFINITY);
        assert!(F16::narrow(f32::NAN).widen().is_nan());
        assert!(Bf16::narrow(f32::from_bits(0x7f80_0001)).widen().is_nan());
        assert_eq!(F16::narrow(f32::NEG_INFINITY).widen(), f32::NEG_INFINITY);
        assert_eq!(F16::narrow(2.0_f32.powi(-25)).widen(), 0.0);
        assert_eq!(F16::narrow(2.0_f32.powi(-25) * 1.5).widen(), 2.0_f32.powi(-24));
    }
}
