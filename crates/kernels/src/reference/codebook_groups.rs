//! Quantisation groups whose codes stand for unevenly spaced weights, read as small integers.
//!
//! These are ggml's i-quants, ternary formats and MXFP4. Their codes are indices: of a value among
//! sixteen, or of four or eight values at once in one of the [`super::codebooks`]. Every one of
//! them is a small integer times a scale, in places plus a constant, so that
//!
//! ```text
//! weight = scale * code + minimum
//! ```
//!
//! where no product or sum needs more than the 24 bits of an f32. So the operations are exact, and
//! their order does not matter: results equal those of ggml's `dequantize_row_*` (ggml-quants.c)
//! and of the `gguf` Python package bit for bit.

use super::codebooks::{self, eight_levels, four_levels};
use super::f16_to_f32;
use crate::WeightType;

/// Weights of a [`SignedGroup`].
const WEIGHTS: usize = 32;
/// What leaves every sum as it is, the sign of a zero included.
const NO_MINIMUM: [f32; 2] = [-0.0; 2];
/// The values of the four-bit codes of IQ4_NL and IQ4_XS (`kvalues_iq4nl`).
const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of the E2M1 floats of MXFP4 (`kvalues_mxfp4`).
const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// The levels of IQ2_XXS, IQ2_XS and IQ2_S; the fourth does not occur.
const IQ2_VALUES: [i8; 4] = [8, 25, 43, 0];
/// The levels of IQ3_XXS.
const IQ3_XXS_VALUES: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

/// Thirty-two weights: `scales[half] * codes[i] + minimums[half]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SignedGroup {
    /// Codes in the order of the input features.
    pub(crate) codes: [i8; WEIGHTS],
    /// Scales of the two halves; equal where the format has one for both.
    pub(crate) scales: [f32; 2],
    /// Added to every weight of the two halves.
    pub(crate) minimums: [f32; 2],
}

/// Reads the weights `32 * part ..` of one group.
///
/// # Panics
/// When `group` is too short or the type is not one of those that the module owns.
#[expect(clippy::wildcard_enum_match_arm, reason = "the types are listed by those who call this")]
pub(crate) fn read_signed(weight_type: WeightType, group: &[u8], part: usize) -> SignedGroup {
    match weight_type {
        WeightType::Iq1S => iq1_s(group, part),
        WeightType::Iq1M => iq1_m(group, part),
        WeightType::Iq2Xxs => iq2_xxs(group, part),
        WeightType::Iq2Xs => iq2_xs(group, part),
        WeightType::Iq2S => iq2_s(group, part),
        WeightType::Iq3Xxs => iq3_xxs(group, part),
        WeightType::Iq3S => iq3_s(group, part),
        WeightType::Iq4Nl => iq4_nl(group),
        WeightType::Iq4Xs => iq4_xs(group, part),
        WeightType::Tq1_0 => tq1_0(group, part),
        WeightType::Tq2_0 => tq2_0(group, part),
        WeightType::Mxfp4 => mxfp4(group),
        _ => unreachable!("{weight_type} has codes that count evenly"),
    }
}

/// Reads a little-endian field.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | (u32::from(u16_at(bytes, at + 2)) << 16)
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16_at(bytes, at))
}

/// Returns nibble `i` of a field, the low one of a byte first.
fn nibble_at(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 2] >> (i % 2 * 4)) & 0x0f
}

fn one_scale(codes: [i8; WEIGHTS], scale: f32) -> SignedGroup {
    SignedGroup { codes, scales: [scale; 2], minimums: NO_MINIMUM }
}

/// Sixteen values for 32 codes, which lie in the low nibbles and then in the high ones.
fn valued_nibbles(bytes: &[u8], values: &[i8; 16]) -> [i8; WEIGHTS] {
    std::array::from_fn(|i| values[usize::from((bytes[i % 16] >> (i / 16 * 4)) & 0x0f)])
}

/// Four entries of eight weights.
fn eights(entries: [u16; 4], value: impl Fn(usize, u8) -> i8) -> [i8; WEIGHTS] {
    let levels = entries.map(eight_levels);
    std::array::from_fn(|i| value(i, levels[i / 8][i % 8]))
}

/// Eight entries of four weights.
fn fours(entries: [u16; 8], value: impl Fn(usize, u8) -> i8) -> [i8; WEIGHTS] {
    let levels = entries.map(four_levels);
    std::array::from_fn(|i| value(i, levels[i / 4][i % 4]))
}

/// Returns `value`, or its negative where bit `i` of `signs` is set.
fn signed(value: i8, signs: u32, i: usize) -> i8 {
    if signs & (1 << i) == 0 { value } else { -value }
}

/// Returns the signs of eight weights whose number of minus signs is even, from the first seven.
fn even_signs(seven: u32) -> u32 {
    let seven = seven & 0x7f;
    seven | ((seven.count_ones() & 1) << 7)
}

/// Returns the signs of 32 weights from four times seven bits.
fn four_even_signs(bits: u32) -> u32 {
    (0..4).fold(0, |signs, i| signs | (even_signs(bits >> (7 * i)) << (8 * i)))
}

/// `[scale: f16, 8 x (4 indices: 4 bytes, 4 x 7 signs and a 4-bit scale: u32)]`
fn iq2_xxs(group: &[u8], part: usize) -> SignedGroup {
    let at = 2 + part * 8;
    let aux = u32_at(group, at + 4);
    let entries = std::array::from_fn(|j| codebooks::IQ2_XXS[usize::from(group[at + j])]);
    let signs = four_even_signs(aux);
    let scale = half_at(group, 0) * (0.5 + f32::from((aux >> 28).to_le_bytes()[0])) * 0.25;
    one_scale(eights(entries, |i, level| signed(IQ2_VALUES[usize::from(level)], signs, i)), scale)
}

/// Scales of 16 weights of the IQ2 formats, from a byte of two.
fn iq2_scales(scale: f32, packed: u8) -> [f32; 2] {
    [packed & 0x0f, packed >> 4].map(|packed| scale * (0.5 + f32::from(packed)) * 0.25)
}

/// `[scale: f16, 32 x (9-bit index, 7 signs): u16, 16 4-bit scales: 8 bytes]`
fn iq2_xs(group: &[u8], part: usize) -> SignedGroup {
    let words: [u16; 4] = std::array::from_fn(|j| u16_at(group, 2 + part * 8 + j * 2));
    let entries = words.map(|word| codebooks::IQ2_XS[usize::from(word & 0x1ff)]);
    let signs = words.map(|word| even_signs(u32::from(word >> 9)));
    let value = |i: usize, level| signed(IQ2_VALUES[usize::from(level)], signs[i / 8], i % 8);
    SignedGroup {
        codes: eights(entries, value),
        scales: iq2_scales(half_at(group, 0), group[66 + part]),
        minimums: NO_MINIMUM,
    }
}

/// `[scale: f16, low 8 bits of 32 indices: 32 bytes, 256 signs: 32 bytes, their upper bit pairs:
/// 8 bytes, 16 4-bit scales: 8 bytes]`
fn iq2_s(group: &[u8], part: usize) -> SignedGroup {
    let high = u16::from(group[66 + part]);
    let entries = std::array::from_fn(|j| {
        let index = u16::from(group[2 + part * 4 + j]) | (((high >> (2 * j)) & 3) << 8);
        codebooks::IQ2_S[usize::from(index)]
    });
    let signs = u32_at(group, 34 + part * 4);
    SignedGroup {
        codes: eights(entries, |i, level| signed(IQ2_VALUES[usize::from(level)], signs, i)),
        scales: iq2_scales(half_at(group, 0), group[74 + part]),
        minimums: NO_MINIMUM,
    }
}

/// `[scale: f16, 64 indices: 64 bytes, 8 x (4 x 7 signs and a 4-bit scale): u32]`
fn iq3_xxs(group: &[u8], part: usize) -> SignedGroup {
    let aux = u32_at(group, 66 + part * 4);
    let entries = std::array::from_fn(|j| codebooks::IQ3_XXS[usize::from(group[2 + part * 8 + j])]);
    let signs = four_even_signs(aux);
    let scale = half_at(group, 0) * (0.5 + f32::from((aux >> 28).to_le_bytes()[0])) * 0.5;
    let value = |i, level| signed(IQ3_XXS_VALUES[usize::from(level)], signs, i);
    one_scale(fours(entries, value), scale)
}

/// `[scale: f16, low 8 bits of 64 indices: 64 bytes, their ninth bits: 8 bytes, 256 signs: 32
/// bytes, 8 4-bit scales: 4 bytes]`
///
/// Weights are odd multiples of the scale, from -15 to 15: twice a code from -8 to 7, plus one.
fn iq3_s(group: &[u8], part: usize) -> SignedGroup {
    let ninth = u16::from(group[66 + part]);
    let entries = std::array::from_fn(|j| {
        let index = u16::from(group[2 + part * 8 + j]) | (((ninth >> j) & 1) << 8);
        codebooks::IQ3_S[usize::from(index)]
    });
    let signs = u32_at(group, 74 + part * 4);
    let scale = half_at(group, 0) * f32::from(1 + 2 * nibble_at(&group[106..], part));
    let value = |i: usize, level: u8| {
        let level = level.cast_signed();
        if signs & (1 << i) == 0 { level } else { -1 - level }
    };
    SignedGroup { codes: fours(entries, value), scales: [scale * 2.0; 2], minimums: [scale; 2] }
}

/// `[scale: f16, low 8 bits of 32 indices: 32 bytes, 8 x (4 x 3 upper bits, 3-bit scale, sign of
/// the minimum): u16]`
///
/// Weights are -1, 0 or 1 times the scale, plus or minus an eighth of it.
fn iq1_s(group: &[u8], part: usize) -> SignedGroup {
    let high = u16_at(group, 34 + part * 2);
    let entries = std::array::from_fn(|j| {
        let index = u16::from(group[2 + part * 4 + j]) | (((high >> (3 * j)) & 7) << 8);
        codebooks::IQ1[usize::from(index)]
    });
    let scale = half_at(group, 0) * f32::from(2 * ((high >> 12) & 7) + 1);
    let delta = if high & 0x8000 == 0 { 0.125 } else { -0.125 };
    SignedGroup {
        codes: eights(entries, |_, level| level.cast_signed() - 1),
        scales: [scale; 2],
        minimums: [scale * delta; 2],
    }
}

/// `[low 8 bits of 32 indices: 32 bytes, 32 x (3 upper bits, sign of the minimum): 16 bytes,
/// 4 x (4 3-bit scales, 4 bits of the f16 scale): u16]`
///
/// As [`iq1_s`], with a minimum for every eight weights, so that codes count eighths.
fn iq1_m(group: &[u8], part: usize) -> SignedGroup {
    let high: [u16; 4] = std::array::from_fn(|j| u16::from(nibble_at(&group[32..], part * 4 + j)));
    let entries = std::array::from_fn(|j| {
        let index = u16::from(group[part * 4 + j]) | ((high[j] & 7) << 8);
        codebooks::IQ1[usize::from(index)]
    });
    let words: [u16; 4] = std::array::from_fn(|j| u16_at(group, 48 + j * 2));
    let bits = (0..4).fold(0, |bits, j| bits | ((words[j] >> 12) << (4 * j)));
    let scale = |half: usize| {
        let packed = words[part / 2] >> (part % 2 * 6 + half * 3);
        f16_to_f32(bits) * f32::from(2 * (packed & 7) + 1) * 0.125
    };
    let value = |i: usize, level: u8| {
        let delta = if high[i / 8] & 8 == 0 { 1 } else { -1 };
        8 * (level.cast_signed() - 1) + delta
    };
    SignedGroup {
        codes: eights(entries, value),
        scales: [scale(0), scale(1)],
        minimums: NO_MINIMUM,
    }
}

/// `[scale: f16, q: 16 bytes]`
fn iq4_nl(group: &[u8]) -> SignedGroup {
    one_scale(valued_nibbles(&group[2..18], &IQ4_VALUES), half_at(group, 0))
}

/// `[scale: f16, upper bit pairs of 8 6-bit scales: u16, their low nibbles: 4 bytes, q: 128 bytes]`
fn iq4_xs(group: &[u8], part: usize) -> SignedGroup {
    let upper = (u16_at(group, 2) >> (2 * part)) & 3;
    let scale = f32::from(u16::from(nibble_at(&group[4..], part)) | (upper << 4)) - 32.0;
    let codes = valued_nibbles(&group[8 + part * 16..][..16], &IQ4_VALUES);
    one_scale(codes, half_at(group, 0) * scale)
}

/// `[5 weights a byte: 48 bytes, 4 weights a byte: 4 bytes, scale: f16]`
///
/// A byte is a fraction of 256 whose digits in base three are weights. The digits of a place come
/// from 32 bytes, then those of the next place; after those the other 16 bytes, then the last 4.
fn tq1_0(group: &[u8], part: usize) -> SignedGroup {
    let codes = std::array::from_fn(|i| {
        let (byte, place) = match part * WEIGHTS + i {
            i @ ..160 => (group[i % 32], i / 32),
            i @ 160..240 => (group[32 + (i - 160) % 16], (i - 160) / 16),
            i => (group[48 + (i - 240) % 4], (i - 240) / 4),
        };
        let rest = (0..place).fold(byte, |rest, _| rest.wrapping_mul(3));
        (u16::from(rest) * 3).to_le_bytes()[1].cast_signed() - 1
    });
    one_scale(codes, half_at(group, 52))
}

/// `[q: 64 bytes, scale: f16]`
///
/// Each half of 128 weights has 32 bytes; weight `32 * plane + byte` is bit pair `plane` of `byte`.
fn tq2_0(group: &[u8], part: usize) -> SignedGroup {
    let bytes = &group[part / 4 * 32..][..32];
    let codes = std::array::from_fn(|i| ((bytes[i] >> (part % 4 * 2)) & 3).cast_signed() - 1);
    one_scale(codes, half_at(group, 64))
}

/// `[exponent of the scale: 1 byte, q: 16 bytes]`
fn mxfp4(group: &[u8]) -> SignedGroup {
    // Half of 2^(exponent - 127), for the values are twice what they stand for.
    let bits = match u32::from(group[0]) {
        exponent @ ..2 => 0x0020_0000 << exponent,
        exponent => (exponent - 1) << 23,
    };
    one_scale(valued_nibbles(&group[1..17], &MXFP4_VALUES), f32::from_bits(bits))
}
