//! The hyperbolic tangent of sixteen lanes, and soft caps made of it.
//!
//! A soft cap squeezes numbers into an open range without a corner: `cap * tanh(x / cap)` (Gemma 2
//! technical report, section 2). The tangent is a quotient of two polynomials, the same operations
//! on every instruction set.

use crate::dispatch::for_each_lanes;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;

/// The tangent of larger numbers is 1 in f32.
const LIMIT: f32 = 7.905_311;
/// Coefficients of the odd numerator, from `x^13` down to `x`. Those of this rational approximation
/// are Eigen's (`generic_fast_tanh_float` of version 3.4).
const NUMERATOR: [f32; 7] = [
    -2.760_768_5e-16,
    2.000_188e-13,
    -8.604_672e-11,
    5.122_297e-8,
    1.485_722_4e-5,
    6.372_619_3e-4,
    4.893_524_6e-3,
];
/// Coefficients of the even denominator, from `x^6` down to 1.
const DENOMINATOR: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];

/// Values that are capped as one piece.
const PIECE: usize = 4096;

/// Returns `cap * tanh(x / cap)` in every lane, within 5 units in the last place; NaN stays NaN.
#[inline(always)]
pub(crate) fn soft_cap_lanes<V: Lanes>(proof: V::Proof, cap: f32, x: V) -> V {
    let splat = |value| V::splat(proof, value);
    let x = x.mul(splat(1.0 / cap)).at_most(splat(LIMIT));
    let x = splat(-LIMIT).max(x);
    let square = x.mul(x);
    let (mut numerator, mut denominator) = (splat(NUMERATOR[0]), splat(DENOMINATOR[0]));
    for coefficient in &NUMERATOR[1..] {
        numerator = numerator.mul_add(square, splat(*coefficient));
    }
    for coefficient in &DENOMINATOR[1..] {
        denominator = denominator.mul_add(square, splat(*coefficient));
    }
    let (mut quotients, mut divisors) = ([0.0; LANES], [0.0; LANES]);
    numerator.mul(x.mul(splat(cap))).store(&mut quotients);
    denominator.store(&mut divisors);
    for i in 0..LANES {
        quotients[i] /= divisors[i];
    }
    V::load(proof, &quotients)
}

/// Replaces each value by `cap * tanh(value / cap)`.
///
/// # Panics
/// When `cap` is not a positive number.
pub fn soft_cap(isa: Isa, pool: &ThreadPool, cap: f32, values: &mut [f32]) {
    assert!(cap > 0.0, "a soft cap of {cap}");
    let num_pieces = values.len() / PIECE;
    let (pieces, rest) = values.split_at_mut(num_pieces * PIECE);
    cap_piece(isa, cap, rest);
    if num_pieces == 0 {
        return;
    }
    let pieces = RowView::new(pieces, PIECE);
    pool.split(num_pieces, |range| {
        for piece in range {
            // SAFETY: `split` gives each piece to one call only.
            let piece = unsafe { pieces.piece(piece, 0, PIECE) };
            cap_piece(isa, cap, piece);
        }
    });
}

for_each_lanes! {
    fn cap_piece(cap: f32, values: &mut [f32]) = cap_piece_body
}

#[inline(always)]
fn cap_piece_body<V: Lanes>(proof: V::Proof, cap: f32, values: &mut [f32]) {
    let (chunks, rest) = values.as_chunks_mut::<LANES>();
    for chunk in chunks {
        soft_cap_lanes(proof, cap, V::load(proof, chunk)).store(chunk);
    }
    let mut padded = [0.0; LANES];
    padded[..rest.len()].copy_from_slice(rest);
    soft_cap_lanes(proof, cap, V::load(proof, &padded)).store(&mut padded);
    rest.copy_from_slice(&padded[..rest.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn capped(isa: Isa, cap: f32, values: &[f32]) -> Vec<f32> {
        let pool = ThreadPool::new(NonZeroUsize::new(2).unwrap());
        let mut values = values.to_vec();
        soft_cap(isa, &pool, cap, &mut values);
        values
    }

    #[test]
    fn caps_are_within_five_units_in_the_last_place_and_the_same_on_every_isa() {
        for cap in [1.0_f32, 30.0, 50.0] {
            // All exponents that matter, both signs, and lengths of several pieces and a rest.
            let values: Vec<f32> = (0..20_011_i16)
                .map(|i| {
                    let size = f32::from(i - 10_000).abs() * 0.003 - 24.0;
                    if i % 2 == 0 { size.exp2() } else { -size.exp2() }
                })
                .collect();
            let mut first = None;
            for isa in Isa::all_present() {
                let got = capped(isa, cap, &values);
                for (x, got) in values.iter().zip(&got) {
                    let expected = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
                    let error = (f64::from(*got) - expected).abs() / expected.abs();
                    let bound = 5.0 * f64::from(f32::EPSILON);
                    assert!(error < bound, "{cap} tanh({x} / {cap}) is off by {error:e}");
                }
                assert_eq!(first.get_or_insert_with(|| got.clone()), &got);
            }
        }
    }

    #[test]
    fn no_number_breaks_a_cap_and_nan_stays() {
        for isa in Isa::all_present() {
            for len in [0, 1, 15, 16, 17, 4096, 4097] {
                let got = capped(isa, 2.0, &vec![f32::INFINITY; len]);
                assert!(got.len() == len && got.iter().all(|x| (x - 2.0).abs() < 1e-6), "{len}");
            }
            let got = capped(isa, 2.0, &[f32::NEG_INFINITY, f32::MAX, 0.0, f32::NAN]);
            assert!((got[0] + 2.0).abs() < 1e-6 && (got[1] - 2.0).abs() < 1e-6);
            assert!(got[2] == 0.0 && got[3].is_nan());
        }
    }
}
