//! Critical values of Student's t distribution.
//!
//! For a whole number of degrees of freedom the distribution function is a finite sum of powers of
//! a cosine (Abramowitz and Stegun, *Handbook of Mathematical Functions*, 26.7.3 and 26.7.4). It
//! rises steadily, so halving an interval inverts it. Cost: some hundred sums of half as many terms
//! as there are degrees of freedom.

use super::as_f64;
use std::f64::consts::PI;

/// Returns the value that |t| stays below with 95 % probability: 12.706 at one degree of freedom,
/// falling towards 1.960. `None` without degrees of freedom.
#[must_use]
pub fn critical_value_95(degrees_of_freedom: usize) -> Option<f64> {
    if degrees_of_freedom == 0 {
        return None;
    }
    // 12.71 is the largest, at one degree of freedom.
    let (mut low, mut high) = (1.0, 13.0);
    // Each step halves the interval; 60 of them leave less than the spacing of numbers.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if central_probability(middle, degrees_of_freedom) < 0.95 {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(high)
}

/// Returns the probability that |t| is at most `t`.
fn central_probability(t: f64, degrees_of_freedom: usize) -> f64 {
    let angle = (t / as_f64(degrees_of_freedom).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let is_odd = degrees_of_freedom % 2 == 1;
    // Odd: cos + 2/3 cos³ + (2·4)/(3·5) cos⁵ + …; even: 1 + 1/2 cos² + (1·3)/(2·4) cos⁴ + …
    // Both end at the power that is the degrees of freedom less two.
    let num_terms = degrees_of_freedom / 2;
    let mut term = if is_odd { cosine } else { 1.0 };
    let mut sum = 0.0;
    for i in 0..num_terms {
        sum += term;
        let next = as_f64(2 * (i + 1));
        let factor = if is_odd { next / (next + 1.0) } else { (next - 1.0) / next };
        term *= factor * cosine * cosine;
    }
    if is_odd { 2.0 / PI * (angle + sine * sum) } else { sine * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_values_are_those_of_printed_tables() {
        let table = [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (4, 2.776),
            (5, 2.571),
            (9, 2.262),
            (10, 2.228),
            (11, 2.201),
            (12, 2.179),
            (19, 2.093),
            (20, 2.086),
            (30, 2.042),
            (60, 2.000),
            (120, 1.980),
            (1000, 1.962),
        ];
        for (degrees, expected) in table {
            let got = critical_value_95(degrees).unwrap();
            assert!((got - expected).abs() < 6e-4, "{degrees}: {got}, not {expected}");
        }
        assert_eq!(critical_value_95(0), None);
    }

    #[test]
    fn critical_values_fall_towards_those_of_the_normal_distribution() {
        let values: Vec<f64> =
            (1..400).map(|degrees| critical_value_95(degrees).unwrap()).collect();
        assert!(values.windows(2).all(|pair| pair[1] < pair[0]), "they fall");
        let far = critical_value_95(200_000).unwrap();
        assert!((far - 1.959_97).abs() < 1e-4, "{far}");
    }
}
