//! Exponential functions of one number and of sixteen lanes.

use crate::lanes::Lanes;

/// Adding this to a number below 2^22 leaves it, rounded to an integer, in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
/// Adding this to a number from -126 to 127 leaves it, rounded to an integer and plus 127, in the low
/// bits: where those are an exponent, it is that of a power of two.
pub(crate) const ROUND_TO_POWER: f32 = ROUND + 127.0;
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

/// Returns `e^x` in every lane within 2 units in the last place; 0 below -87.3, `e^88` above 88; NaN
/// stays NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` is its Taylor polynomial of degree 7, whose next
/// term is below 2^-27.
#[inline(always)]
pub(crate) fn exp_lanes<V: Lanes>(proof: V::Proof, x: V) -> V {
    let splat = |value| V::splat(proof, value);
    let in_range = x.at_most(splat(HIGHEST));
    let shifted = in_range.mul_add(splat(std::f32::consts::LOG2_E), splat(ROUND_TO_POWER));
    let n = shifted.sub(splat(ROUND_TO_POWER));
    let r = n.mul_add(splat(-LN_2_HIGH), in_range);
    let r = n.mul_add(splat(-LN_2_LOW), r);
    let mut sum = splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        sum = sum.mul_add(r, splat(*coefficient));
    }
    sum.scale_by_power(shifted).zero_where_below(x, splat(LOWEST))
}

/// `2^n` is a normal number from here on.
const LOWEST_POWER: f32 = -126.0;
/// Coefficients of `2^f` for `|f| <= 1/2`, from `f^6` down: those with the smallest largest relative
/// error (2.6e-9, by the Remez algorithm) among polynomials that are exactly 1 at 0.
const POWER_COEFFICIENTS: [f32; 7] = [
    1.559_467_8e-4,
    1.340_664_4e-3,
    9.617_693e-3,
    5.550_310_6e-2,
    2.402_265_3e-1,
    6.931_472_3e-1,
    1.0,
];

/// Returns `2^x` in every lane, for `x` of at most 0, within 1.5 units in the last place; `2^-126`
/// below -126; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp2_lanes<V: Lanes>(proof: V::Proof, x: V) -> V {
    let splat = |value| V::splat(proof, value);
    let in_range = splat(LOWEST_POWER).max(x);
    let shifted = in_range.add(splat(ROUND_TO_POWER));
    let f = in_range.sub(shifted.sub(splat(ROUND_TO_POWER)));
    let mut sum = splat(POWER_COEFFICIENTS[0]);
    for coefficient in &POWER_COEFFICIENTS[1..] {
        sum = sum.mul_add(f, splat(*coefficient));
    }
    sum.scale_by_power(shifted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::for_each_lanes;
    use crate::isa::Isa;
    use crate::lanes::LANES;

    for_each_lanes! {
        fn exp2_of(x: &mut [f32; LANES]) = exp2_of_body
    }

    #[inline(always)]
    fn exp2_of_body<V: Lanes>(proof: V::Proof, x: &mut [f32; LANES]) {
        exp2_lanes(proof, V::load(proof, x)).store(x);
    }

    #[test]
    fn exp2_is_within_a_unit_and_a_half_in_the_last_place_and_keeps_its_edges() {
        for isa in Isa::all_present() {
            let mut x = -126.0_f32;
            while x <= 0.0 {
                let mut lanes = [x; LANES];
                exp2_of(isa, &mut lanes);
                let expected = f64::from(x).exp2();
                let error = (f64::from(lanes[0]) - expected).abs() / expected;
                assert!(error < 1.5 * f64::from(f32::EPSILON), "exp2({x}) is off by {error:e}");
                assert_eq!(lanes, [lanes[0]; LANES]);
                x += 0.003_7;
            }
            let mut lanes = [0.0; LANES];
            lanes[..5].copy_from_slice(&[-126.0, -127.0, -1e30, f32::NEG_INFINITY, f32::NAN]);
            exp2_of(isa, &mut lanes);
            assert_eq!(lanes[..4], [f32::MIN_POSITIVE; 4]);
            assert!(lanes[4].is_nan());
            assert_eq!(lanes[5..], [1.0; LANES - 5]);
        }
    }

    for_each_lanes! {
        fn exp_of(x: &mut [f32; LANES]) = exp_of_body
    }

    #[inline(always)]
    fn exp_of_body<V: Lanes>(proof: V::Proof, x: &mut [f32; LANES]) {
        exp_lanes(proof, V::load(proof, x)).store(x);
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place_and_keeps_its_edges() {
        for isa in Isa::all_present() {
            let mut x = -87.2_f32;
            while x < 87.9 {
                let mut lanes = [x; LANES];
                exp_of(isa, &mut lanes);
                let expected = f64::from(x).exp();
                let error = (f64::from(lanes[0]) - expected).abs() / expected;
                assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) is off by {error:e}");
                assert_eq!(lanes, [lanes[0]; LANES]);
                x += 0.0137;
            }
            let mut lanes = [0.0; LANES];
            let edges = [f32::NEG_INFINITY, -1e30, f32::INFINITY, f32::NAN];
            lanes[..4].copy_from_slice(&edges);
            exp_of(isa, &mut lanes);
            assert_eq!(lanes[..2], [0.0; 2]);
            assert!(lanes[2].is_finite() && lanes[3].is_nan());
            assert_eq!(lanes[4..], [1.0; LANES - 4]);
        }
    }
}
