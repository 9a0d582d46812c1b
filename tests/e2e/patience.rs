//! How long checks wait: for events, never for time to pass.

use std::time::{Duration, Instant};

/// How long a check waits for something that must happen, on however busy a machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// How often a promise about time is tried; a busy machine may delay one try, but not all.
const NUM_TRIES: usize = 3;
/// Time between two looks at something that another process changes.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Polls until `look` sees something.
///
/// # Panics
/// When it never does.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what} did not come true");
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// Asserts that what `measure` times takes less than `limit`, in the best of a few tries.
///
/// # Panics
/// When all tries take longer.
pub(crate) fn assert_within(what: &str, limit: Duration, mut measure: impl FnMut() -> Duration) {
    let mut tries = Vec::new();
    while tries.len() < NUM_TRIES {
        tries.push(measure());
        if tries.last().is_some_and(|taken| *taken < limit) {
            return;
        }
    }
    panic!("{what} must take less than {limit:?}, took {tries:?}");
}
