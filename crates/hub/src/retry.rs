//! Repeating what failed for a reason that passes.
//!
//! A broken connection and an overloaded server are worth repeating; a host that cannot be reached
//! only once it had been, so that a machine without network learns so at once. The pause doubles
//! with every failure in a row, and a server's own `Retry-After` comes first.

use std::thread;
use std::time::Duration;

use crate::error::HubError;
use crate::options::RetryPolicy;
use crate::progress::{Progress, ProgressEvent};

/// The failures in a row of one undertaking.
#[derive(Debug)]
pub(crate) struct Retries {
    policy: RetryPolicy,
    reached: bool,
    num_failures: u32,
}

impl Retries {
    /// Starts an undertaking with a server that may not be reachable at all.
    pub(crate) fn with_unknown_server(policy: RetryPolicy) -> Self {
        Self { policy, reached: false, num_failures: 0 }
    }

    /// Starts an undertaking with a server that has answered before.
    pub(crate) fn with_known_server(policy: RetryPolicy) -> Self {
        Self { policy, reached: true, num_failures: 0 }
    }

    /// Forgets past failures: something was achieved since.
    pub(crate) fn succeed_in_part(&mut self) {
        self.num_failures = 0;
    }

    /// Pauses if another attempt is due.
    ///
    /// # Errors
    ///
    /// The failure itself, where another attempt is not.
    pub(crate) fn pause_after(
        &mut self,
        failure: HubError,
        progress: &mut dyn Progress,
    ) -> Result<(), HubError> {
        self.num_failures += 1;
        let Some(delay) = self.delay_after(&failure) else { return Err(failure) };
        progress.report(ProgressEvent::Retrying { reason: &failure, delay });
        thread::sleep(delay);
        Ok(())
    }

    fn delay_after(&self, failure: &HubError) -> Option<Duration> {
        let doublings = self.num_failures.saturating_sub(1).min(16);
        let backoff = (self.policy.first_delay * (1 << doublings)).min(self.policy.max_delay);
        let delay = if let HubError::Overloaded { retry_after, .. } = failure {
            let asked = retry_after.unwrap_or(backoff);
            (asked <= self.policy.max_delay).then_some(asked)
        } else {
            let passes = matches!(failure, HubError::Interrupted { .. })
                || self.reached && matches!(failure, HubError::Unreachable { .. });
            passes.then_some(backoff)
        };
        delay.filter(|_| self.num_failures < self.policy.max_failures)
    }
}

/// Repeats `attempt` until it succeeds or fails for good.
///
/// # Errors
///
/// The failure of the last attempt.
pub(crate) fn repeat<T>(
    mut retries: Retries,
    progress: &mut dyn Progress,
    attempt: impl Fn() -> Result<T, HubError>,
) -> Result<T, HubError> {
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(failure) => retries.pause_after(failure, progress)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay(num_failures: u32, failure: &HubError, reached: bool) -> Option<u64> {
        let policy = RetryPolicy {
            max_failures: 5,
            first_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(6),
        };
        let retries = Retries { policy, reached, num_failures };
        retries.delay_after(failure).map(|delay| delay.as_secs())
    }

    fn overloaded(seconds: Option<u64>) -> HubError {
        let retry_after = seconds.map(Duration::from_secs);
        HubError::Overloaded { url: String::new(), status: 429, retry_after }
    }

    #[test]
    fn pause_doubles_up_to_its_limit_and_then_ends() {
        let failure = HubError::Interrupted { url: String::new(), reason: String::new() };
        let delays: Vec<_> = (1..=5).map(|count| delay(count, &failure, true)).collect();
        assert_eq!(delays, [Some(1), Some(2), Some(4), Some(6), None]);
    }

    #[test]
    fn pause_the_server_asks_for_comes_first_unless_too_long() {
        assert_eq!(delay(1, &overloaded(Some(5)), true), Some(5));
        assert_eq!(delay(1, &overloaded(Some(0)), true), Some(0));
        assert_eq!(delay(1, &overloaded(Some(3600)), true), None);
        assert_eq!(delay(1, &overloaded(None), true), Some(1));
    }

    #[test]
    fn unreachable_server_is_tried_again_only_when_it_was_reached_before() {
        let failure = HubError::Unreachable { url: String::new(), reason: String::new() };
        assert_eq!(delay(1, &failure, false), None);
        assert_eq!(delay(1, &failure, true), Some(1));
    }

    #[test]
    fn final_failures_are_not_repeated() {
        assert_eq!(delay(1, &HubError::Gated { page: String::new() }, true), None);
    }
}
