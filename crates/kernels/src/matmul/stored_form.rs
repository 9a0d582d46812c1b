//! The forms that tiles are stored in, as types: kernels are compiled for each.

use crate::packed_matrix::{CodeWidth, ScaleFormat};

/// How codes are stored.
pub(super) trait Codes {
    /// Bits of a code.
    const WIDTH: CodeWidth;
    /// Whether they have four bits, two words of codes to a vector.
    const NIBBLES: bool = matches!(Self::WIDTH, CodeWidth::Nibble);
    /// Whether they use all eight bits, around a zero point of 128.
    const FULL: bool;
}

/// Codes in nibbles.
pub(super) struct NibbleCodes;
/// Codes in bytes.
pub(super) struct ByteCodes;
/// Codes in bytes that use all eight bits, where that makes a difference.
pub(super) struct FullByteCodes;

impl Codes for NibbleCodes {
    const WIDTH: CodeWidth = CodeWidth::Nibble;
    const FULL: bool = false;
}
impl Codes for ByteCodes {
    const WIDTH: CodeWidth = CodeWidth::Byte;
    const FULL: bool = false;
}
impl Codes for FullByteCodes {
    const WIDTH: CodeWidth = CodeWidth::Byte;
    const FULL: bool = true;
}

/// How scales are stored and what they scale.
pub(super) trait Scales {
    /// All that follows.
    const FORMAT: ScaleFormat;
    /// Whether they are f16 instead of f32.
    const HALF_FLOATS: bool = Self::FORMAT.element_bytes() == 2;
    /// Whether minimums follow them.
    const MINIMUM: bool = Self::FORMAT.has_minimum();
    /// Whether the halves of a group have a scale each.
    const HALVES: bool = Self::FORMAT.has_halves();
}

/// Defines types that implement [`Scales`].
macro_rules! scales {
    ($($name:ident: $format:ident),*) => {$(
        pub(super) struct $name;
        impl Scales for $name {
            const FORMAT: ScaleFormat = ScaleFormat::$format;
        }
    )*};
}
scales! {
    F16Scale: F16,
    F16ScaleMinimum: F16Minimum,
    F32Scale: F32,
    F32ScaleMinimum: F32Minimum,
    F32HalfScales: F32Halves,
    F32HalfScalesMinimums: F32HalvesMinimums
}
