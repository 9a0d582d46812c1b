//! The search for the highest load that meets the SLO: pure, it only says what to measure next.
//!
//! Doubles the load from the start until one fails, or until the highest allowed passes; then halves
//! the gap between the highest load that passed and the lowest that failed, until it is within the
//! tolerance. Each load is measured once and none above the highest allowed, so a search takes about
//! `2 · log2(capacity / start)` levels. It takes for granted that a higher load never does better;
//! near its limit, a noisy server may pass above a load at which it failed.

use crate::results::{CapacityReason, LevelResult};

/// Whether no request failed and the share `target` of them met the SLO. A level without requests
/// shows nothing, so it does not pass.
#[must_use]
pub fn passes(level: &LevelResult, target: f64) -> bool {
    let summary = &level.summary;
    summary.failed == 0 && summary.slo_attainment.is_some_and(|attained| attained >= target)
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchOutcome {
    /// Highest load that passed.
    pub capacity: Option<f64>,
    /// Lowest load that failed.
    pub first_fail: Option<f64>,
    /// Why it ended.
    pub reason: CapacityReason,
}

/// Which loads there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadScale {
    /// Whole numbers of requests in flight.
    Whole,
    /// Any number of requests per second.
    Continuous,
}

/// The search: ask [`next`](Self::next) for a load, measure it, [`record`](Self::record) it.
#[derive(Clone, Debug)]
pub struct CapacitySearch {
    start: f64,
    max: f64,
    scale: LoadScale,
    /// Largest gap to end with, as a share of the passing load.
    tolerance: f64,
    passed: Option<f64>,
    failed: Option<f64>,
}

impl CapacitySearch {
    /// Starts a search: doubling from `start` up to `max`, then halving until the gap is within
    /// `tolerance` of the passing load. Of whole numbers, the smallest load is 1 and the smallest
    /// gap is 1; fractions are cut off.
    ///
    /// # Panics
    /// When a load is not above zero, or the tolerance is negative.
    #[must_use]
    pub fn new(start: f64, max: f64, scale: LoadScale, tolerance: f64) -> Self {
        assert!(start > 0.0 && max > 0.0, "loads from {start} to {max} must be above zero");
        assert!(tolerance >= 0.0, "the tolerance {tolerance} must not be negative");
        let (start, max) = match scale {
            LoadScale::Whole => (start.floor().max(1.0), max.floor().max(1.0)),
            LoadScale::Continuous => (start, max),
        };
        Self { start: start.min(max), max, scale, tolerance, passed: None, failed: None }
    }

    /// Returns the load to measure next; `None` when the search has ended.
    #[must_use]
    pub fn next(&self) -> Option<f64> {
        match (self.passed, self.failed) {
            (None, None) => Some(self.start),
            (None, Some(_)) => None,
            (Some(passed), None) => (passed < self.max).then(|| (2.0 * passed).min(self.max)),
            (Some(passed), Some(failed)) => self.between(passed, failed),
        }
    }

    /// Returns the load halfway, unless the gap is small enough.
    fn between(&self, passed: f64, failed: f64) -> Option<f64> {
        let (middle, smallest_gap) = match self.scale {
            LoadScale::Whole => (f64::midpoint(passed, failed).floor(), 1.0),
            LoadScale::Continuous => (f64::midpoint(passed, failed), 0.0),
        };
        // Between neighbouring numbers there is no middle.
        let is_between = passed < middle && middle < failed;
        (is_between && failed - passed > (self.tolerance * passed).max(smallest_gap))
            .then_some(middle)
    }

    /// Notes whether the load that was measured passed.
    ///
    /// # Panics
    /// When that is not the load that [`next`](Self::next) asked for.
    pub fn record(&mut self, load: f64, passed: bool) {
        assert_eq!(Some(load), self.next(), "the search did not ask for this load");
        if passed {
            self.passed = Some(load);
        } else {
            self.failed = Some(load);
        }
    }

    /// Returns what was found so far. The reason holds once [`next`](Self::next) has nothing more to
    /// ask; a search that is stopped before knows only the two loads.
    #[must_use]
    pub fn outcome(&self) -> SearchOutcome {
        let reason = match (self.passed, self.failed) {
            (Some(_), Some(_)) => CapacityReason::Converged,
            (Some(_), None) => CapacityReason::MaxReached,
            (None, _) => CapacityReason::StartFailed,
        };
        SearchOutcome { capacity: self.passed, first_fail: self.failed, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Mode, Slo};
    use crate::statistics::sample_requests::{even_request, failed_request, level_of};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// Searches on a server that passes up to `limit`; returns the loads measured, too.
    fn search(mut search: CapacitySearch, limit: f64) -> (SearchOutcome, Vec<f64>) {
        let mut measured = Vec::new();
        while let Some(load) = search.next() {
            measured.push(load);
            assert!(measured.len() < 200, "the search does not end: {measured:?}");
            search.record(load, load <= limit);
        }
        (search.outcome(), measured)
    }

    #[test]
    fn without_tolerance_the_limit_in_whole_numbers_is_exact() {
        let mut rng = StdRng::seed_from_u64(10);
        for case in 0..2000 {
            let (start, max) = (rng.random_range(1..40), rng.random_range(1..600));
            let limit = f64::from(rng.random_range(0..700));
            let from = CapacitySearch::new(f64::from(start), f64::from(max), LoadScale::Whole, 0.0);
            let (got, measured) = search(from, limit);
            let (start, max) = (f64::from(start.min(max)), f64::from(max));
            let expected = if limit < start {
                (None, Some(start), CapacityReason::StartFailed)
            } else if limit >= max {
                (Some(max), None, CapacityReason::MaxReached)
            } else {
                (Some(limit), Some(limit + 1.0), CapacityReason::Converged)
            };
            let found = (got.capacity, got.first_fail, got.reason);
            assert_eq!(found, expected, "case {case}: {start} to {max}, limit {limit}");
            check_measured(&measured, max, case);
        }
    }

    #[test]
    fn with_a_tolerance_the_gap_around_the_limit_is_within_it() {
        let mut rng = StdRng::seed_from_u64(11);
        for case in 0..2000 {
            let tolerance = rng.random_range(0.0..0.5);
            let limit = rng.random_range(0.5..200.0);
            let from = CapacitySearch::new(0.5, 256.0, LoadScale::Continuous, tolerance);
            let (got, measured) = search(from, limit);
            let (passed, failed) = (got.capacity.unwrap(), got.first_fail.unwrap());
            assert!(passed <= limit && limit < failed, "case {case}: {got:?} around {limit}");
            assert!(failed - passed <= tolerance * passed + 1e-12, "case {case}: {got:?}");
            check_measured(&measured, 256.0, case);
        }
    }

    fn check_measured(measured: &[f64], max: f64, case: usize) {
        assert!(measured.iter().all(|load| *load <= max), "case {case}: {measured:?}");
        let mut sorted = measured.to_vec();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]), "case {case}: {measured:?}");
    }

    #[test]
    fn loads_double_and_then_halve() {
        let from = CapacitySearch::new(1.0, 256.0, LoadScale::Whole, 0.1);
        let (got, measured) = search(from, 11.0);
        assert_eq!(measured, [1.0, 2.0, 4.0, 8.0, 16.0, 12.0, 10.0, 11.0]);
        assert_eq!((got.capacity, got.first_fail), (Some(11.0), Some(12.0)));
    }

    #[test]
    fn a_continuous_search_without_tolerance_ends_at_neighbouring_numbers() {
        let from = CapacitySearch::new(1.0, 8.0, LoadScale::Continuous, 0.0);
        let (got, _) = search(from, 3.3);
        assert_eq!(got.capacity, Some(3.3));
        assert_eq!(got.first_fail, Some(3.3_f64.next_up()));
    }

    #[test]
    fn fractions_are_no_number_of_streams() {
        let from = CapacitySearch::new(0.5, 7.9, LoadScale::Whole, 0.0);
        let (got, measured) = search(from, 100.0);
        assert_eq!(measured, [1.0, 2.0, 4.0, 7.0]);
        assert_eq!(got.reason, CapacityReason::MaxReached);
    }

    #[test]
    #[should_panic(expected = "did not ask")]
    fn a_load_that_was_not_asked_for_is_refused() {
        CapacitySearch::new(1.0, 8.0, LoadScale::Whole, 0.0).record(3.0, true);
    }

    #[test]
    fn a_level_passes_when_enough_meet_the_slo_and_none_failed() {
        let slo = Slo { ttft_ms: Some(500.0), tpot_ms: None };
        let level = |num_late: usize, num_failed: usize| {
            let in_time = |i| even_request(i, 0.0, if i < num_late { 0.9 } else { 0.1 }, 0.01, 5);
            let mut requests: Vec<_> = (0..10).map(in_time).collect();
            requests.extend((0..num_failed).map(|i| failed_request(10 + i, 0.0, "timeout")));
            level_of(Mode::Concurrency, 4.0, requests, 5.0, slo)
        };
        assert!(passes(&level(1, 0), 0.9));
        assert!(!passes(&level(2, 0), 0.9));
        assert!(!passes(&level(0, 1), 0.5), "a failed request fails the level");
        assert!(!passes(&level_of(Mode::Concurrency, 1.0, Vec::new(), 1.0, slo), 0.5));
    }
}
