//! Time as a dependency, so that the engine can be simulated.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// A monotonic clock.
pub trait Clock {
    /// Returns the time since an arbitrary fixed start; never decreases.
    fn now(&self) -> Duration;
}

/// A clock that moves only when told to; clones share the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now: Rc<Cell<Duration>>,
}

impl ManualClock {
    /// Moves the clock forward by `by`.
    pub fn advance(&self, by: Duration) {
        self.now.set(self.now.get() + by);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.now.get()
    }
}
