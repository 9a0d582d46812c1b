//! Reads quantisation groups of every integer format as codes, scales and minimums.
//!
//! A weight is `scale * (code - zero_point) + minimum`, with codes unsigned, as the dot-product
//! instructions want them. Group layouts are GGUF's; [`crate::reference::dequantize`] states them.
//! Formats with codebooks have the codes that their entries stand for, in the nearest wider form
//! that holds them exactly.

use super::Scheme;
use crate::activation_rows::GROUP;
use crate::reference::{SignedGroup, f16_to_f32, read_signed};
use crate::weight_type::WeightType;

/// Thirty-two weights: one group of a small format, or a part of a 256-weight one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IntegerGroup {
    /// Unsigned codes in the order of the input features.
    pub(crate) codes: [u8; GROUP],
    /// Scales of the two halves; equal where the format has one for both.
    pub(crate) scales: [f32; 2],
    /// Added to every weight of the two halves.
    pub(crate) minimums: [f32; 2],
}

/// Reads the 32 weights `32 * index ..` of a row stored in `bytes`.
///
/// # Panics
/// When `bytes` is too short, or the type is not one that [`super::Scheme::of`] names.
pub(crate) fn read_group(weight_type: WeightType, bytes: &[u8], index: usize) -> IntegerGroup {
    let size = weight_type.group_bytes();
    let per_group = weight_type.group_size() / GROUP;
    let group = &bytes[index / per_group * size..][..size];
    let part = index % per_group;
    match weight_type {
        WeightType::Q4_0 => plain(nibbles(&group[2..18]), half(group), 0.0),
        WeightType::Q4_1 => plain(nibbles(&group[4..20]), half(group), half(&group[2..])),
        WeightType::Q5_0 => plain(five_bits(&group[6..22], &group[2..6]), half(group), 0.0),
        WeightType::Q5_1 => {
            plain(five_bits(&group[8..24], &group[4..8]), half(group), half(&group[2..]))
        }
        WeightType::Q8_0 => plain(std::array::from_fn(|i| group[2 + i] ^ 0x80), half(group), 0.0),
        WeightType::Q4K => {
            let shift = part % 2 * 4;
            let low = &group[16 + part / 2 * 32..][..32];
            let (scale, minimum) = scale_and_minimum(group, part);
            plain(std::array::from_fn(|i| (low[i] >> shift) & 0x0f), scale, -minimum)
        }
        WeightType::Q5K => {
            let shift = part % 2 * 4;
            let low = &group[48 + part / 2 * 32..][..32];
            let fifth = &group[16..48];
            let (scale, minimum) = scale_and_minimum(group, part);
            let code = |i: usize| ((low[i] >> shift) & 0x0f) | (((fifth[i] >> part) & 1) << 4);
            plain(std::array::from_fn(code), scale, -minimum)
        }
        WeightType::Int4 => plain(nibbles(&group[8..24]), single(group), single(&group[4..])),
        WeightType::Q6K => six_bits(group, part),
        WeightType::Q2K => two_bits(group, part),
        WeightType::Q3K => three_bits(group, part),
        WeightType::Iq1S
        | WeightType::Iq1M
        | WeightType::Iq2Xxs
        | WeightType::Iq2Xs
        | WeightType::Iq2S
        | WeightType::Iq3Xxs
        | WeightType::Iq3S
        | WeightType::Iq4Nl
        | WeightType::Iq4Xs
        | WeightType::Tq1_0
        | WeightType::Tq2_0
        | WeightType::Mxfp4 => unsigned(weight_type, group, part),
        WeightType::F32 | WeightType::F16 | WeightType::Bf16 => {
            panic!("{weight_type} is packed as floats")
        }
    }
}

/// Moves the codes of a format with signed ones by its zero point.
fn unsigned(weight_type: WeightType, group: &[u8], part: usize) -> IntegerGroup {
    let SignedGroup { codes, scales, minimums } = read_signed(weight_type, group, part);
    let zero_point = Scheme::of(weight_type).map_or(0, |scheme| scheme.zero_point);
    let codes = codes.map(|code| code.cast_unsigned().wrapping_add(zero_point));
    IntegerGroup { codes, scales, minimums }
}

fn plain(codes: [u8; GROUP], scale: f32, minimum: f32) -> IntegerGroup {
    IntegerGroup { codes, scales: [scale; 2], minimums: [minimum; 2] }
}

fn half(bytes: &[u8]) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
}

fn single(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Sixteen bytes: weights 0 to 15 in the low nibbles, 16 to 31 in the high ones.
fn nibbles(bytes: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|i| (bytes[i % 16] >> (i / 16 * 4)) & 0x0f)
}

/// Nibbles with a fifth bit each from a 32-bit field.
fn five_bits(bytes: &[u8], fifth: &[u8]) -> [u8; GROUP] {
    let low = nibbles(bytes);
    std::array::from_fn(|i| low[i] | (((fifth[i / 8] >> (i % 8)) & 1) << 4))
}

/// Scale and minimum of subgroup `part` of a Q4_K or Q5_K group.
fn scale_and_minimum(group: &[u8], part: usize) -> (f32, f32) {
    let packed = &group[4..16];
    let (scale, minimum) = if part < 4 {
        (packed[part] & 0x3f, packed[part + 4] & 0x3f)
    } else {
        let low = packed[part + 4];
        let scale = (low & 0x0f) | ((packed[part - 4] >> 2) & 0x30);
        (scale, (low >> 4) | ((packed[part] >> 2) & 0x30))
    };
    (half(group) * f32::from(scale), half(&group[2..]) * f32::from(minimum))
}

/// Bit pairs of part `part` of a Q2_K or Q3_K group, whose 64 bytes of them are given.
fn bit_pairs(bytes: &[u8], part: usize) -> [u8; GROUP] {
    let bytes = &bytes[part / 4 * GROUP..][..GROUP];
    std::array::from_fn(|i| (bytes[i] >> (part % 4 * 2)) & 3)
}

/// Part `part` of a Q2_K group, which has a scale and a minimum for every 16 weights.
fn two_bits(group: &[u8], part: usize) -> IntegerGroup {
    let (scale, minimum) = (half(&group[80..]), half(&group[82..]));
    let packed = [group[part * 2], group[part * 2 + 1]];
    IntegerGroup {
        codes: bit_pairs(&group[16..80], part),
        scales: packed.map(|packed| scale * f32::from(packed & 0x0f)),
        minimums: packed.map(|packed| -(minimum * f32::from(packed >> 4))),
    }
}

/// Part `part` of a Q3_K group, which has a scale for every 16 weights. The third bit of a code
/// lies apart.
fn three_bits(group: &[u8], part: usize) -> IntegerGroup {
    let pairs = bit_pairs(&group[32..96], part);
    let third = &group[..GROUP];
    let packed = &group[96..108];
    let scale = |i: usize| {
        let low = (packed[i % 8] >> (i / 8 * 4)) & 0x0f;
        let high = (packed[8 + i % 4] >> (i / 4 * 2)) & 3;
        half(&group[108..]) * (f32::from(low | (high << 4)) - 32.0)
    };
    IntegerGroup {
        codes: std::array::from_fn(|i| pairs[i] | (((third[i] >> part) & 1) << 2)),
        scales: [scale(part * 2), scale(part * 2 + 1)],
        minimums: [0.0; 2],
    }
}

/// Part `part` of a Q6_K group, which has a scale for every 16 weights.
fn six_bits(group: &[u8], part: usize) -> IntegerGroup {
    let first = part * GROUP;
    let low = &group[first / 128 * 64 + first % 64..][..GROUP];
    let low_shift = first % 128 / 64 * 4;
    let high = &group[128 + first / 128 * 32..][..GROUP];
    let high_shift = first % 128 / 32 * 2;
    let code = |i: usize| ((low[i] >> low_shift) & 0x0f) | (((high[i] >> high_shift) & 3) << 4);
    let scale = |i: usize| half(&group[208..]) * f32::from(group[192 + i].cast_signed());
    IntegerGroup {
        codes: std::array::from_fn(code),
        scales: [scale(part * 2), scale(part * 2 + 1)],
        minimums: [0.0; 2],
    }
}
