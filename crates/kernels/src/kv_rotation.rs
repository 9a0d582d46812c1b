//! Rotating heads so that their elements fit one scale, and rounding them to bytes.
//!
//! Keys of some models (Qwen2.5) have a few channels a hundred times larger than the rest; one
//! scale for all would round the rest away. A Hadamard transform after fixed sign changes is an
//! orthogonal rotation that spreads any such channel evenly over all (Ashkboos et al., QuaRot,
//! section 4, there for four bits). Queries are rotated as keys are, which leaves their dot
//! products as they were; the weighted sum of rotated values is rotated back once.
//!
//! The transform here is not normalised: it multiplies lengths by the square root of its size, a
//! power of two, so that correcting both sides of a dot product by one factor is exact. Only
//! additions and subtractions in a fixed order: `head_dim * log2(head_dim)` of them per head.

use crate::dispatch::for_each_lanes;
use crate::float_format::{Bf16, StoredFloat};
use crate::lanes::{LANES, Lanes};
use mini_infer_core::mix64;

/// Widest head that can be rotated.
pub(crate) const MAX_HEAD_DIM: usize = 256;
/// Largest code of a query.
const MAX_QUERY_CODE: f32 = 32_767.0;
/// Largest code. The lowest byte, -128, stays unused, so that codes are symmetric.
const MAX_CODE: f32 = 127.0;
/// Smallest scale: a head whose elements are all below it is zero. Keeps reciprocals finite.
const MIN_SCALE: f32 = f32::from_bits(0x0d80_0000); // 2^-100
/// Adding it to a number of small magnitude leaves the nearest integer in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// Signs that keep smooth or periodic heads, which a Hadamard transform alone would turn into a
/// single large element, from being special.
static SIGNS: [f32; MAX_HEAD_DIM] = signs();

const fn signs() -> [f32; MAX_HEAD_DIM] {
    let mut signs = [1.0; MAX_HEAD_DIM];
    let mut d = 0;
    while d < MAX_HEAD_DIM {
        if mix64(d as u64) & 1 == 1 {
            signs[d] = -1.0;
        }
        d += 1;
    }
    signs
}

/// Returns the number of neighbouring elements that are transformed together: the largest power of
/// two that divides `head_dim`.
const fn transform_size(head_dim: usize) -> usize {
    1 << head_dim.trailing_zeros()
}

/// Returns the factor by which a dot product of two rotated heads, or a head that was rotated and
/// rotated back, has grown; a power of two.
pub(crate) fn growth(head_dim: usize) -> f32 {
    f32::from(u16::try_from(transform_size(head_dim)).expect("heads are at most 256 wide"))
}

for_each_lanes! {
    /// Rotates a head back.
    pub(crate) fn rotate_head_back(head: &mut [f32]) = rotate_back_body
}
for_each_lanes! {
    /// Rotates a head and rounds it to codes; returns their scale. A head with elements that are
    /// not finite gets the scale NaN, so that it is as broken as it was.
    pub(crate) fn rotate_to_codes(head: &mut [f32], codes: &mut [i8]) -> Bf16 = rotate_to_codes_body
}
for_each_lanes! {
    /// Rotates a query and rounds it to codes of 16 bits; returns their scale. A query with elements
    /// that are not finite gets the scale NaN.
    pub(crate) fn rotate_query(head: &mut [f32], codes: &mut [i16]) -> f32 = rotate_query_body
}

/// Rotates a head, a multiple of sixteen elements wide.
#[inline(always)]
fn rotate_body<V: Lanes>(proof: V::Proof, head: &mut [f32]) {
    for (x, signs) in head.as_chunks_mut().0.iter_mut().zip(SIGNS.as_chunks().0) {
        V::load(proof, x).mul(V::load(proof, signs)).store(x);
    }
    transform::<V>(proof, head);
}

#[inline(always)]
fn rotate_back_body<V: Lanes>(proof: V::Proof, head: &mut [f32]) {
    transform::<V>(proof, head);
    for (x, signs) in head.as_chunks_mut().0.iter_mut().zip(SIGNS.as_chunks().0) {
        V::load(proof, x).mul(V::load(proof, signs)).store(x);
    }
}

/// Replaces each run of [`transform_size`] elements by its Hadamard transform.
#[inline(always)]
fn transform<V: Lanes>(proof: V::Proof, head: &mut [f32]) {
    let size = transform_size(head.len());
    let (chunks, rest) = head.as_chunks_mut::<LANES>();
    debug_assert!(rest.is_empty());
    for chunk in &mut *chunks {
        let x = butterflies::<V, 1>(proof, V::load(proof, chunk));
        let x = butterflies::<V, 2>(proof, x);
        let x = butterflies::<V, 4>(proof, x);
        butterflies::<V, 8>(proof, x).store(chunk);
    }
    let mut half = 1;
    while half * LANES < size {
        for pair in chunks.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                let (x, y) = (V::load(proof, a), V::load(proof, b));
                x.add(y).store(a);
                x.sub(y).store(b);
            }
        }
        half *= 2;
    }
}

/// Replaces each two elements that are `HALF` apart by their sum and their difference.
#[inline(always)]
fn butterflies<V: Lanes, const HALF: usize>(proof: V::Proof, x: V) -> V {
    let signs: [f32; LANES] = std::array::from_fn(|i| if i & HALF == 0 { 1.0 } else { -1.0 });
    // A product with 1 or -1 is exact, so this is one addition.
    x.mul_add(V::load(proof, &signs), x.swapped::<HALF>())
}

#[inline(always)]
fn rotate_to_codes_body<V: Lanes>(proof: V::Proof, head: &mut [f32], codes: &mut [i8]) -> Bf16 {
    rotate_body::<V>(proof, head);
    let largest = largest_magnitude(head);
    if !largest.is_finite() {
        codes.fill(0);
        return Bf16::narrow(f32::NAN);
    }
    let exact = (largest / MAX_CODE).max(MIN_SCALE);
    // Rounded up, so that the largest element does not exceed the largest code.
    let scale = Bf16::narrow_up(exact);
    let reciprocal = 1.0 / scale.widen();
    for (code, x) in codes.iter_mut().zip(head) {
        #[expect(clippy::cast_possible_truncation, reason = "the low byte is the integer")]
        let byte = x.mul_add(reciprocal, ROUND).to_bits() as i8;
        *code = byte;
    }
    scale
}

#[inline(always)]
fn rotate_query_body<V: Lanes>(proof: V::Proof, head: &mut [f32], codes: &mut [i16]) -> f32 {
    rotate_body::<V>(proof, head);
    let largest = largest_magnitude(head);
    if !largest.is_finite() {
        codes.fill(0);
        return f32::NAN;
    }
    let largest = largest.max(MIN_SCALE);
    let factor = MAX_QUERY_CODE / largest;
    for (code, x) in codes.iter_mut().zip(head) {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is the integer")]
        let low_half = x.mul_add(factor, ROUND).to_bits() as i16;
        *code = low_half;
    }
    largest / MAX_QUERY_CODE
}

/// Returns the largest magnitude of the elements; infinity or NaN where one is not finite.
#[inline(always)]
fn largest_magnitude(head: &[f32]) -> f32 {
    // As integers, magnitudes have the same order, and infinity and NaN are the largest.
    f32::from_bits(head.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::isa::Isa;

    for_each_lanes! {
        fn rotate_head(head: &mut [f32]) = rotate_body
    }

    /// Rotates back in f64, by the definition: element `(i, j)` of the matrix is -1 to the number
    /// of bits that `i` and `j` share.
    pub(crate) fn rotated_back(head: &[f64]) -> Vec<f64> {
        let size = transform_size(head.len());
        let mut out = Vec::new();
        for run in head.chunks_exact(size) {
            for i in 0..size {
                let sum: f64 = run.iter().enumerate().map(|(j, x)| parity(i & j) * x).sum();
                out.push(f64::from(SIGNS[out.len()]) * sum / size as f64);
            }
        }
        out
    }

    fn parity(bits: usize) -> f64 {
        if bits.count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
    }

    /// Numbers with a few outliers.
    fn head(head_dim: usize, seed: u64) -> Vec<f32> {
        let number = |d: usize| {
            let bits = mix64(seed * 1000 + d as u64) >> 40;
            (bits as f32 / 16_777_216.0 - 0.5) * if d % 23 == 5 { 150.0 } else { 1.0 }
        };
        (0..head_dim).map(number).collect()
    }

    const HEAD_DIMS: [usize; 7] = [16, 32, 48, 64, 96, 128, 256];

    #[test]
    fn rotating_and_rotating_back_is_the_head_grown() {
        for head_dim in HEAD_DIMS {
            let head = head(head_dim, 1);
            for isa in Isa::all_present() {
                let mut rotated = head.clone();
                rotate_head(isa, &mut rotated);
                let wide: Vec<_> = rotated.iter().map(|x| f64::from(*x)).collect();
                rotate_head_back(isa, &mut rotated);
                let back = rotated_back(&wide);
                for ((x, got), by_definition) in head.iter().zip(&rotated).zip(back) {
                    assert!((got / growth(head_dim) - x).abs() < 1e-3, "{got} {x}");
                    assert!((by_definition - f64::from(*x)).abs() < 1e-4, "{by_definition} {x}");
                }
            }
        }
    }

    #[test]
    fn codes_are_the_rotated_head_to_half_a_scale_and_equal_on_every_isa() {
        for head_dim in HEAD_DIMS {
            for seed in 0..40 {
                let head = head(head_dim, seed);
                let mut first = None;
                for isa in Isa::all_present() {
                    let mut rotated = head.clone();
                    let mut codes = vec![0; head_dim];
                    let scale = rotate_to_codes(isa, &mut rotated, &mut codes);
                    let expected = first.get_or_insert_with(|| (codes.clone(), scale));
                    assert_eq!(*expected, (codes.clone(), scale), "{}", isa.name());
                    let scale = scale.widen();
                    for (x, code) in rotated.iter().zip(codes) {
                        assert!(code > i8::MIN);
                        let error = (x - f32::from(code) * scale).abs();
                        assert!(error <= scale * 0.5001, "{x} as {code} of {scale}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_rotated_query_is_rounded_to_half_a_scale_and_equal_on_every_isa() {
        for head_dim in HEAD_DIMS {
            for seed in 0..40 {
                let mut first = None;
                for isa in Isa::all_present() {
                    let mut rotated = head(head_dim, seed);
                    let mut codes = vec![0; head_dim];
                    let scale = rotate_query(isa, &mut rotated, &mut codes);
                    let expected = first.get_or_insert_with(|| (codes.clone(), scale));
                    assert_eq!(*expected, (codes.clone(), scale), "{}", isa.name());
                    assert_eq!(codes.iter().map(|code| code.unsigned_abs()).max(), Some(32_767));
                    for (x, code) in rotated.iter().zip(codes) {
                        let error = (x - f32::from(code) * scale).abs();
                        assert!(error <= scale * 0.51, "{x} as {code} of {scale}");
                    }
                }
            }
        }
        for (numbers, scale) in [([0.0; 32], 0.0), ([f32::NAN; 32], f32::NAN)] {
            let mut codes = [1; 32];
            let got = rotate_query(Isa::Scalar, &mut numbers.clone(), &mut codes);
            assert!(
                codes == [0; 32]
                    && (got.is_nan() || got < 1e-30)
                    && got.is_nan() == f32::is_nan(scale)
            );
        }
    }

    #[test]
    fn heads_at_the_edges_of_arithmetic_have_codes_too() {
        for isa in Isa::all_present() {
            for (value, expected) in [
                (0.0, 0.0_f32),
                (1e-38, 0.0),
                (1e-20, 1e-20),
                (1.0, 1.0),
                (1e30, 1e30),
                (-3.0, -3.0),
            ] {
                let mut codes = [0; 64];
                let scale = rotate_to_codes(isa, &mut [value; 64], &mut codes);
                let rotated: Vec<_> =
                    codes.iter().map(|code| f64::from(*code) * f64::from(scale.widen())).collect();
                for got in rotated_back(&rotated) {
                    let error = (got - f64::from(expected)).abs();
                    assert!(error <= f64::from(expected.abs()) * 0.02, "{got} {expected}");
                }
            }
            for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut head = [1.0; 48];
                head[3..5].fill(broken);
                let scale = rotate_to_codes(isa, &mut head, &mut [0; 48]);
                assert!(scale.widen().is_nan());
            }
        }
    }
}
