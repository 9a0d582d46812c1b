//! A sample in a few numbers.

use super::as_f64;
use crate::results::Stats;

/// Returns the value below which `percent` of the sorted values lie, on a straight line between
/// the two samples around it, as numpy's default method does. `None` of no values.
///
/// # Panics
/// When `percent` is not within 0 to 100.
#[must_use]
pub fn percentile(sorted_values: &[f64], percent: f64) -> Option<f64> {
    assert!((0.0..=100.0).contains(&percent), "{percent} is no percentage");
    let last = sorted_values.len().checked_sub(1)?;
    let position = as_f64(last) * percent / 100.0;
    // Within 0 to `last`, because the percentage is within 0 to 100.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let below = (position.floor() as usize).min(last);
    let (low, high) = (sorted_values[below], sorted_values[(below + 1).min(last)]);
    Some(low + (high - low) * (position - as_f64(below)))
}

/// Returns a sample in a few numbers; values that are not finite are left out.
#[must_use]
pub fn stats(values: impl IntoIterator<Item = f64>) -> Stats {
    let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let num_worst = sorted.len().div_ceil(10);
    Stats {
        mean: mean(&sorted),
        p50: percentile(&sorted, 50.0),
        p90: percentile(&sorted, 90.0),
        p99: percentile(&sorted, 99.0),
        max: sorted.last().copied(),
        count: sorted.len(),
        worst10_mean: mean(&sorted[sorted.len() - num_worst..]),
    }
}

/// Returns the mean; `None` of no values.
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / as_f64(values.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn percentiles_lie_between_samples_as_numpys_do() {
        // numpy.percentile([1, 2, 4, 8], q) for each q.
        let sorted = [1.0, 2.0, 4.0, 8.0];
        for (percent, expected) in
            [(0.0, 1.0), (25.0, 1.75), (50.0, 3.0), (90.0, 6.8), (100.0, 8.0)]
        {
            let got = percentile(&sorted, percent).unwrap();
            assert!((got - expected).abs() < 1e-12, "{percent}: {got}, not {expected}");
        }
        assert_eq!(percentile(&[], 50.0), None);
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
    }

    #[test]
    fn the_worst_tenth_is_rounded_up_to_whole_samples() {
        let worst = |count: u32| stats((1..=count).map(f64::from)).worst10_mean;
        assert_eq!(worst(1), Some(1.0));
        assert_eq!(worst(10), Some(10.0));
        assert_eq!(worst(11), Some(10.5));
        assert_eq!(worst(30), Some(29.0));
        assert_eq!(worst(0), None);
    }

    #[test]
    fn a_sample_of_nothing_has_no_figures() {
        assert_eq!(stats([]), Stats::default());
        assert_eq!(stats([f64::NAN, f64::INFINITY]), Stats::default());
    }

    #[test]
    fn figures_of_random_samples_are_ordered_and_within_the_sample() {
        let mut rng = StdRng::seed_from_u64(1);
        for case in 0..500 {
            let count = rng.random_range(1..200);
            let values: Vec<f64> = (0..count).map(|_| rng.random_range(-3.0..50.0)).collect();
            let got = stats(values.iter().copied());
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let ordered = [Some(least), got.p50, got.p90, got.p99, got.max].map(Option::unwrap);
            assert!(ordered.is_sorted(), "case {case}: {ordered:?}");
            assert_eq!(got.max, Some(most), "case {case}");
            let worst = got.worst10_mean.unwrap();
            assert!(got.mean.unwrap() <= worst + 1e-9 && worst <= most + 1e-9, "case {case}");
            assert_eq!(got.count, values.len(), "case {case}");
        }
    }

    #[test]
    fn percentiles_rise_with_the_percentage_and_ignore_the_order_of_the_sample() {
        let mut rng = StdRng::seed_from_u64(2);
        for case in 0..200 {
            let count = rng.random_range(1..60);
            let mut values: Vec<f64> = (0..count).map(|_| rng.random_range(0.0..1.0)).collect();
            let unsorted = stats(values.iter().copied());
            values.sort_by(f64::total_cmp);
            assert_eq!(stats(values.iter().copied()), unsorted, "case {case}");
            let curve: Vec<f64> =
                (0..=1000).map(|i| percentile(&values, f64::from(i) / 10.0).unwrap()).collect();
            assert!(curve.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12), "case {case}");
        }
    }
}
