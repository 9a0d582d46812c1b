//! Whether two repeated measurements differ by more than chance.
//!
//! Welch's test: the difference of the means against its own 95 % interval, with the degrees of
//! freedom of Welch and Satterthwaite, rounded down. It asks less than that two intervals do not
//! overlap, and is right about 95 of 100 times where that is right about 99 times.

use super::as_f64;
use super::student_t::critical_value_95;
use crate::results::RepeatMetric;

/// What can be said of the difference between two means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Chance alone explains it.
    Noise,
    /// Chance alone would be that large less than once in twenty times.
    Clear,
}

/// Tells whether the means over `num_runs` runs each differ by more than chance; `None` when one of
/// them ran only once.
#[must_use]
pub fn difference(
    first: &RepeatMetric,
    second: &RepeatMetric,
    num_runs: (usize, usize),
) -> Option<Difference> {
    if num_runs.0 < 2 || num_runs.1 < 2 {
        return None;
    }
    let squared_error = |metric: &RepeatMetric, count: usize| metric.std.powi(2) / as_f64(count);
    let (first_error, second_error) =
        (squared_error(first, num_runs.0), squared_error(second, num_runs.1));
    let error = first_error + second_error;
    let by = (first.mean - second.mean).abs();
    if error == 0.0 {
        return Some(if by > 0.0 { Difference::Clear } else { Difference::Noise });
    }
    let part = |error: f64, count: usize| error.powi(2) / as_f64(count - 1);
    let degrees = error.powi(2) / (part(first_error, num_runs.0) + part(second_error, num_runs.1));
    // At least the smaller number of runs less one, at most both together.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
    let critical = critical_value_95((degrees.floor() as usize).max(1))?;
    Some(if by > critical * error.sqrt() { Difference::Clear } else { Difference::Noise })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::repeat_metric;
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use rand_distr::{Distribution, Normal};

    /// Share of cases in which two samples are told apart.
    fn told_apart(means: (f64, f64), stds: (f64, f64), num_runs: (usize, usize)) -> f64 {
        let mut rng = StdRng::seed_from_u64(12);
        let (first, second) =
            (Normal::new(means.0, stds.0).unwrap(), Normal::new(means.1, stds.1).unwrap());
        let num_cases = 10_000;
        let clear = (0..num_cases).filter(|_| {
            let mut sample = |normal: &Normal<f64>, count: usize| {
                let values: Vec<f64> = (0..count).map(|_| normal.sample(&mut rng)).collect();
                repeat_metric(&values).unwrap()
            };
            let (a, b) = (sample(&first, num_runs.0), sample(&second, num_runs.1));
            difference(&a, &b, num_runs) == Some(Difference::Clear)
        });
        as_f64(clear.count()) / f64::from(num_cases)
    }

    #[test]
    fn equal_servers_are_told_apart_in_at_most_one_of_twenty_cases() {
        for (stds, num_runs) in [((5.0, 5.0), (3, 3)), ((5.0, 5.0), (10, 10)), ((2.0, 9.0), (5, 4))]
        {
            let share = told_apart((100.0, 100.0), stds, num_runs);
            assert!(share < 0.06, "{stds:?}, {num_runs:?} runs: {share}");
        }
    }

    #[test]
    fn a_difference_well_beyond_the_spread_is_clear() {
        assert!(told_apart((100.0, 120.0), (5.0, 5.0), (5, 5)) > 0.99);
    }

    #[test]
    fn one_run_says_nothing_and_equal_runs_are_equal() {
        let metric = |values: &[f64]| repeat_metric(values).unwrap();
        let (one, same) = (metric(&[10.0]), metric(&[10.0, 10.0]));
        assert_eq!(difference(&one, &same, (1, 2)), None);
        assert_eq!(difference(&same, &same, (2, 2)), Some(Difference::Noise));
        let other = metric(&[11.0, 11.0]);
        assert_eq!(difference(&same, &other, (2, 2)), Some(Difference::Clear));
    }
}
