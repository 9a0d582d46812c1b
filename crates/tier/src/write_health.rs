//! Whether writing files is worth trying.
//!
//! After some failures in a row writing pauses, each time for twice as long, until a write succeeds.

use std::time::{Duration, Instant};

/// Failures in a row before writing pauses; one alone may be an accident.
const FAILURES_BEFORE_PAUSE: u32 = 3;
/// How often a pause doubles: 10 s become over ten minutes.
const MAX_DOUBLINGS: u32 = 6;

/// The latest writes, as far as they matter.
#[derive(Debug)]
pub(crate) struct WriteHealth {
    first_pause: Duration,
    failures_in_a_row: u32,
    paused_until: Option<Instant>,
}

/// What a finished write changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthChange {
    /// Nothing that anybody need know.
    None,
    /// Writing pauses, after a time when it worked.
    Paused(Duration),
    /// Writing pauses again: the trial write failed too.
    StillPaused,
    /// Writing works again after a pause.
    Recovered,
}

impl WriteHealth {
    /// Starts without a failure; the first pause will be `first_pause` long.
    pub(crate) fn new(first_pause: Duration) -> Self {
        Self { first_pause, failures_in_a_row: 0, paused_until: None }
    }

    /// Tells whether writing pauses.
    pub(crate) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// Takes in a write that worked.
    pub(crate) fn succeeded(&mut self) -> HealthChange {
        let change =
            if self.paused_until.is_some() { HealthChange::Recovered } else { HealthChange::None };
        *self = Self::new(self.first_pause);
        change
    }

    /// Takes in a write that failed.
    pub(crate) fn failed(&mut self, now: Instant) -> HealthChange {
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        let Some(num_pauses) = self.failures_in_a_row.checked_sub(FAILURES_BEFORE_PAUSE) else {
            return HealthChange::None;
        };
        let pause = self.first_pause * (1 << num_pauses.min(MAX_DOUBLINGS));
        self.paused_until = Some(now + pause);
        if num_pauses == 0 { HealthChange::Paused(pause) } else { HealthChange::StillPaused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_PAUSE: Duration = Duration::from_secs(10);

    #[test]
    fn writing_pauses_after_three_failures_and_is_tried_again_ever_more_rarely() {
        let start = Instant::now();
        let mut health = WriteHealth::new(FIRST_PAUSE);
        assert_eq!(health.failed(start), HealthChange::None);
        assert_eq!(health.failed(start), HealthChange::None);
        assert!(!health.is_paused(start));
        assert_eq!(health.failed(start), HealthChange::Paused(FIRST_PAUSE));
        assert!(health.is_paused(start + FIRST_PAUSE - Duration::from_millis(1)));
        assert!(!health.is_paused(start + FIRST_PAUSE));
        assert_eq!(health.failed(start), HealthChange::StillPaused);
        assert!(health.is_paused(start + FIRST_PAUSE));
        for _ in 0..100 {
            assert_eq!(health.failed(start), HealthChange::StillPaused);
        }
        assert!(!health.is_paused(start + Duration::from_secs(11 * 60)));
    }

    #[test]
    fn a_success_forgets_all_failures() {
        let start = Instant::now();
        let mut health = WriteHealth::new(FIRST_PAUSE);
        assert_eq!(health.succeeded(), HealthChange::None);
        for _ in 0..3 {
            health.failed(start);
        }
        assert_eq!(health.succeeded(), HealthChange::Recovered);
        assert!(!health.is_paused(start));
        assert_eq!(health.failed(start), HealthChange::None);
    }
}
