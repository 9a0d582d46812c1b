//! Stored weights to f32, group by group.
//!
//! Layouts and the order of the floating-point operations are those of ggml's `dequantize_row_*`
//! (ggml-quants.c) and of the `gguf` Python package, so results are equal bit for bit. Every
//! format is `scale * q`, `scale * q + minimum` or `scale * q - minimum` with small integers `q`.
//! Those whose `q` come from codebooks are read by [`super::codebook_groups`].

use super::codebook_groups::{SignedGroup, read_signed};
use super::{bf16_to_f32, f16_to_f32};
use crate::WeightType;

/// Writes the weights stored in `bytes` to `out`.
///
/// # Panics
/// When `bytes` is not exactly what `out.len()` weights of this type take.
pub fn dequantize(weight_type: WeightType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        weight_type.bytes_for(out.len()),
        Some(bytes.len()),
        "{} weights of type {weight_type} from {} bytes",
        out.len(),
        bytes.len()
    );
    match weight_type {
        WeightType::F32 => each_group(bytes, out, |b, [weight]| *weight = f32::from_le_bytes(*b)),
        WeightType::F16 => each_group(bytes, out, |b: &[u8; 2], [weight]| *weight = half(b)),
        WeightType::Bf16 => each_group(bytes, out, |b, [weight]| {
            *weight = bf16_to_f32(u16::from_le_bytes(*b));
        }),
        WeightType::Q4_0 => each_group(bytes, out, q4_0),
        WeightType::Q4_1 => each_group(bytes, out, q4_1),
        WeightType::Q5_0 => each_group(bytes, out, q5_0),
        WeightType::Q5_1 => each_group(bytes, out, q5_1),
        WeightType::Q8_0 => each_group(bytes, out, q8_0),
        WeightType::Int4 => each_group(bytes, out, int4),
        WeightType::Q2K => each_group(bytes, out, q2_k),
        WeightType::Q3K => each_group(bytes, out, q3_k),
        WeightType::Q4K => each_group(bytes, out, q4_k),
        WeightType::Q5K => each_group(bytes, out, q5_k),
        WeightType::Q6K => each_group(bytes, out, q6_k),
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
        | WeightType::Mxfp4 => signed_groups(weight_type, bytes, out),
    }
}

/// Calls `decode` for every group of `BYTES` bytes and `WEIGHTS` weights.
fn each_group<const BYTES: usize, const WEIGHTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; WEIGHTS]),
) {
    let (groups, rest) = bytes.as_chunks::<BYTES>();
    let (outs, out_rest) = out.as_chunks_mut::<WEIGHTS>();
    assert!(rest.is_empty() && out_rest.is_empty() && groups.len() == outs.len());
    for (group, out) in groups.iter().zip(outs) {
        decode(group, out);
    }
}

/// Decodes groups that [`read_signed`] reads.
fn signed_groups(weight_type: WeightType, bytes: &[u8], out: &mut [f32]) {
    let groups = bytes.chunks_exact(weight_type.group_bytes());
    for (group, out) in groups.zip(out.chunks_exact_mut(weight_type.group_size())) {
        for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let SignedGroup { codes, scales, minimums } = read_signed(weight_type, group, part);
            for (i, (weight, code)) in out.iter_mut().zip(codes).enumerate() {
                *weight = scales[i / 16] * f32::from(code) + minimums[i / 16];
            }
        }
    }
}

/// Reads an f16 from the first two bytes.
fn half(bytes: &[u8]) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// Returns bit `i` of a little-endian bit field.
fn bit(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 8] >> (i % 8)) & 1
}

/// Returns the 4-bit numbers `i` of a group of 32 whose first half lies in the low nibbles and
/// second half in the high nibbles.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    if i < 16 { bytes[i] & 0x0f } else { bytes[i - 16] >> 4 }
}

/// `[scale: f16, q: 16 bytes]`
fn q4_0(group: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half(group);
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = scale * (f32::from(nibble(&group[2..], i)) - 8.0);
    }
}

/// `[scale: f16, minimum: f16, q: 16 bytes]`
fn q4_1(group: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, minimum) = (half(group), half(&group[2..]));
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = scale * f32::from(nibble(&group[4..], i)) + minimum;
    }
}

/// `[scale: f16, fifth bits: 4 bytes, q: 16 bytes]`
fn q5_0(group: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half(group);
    for (i, weight) in out.iter_mut().enumerate() {
        let q = nibble(&group[6..], i) | (bit(&group[2..6], i) << 4);
        *weight = scale * (f32::from(q) - 16.0);
    }
}

/// `[scale: f16, minimum: f16, fifth bits: 4 bytes, q: 16 bytes]`
fn q5_1(group: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, minimum) = (half(group), half(&group[2..]));
    for (i, weight) in out.iter_mut().enumerate() {
        let q = nibble(&group[8..], i) | (bit(&group[4..8], i) << 4);
        *weight = scale * f32::from(q) + minimum;
    }
}

/// `[scale: f32, minimum: f32, q: 16 bytes]`
fn int4(group: &[u8; 24], out: &mut [f32; 32]) {
    let single =
        |at: usize| f32::from_le_bytes([group[at], group[at + 1], group[at + 2], group[at + 3]]);
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = single(0) * f32::from(nibble(&group[8..], i)) + single(4);
    }
}

/// `[scale: f16, q: 32 signed bytes]`
fn q8_0(group: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half(group);
    for (weight, q) in out.iter_mut().zip(&group[2..]) {
        *weight = scale * f32::from(q.cast_signed());
    }
}

/// `[scale and minimum nibbles of 16 subgroups: 16 bytes, q: 64 bytes, scale: f16, minimum: f16]`
///
/// Each half of 128 weights has 32 bytes; weight `32 * plane + byte` is bit pair `plane` of `byte`.
fn q2_k(group: &[u8; 84], out: &mut [f32; 256]) {
    let (scale, minimum) = (half(&group[80..]), half(&group[82..]));
    for (i, weight) in out.iter_mut().enumerate() {
        let packed = group[i / 16];
        let q = (group[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
        let subgroup_scale = scale * f32::from(packed & 0x0f);
        let subgroup_minimum = minimum * f32::from(packed >> 4);
        *weight = subgroup_scale * f32::from(q) - subgroup_minimum;
    }
}

/// `[third bits: 32 bytes, q: 64 bytes, 16 6-bit scales: 12 bytes, scale: f16]`
///
/// Low bits as in [`q2_k`]; the third bit of weight `32 * plane + byte` (8 planes) is bit `plane`
/// of `byte`, and subtracts 4 where it is *clear*. Scale `i` has its low nibble in byte `i % 8`
/// and its upper two bits in byte `8 + i % 4`.
fn q3_k(group: &[u8; 110], out: &mut [f32; 256]) {
    let scale = half(&group[108..]);
    let packed = &group[96..108];
    for (i, weight) in out.iter_mut().enumerate() {
        let subgroup = i / 16;
        let low = (packed[subgroup % 8] >> (subgroup / 8 * 4)) & 0x0f;
        let high = (packed[8 + subgroup % 4] >> (subgroup / 4 * 2)) & 3;
        let subgroup_scale = scale * (f32::from(low | (high << 4)) - 32.0);
        let q = (group[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
        let third = (group[i % 32] >> (i / 32)) & 1;
        *weight = subgroup_scale * (f32::from(q) - f32::from((third ^ 1) << 2));
    }
}

/// Returns the 6-bit scale and minimum of subgroup `i` of 8, as Q4_K and Q5_K pack them.
fn scale_and_minimum(packed: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (packed[i] & 0x3f, packed[i + 4] & 0x3f)
    } else {
        let low = packed[i + 4];
        let scale = (low & 0x0f) | ((packed[i - 4] >> 2) & 0x30);
        (scale, (low >> 4) | ((packed[i] >> 2) & 0x30))
    }
}

/// `[scale: f16, minimum: f16, 8 6-bit scales and minimums: 12 bytes, q: 128 bytes]`
///
/// Each 64 weights have 32 bytes: the low nibbles, then the high nibbles.
fn q4_k(group: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, minimum) = (half(group), half(&group[2..]));
    for (subgroup, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (s, m) = scale_and_minimum(&group[4..16], subgroup);
        let (scale, minimum) = (scale * f32::from(s), minimum * f32::from(m));
        let low = &group[16 + subgroup / 2 * 32..];
        for (weight, byte) in out.iter_mut().zip(low) {
            let q = (byte >> (subgroup % 2 * 4)) & 0x0f;
            *weight = scale * f32::from(q) - minimum;
        }
    }
}

/// `[scale: f16, minimum: f16, 8 6-bit scales and minimums: 12 bytes, fifth bits: 32 bytes,
/// q: 128 bytes]`
///
/// As [`q4_k`]; the fifth bit of weight `32 * subgroup + byte` is bit `subgroup` of `byte`.
fn q5_k(group: &[u8; 176], out: &mut [f32; 256]) {
    let (scale, minimum) = (half(group), half(&group[2..]));
    for (subgroup, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (s, m) = scale_and_minimum(&group[4..16], subgroup);
        let (scale, minimum) = (scale * f32::from(s), minimum * f32::from(m));
        let low = &group[48 + subgroup / 2 * 32..];
        for ((weight, byte), fifth) in out.iter_mut().zip(low).zip(&group[16..48]) {
            let q = ((byte >> (subgroup % 2 * 4)) & 0x0f) | (((fifth >> subgroup) & 1) << 4);
            *weight = scale * f32::from(q) - minimum;
        }
    }
}

/// `[low nibbles: 128 bytes, upper bit pairs: 64 bytes, 16 signed scales: 16 bytes, scale: f16]`
///
/// Each half of 128 weights has 64 bytes of nibbles (64 weights in the low ones, then 64 in the
/// high ones) and 32 bytes of bit pairs (4 planes of 32 weights).
fn q6_k(group: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half(&group[208..]);
    for (i, weight) in out.iter_mut().enumerate() {
        let low = (group[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4)) & 0x0f;
        let high = (group[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
        let subgroup_scale = scale * f32::from(group[192 + i / 16].cast_signed());
        *weight = subgroup_scale * (f32::from(low | (high << 4)) - 32.0);
    }
}
