//! How late pieces were: counts in steps of 10 µs up to a second.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Width of a step.
const STEP: Duration = Duration::from_micros(10);

/// Steps in a millisecond.
const STEPS_PER_MS: f64 = 100.0;

/// Steps up to a second; what is later still counts in the last one.
const NUM_STEPS: usize = 100_000;

/// How late pieces were. Threads may add at the same time.
#[derive(Debug)]
pub(super) struct Lateness {
    counts: Box<[AtomicU32]>,
    max_ns: AtomicU64,
}

impl Lateness {
    pub(super) fn new() -> Self {
        let counts = (0..NUM_STEPS).map(|_| AtomicU32::new(0)).collect();
        Self { counts, max_ns: AtomicU64::new(0) }
    }

    /// Adds a piece.
    pub(super) fn add(&self, late: Duration) {
        let nanoseconds = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let step = usize::try_from(late.as_nanos() / STEP.as_nanos()).unwrap_or(usize::MAX);
        self.counts[step.min(NUM_STEPS - 1)].fetch_add(1, Ordering::Relaxed);
        self.max_ns.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    /// Forgets all pieces.
    pub(super) fn clear(&self) {
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
        self.max_ns.store(0, Ordering::Relaxed);
    }

    /// Returns the longest, in milliseconds, rounded to microseconds.
    pub(super) fn max_ms(&self) -> f64 {
        let nanoseconds = self.max_ns.load(Ordering::Relaxed) as f64;
        (nanoseconds / 1e3).round() / 1e3
    }

    /// Returns a percentile rounded up to whole steps, in milliseconds; 0 without pieces.
    pub(super) fn percentile_ms(&self, percent: u64) -> f64 {
        let counts = || self.counts.iter().map(|count| u64::from(count.load(Ordering::Relaxed)));
        let rank = (counts().sum::<u64>() * percent).div_ceil(100);
        let mut below = 0;
        let reaches = |count| {
            below += count;
            below >= rank && rank > 0
        };
        let step = counts().map(reaches).position(|reached| reached);
        // Divided, not multiplied, so that the result is the decimal fraction that it stands for.
        let end = |step| (step + 1) as f64 / STEPS_PER_MS;
        step.map_or(0.0, |step| end(step).min(self.max_ms()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_pieces() {
        let lateness = Lateness::new();
        assert_eq!((lateness.percentile_ms(99), lateness.max_ms()), (0.0, 0.0));
        for number in 1..=100 {
            lateness.add(Duration::from_micros(number * 100 - 5));
        }
        assert!((lateness.percentile_ms(50) - 5.0).abs() < 1e-9);
        assert!((lateness.percentile_ms(99) - 9.9).abs() < 1e-9);
        lateness.add(Duration::from_secs(7));
        assert!((lateness.max_ms() - 7000.0).abs() < 1e-9);
        lateness.clear();
        assert_eq!((lateness.percentile_ms(99), lateness.max_ms()), (0.0, 0.0));
    }
}
