//! The exponential function, for one number and for sixteen lanes, with the same bits.

use crate::lanes::Lanes;

/// Adding this to a number below 2^22 leaves it, rounded to an integer, in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
/// The upper part of ln 2, with so few bits that products with small integers are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
/// ln 2 less [`LN_2_HIGH`].
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// `e^x` leaves the normal numbers at -87.34.
const LOWEST: f32 = -87.3;
/// `2^n` overflows at 88.37.
const HIGHEST: f32 = 88.0;
/// Taylor coefficients of `e^r`, from `r^7` down.
const COEFFICIENTS: [f32; 8] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// Returns `e^x` within 2 units in the last place; 0 below -87.3, `e^88` above 88; NaN stays NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` is its Taylor polynomial of degree 7, whose next
/// term is below 2^-27.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons, not `min`, so that NaN passes through.
    let x_in_range = if HIGHEST < x { HIGHEST } else { x };
    let shifted = x_in_range.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x_in_range));
    let mut sum = COEFFICIENTS[0];
    for coefficient in &COEFFICIENTS[1..] {
        sum = sum.mul_add(r, *coefficient);
    }
    let power_of_two = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < LOWEST { 0.0 } else { sum * power_of_two }
}

/// Returns `e^x` in every lane; see [`exp`], which it equals bit for bit.
#[inline(always)]
pub(crate) fn exp_lanes<V: Lanes>(proof: V::Proof, x: V) -> V {
    let splat = |value| V::splat(proof, value);
    let in_range = x.at_most(splat(HIGHEST));
    let shifted = in_range.mul_add(splat(std::f32::consts::LOG2_E), splat(ROUND));
    let n = shifted.sub(splat(ROUND));
    let r = n.mul_add(splat(-LN_2_HIGH), in_range);
    let r = n.mul_add(splat(-LN_2_LOW), r);
    let mut sum = splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        sum = sum.mul_add(r, splat(*coefficient));
    }
    sum.scale_by_power(shifted).zero_where_below(x, splat(LOWEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place_and_keeps_its_edges() {
        let mut x = -87.2_f32;
        while x < 87.9 {
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) is off by {error:e}");
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert!(exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }
}
