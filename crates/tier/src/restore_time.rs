//! How long a restore is expected to take.
//!
//! A running mean over what restores took. An estimate that is too high keeps the engine from
//! restoring, so no measurement would ever correct it; therefore it halves for each minute without
//! one. Before the first measurement it is zero: one restore finds out.

use std::time::{Duration, Instant};

/// The age at which an estimate counts half.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// Weight of the latest measurement: the mean reaches over about this many restores.
const MEAN_OVER: u32 = 8;

/// A running estimate.
#[derive(Debug, Default)]
pub(crate) struct RestoreTime {
    measured: Option<(Duration, Instant)>,
}

impl RestoreTime {
    /// Returns the estimate.
    pub(crate) fn estimate(&self, now: Instant) -> Duration {
        let Some((mean, at)) = self.measured else { return Duration::ZERO };
        let halvings = now.saturating_duration_since(at).as_secs() / HALF_LIFE.as_secs();
        mean / 1_u32.checked_shl(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(u32::MAX)
    }

    /// Takes in what a restore took that started at `start` and ended at `end`.
    pub(crate) fn record(&mut self, start: Instant, end: Instant) {
        let took = end.saturating_duration_since(start);
        let mean = match self.measured {
            None => took,
            Some(_) => (self.estimate(end) * (MEAN_OVER - 1) + took) / MEAN_OVER,
        };
        self.measured = Some((mean, end));
    }

    /// Takes in a restore that gave nothing: quick ones say nothing about the others, slow ones do.
    pub(crate) fn record_failure(&mut self, start: Instant, end: Instant) {
        if end.saturating_duration_since(start) > self.estimate(end) {
            self.record(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_estimate_follows_the_measurements() {
        let start = Instant::now();
        let mut time = RestoreTime::default();
        assert_eq!(time.estimate(start), Duration::ZERO);
        time.record(start, start + 8 * MS);
        assert_eq!(time.estimate(start + 8 * MS), 8 * MS);
        for _ in 0..100 {
            time.record(start, start + MS);
        }
        assert!(time.estimate(start) < 2 * MS);
    }

    #[test]
    fn an_estimate_that_nothing_corrects_fades() {
        let start = Instant::now();
        let mut time = RestoreTime::default();
        time.record(start, start + 8 * MS);
        assert_eq!(time.estimate(start + 8 * MS + HALF_LIFE), 4 * MS);
        assert_eq!(time.estimate(start + 8 * MS + 3 * HALF_LIFE), MS);
        assert!(time.estimate(start + 1000 * HALF_LIFE) < MS / 1000);
    }

    #[test]
    fn only_slow_failures_count() {
        let start = Instant::now();
        let mut time = RestoreTime::default();
        time.record(start, start + 8 * MS);
        time.record_failure(start, start + MS);
        assert_eq!(time.estimate(start + MS), 8 * MS);
        time.record_failure(start, start + 80 * MS);
        assert_eq!(time.estimate(start + 80 * MS), 17 * MS);
    }
}
