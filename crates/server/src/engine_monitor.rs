//! What the engine thread tells everybody else, without ever being asked.
//!
//! The thread publishes a snapshot after each step; health and metrics read the last one, so
//! they answer at once while a step runs, however long it takes. The lock is held for the copy
//! of a few counters only.

use crate::step_phases::StepPhases;
use mini_infer_engine::EngineStats;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The engine's published state.
#[derive(Debug)]
pub(crate) struct EngineMonitor {
    snapshot: Mutex<Snapshot>,
    step_time: Histogram,
    phases: StepPhases,
    is_busy: watch::Sender<bool>,
}

#[derive(Debug)]
struct Snapshot {
    stats: EngineStats,
    /// When the running step or the work before it began; `None` while the engine sleeps.
    busy_since: Option<Instant>,
}

impl EngineMonitor {
    /// Creates the monitor of an engine that sleeps.
    pub(crate) fn new(stats: EngineStats) -> Self {
        // 0.5 ms to 16 s in doublings.
        let step_time = Histogram::new(exponential_buckets(0.0005, 2.0, 16));
        let snapshot = Mutex::new(Snapshot { stats, busy_since: None });
        let (phases, is_busy) = (StepPhases::new(), watch::Sender::new(false));
        Self { snapshot, step_time, phases, is_busy }
    }

    /// Notes that a step begins.
    pub(crate) fn step_starts(&self) {
        self.lock().busy_since = Some(Instant::now());
        self.set_busy(true);
    }

    /// Notes that a step ended after `step_time` and left the engine with `stats`.
    pub(crate) fn step_ended(&self, step_time: Duration, stats: EngineStats) {
        let mut snapshot = self.lock();
        snapshot.stats = stats;
        snapshot.busy_since = Some(Instant::now());
        drop(snapshot);
        self.step_time.observe(step_time.as_secs_f64());
    }

    /// Notes that the engine has no work and sleeps, with these `stats`.
    pub(crate) fn idles(&self, stats: EngineStats) {
        let mut snapshot = self.lock();
        snapshot.stats = stats;
        snapshot.busy_since = None;
        drop(snapshot);
        self.set_busy(false);
    }

    /// Returns a view of whether the engine has work, which wakes its owner at each change.
    pub(crate) fn watch_busy(&self) -> watch::Receiver<bool> {
        self.is_busy.subscribe()
    }

    fn set_busy(&self, is_busy: bool) {
        self.is_busy.send_if_modified(|current| std::mem::replace(current, is_busy) != is_busy);
    }

    /// Returns the state after the last step or release.
    pub(crate) fn stats(&self) -> EngineStats {
        self.lock().stats
    }

    /// Returns how long the engine has been busy without ending a step; zero while it sleeps.
    pub(crate) fn time_without_progress(&self) -> Duration {
        self.lock().busy_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the histogram of step times.
    pub(crate) fn step_time(&self) -> Histogram {
        self.step_time.clone()
    }

    /// Returns how long the parts of steps take.
    pub(crate) fn phases(&self) -> &StepPhases {
        &self.phases
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        // No code panics while it holds the lock; a poisoned snapshot is still a whole one.
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
