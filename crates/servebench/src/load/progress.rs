//! What those who watch a benchmark see of it.

use crate::results::{Environment, RunResult};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A level that is about to start.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelPlan {
    /// What it is called, such as `c=8`.
    pub label: String,
    /// Which run of the level this is, from 1.
    pub repeat: usize,
    /// How often the level is run.
    pub num_repeats: usize,
    /// Requests that will be sent, where that is known.
    pub num_requests: Option<usize>,
    /// How long requests will be sent, where that is known.
    pub duration: Option<Duration>,
}

/// How far a level is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Since the start of the level.
    pub elapsed: Duration,
    /// Requests that have ended, failed ones included.
    pub num_ended: usize,
    /// Requests that have failed.
    pub num_failed: usize,
    /// Requests that were due and have not ended.
    pub num_in_flight: usize,
    /// Pieces of text that have arrived; most servers send one for each token.
    pub num_pieces: u64,
}

/// Watches a benchmark. Every method does nothing unless it is written.
pub trait Observer: Send {
    /// Something that the user should know does not look right.
    fn warning(&mut self, _message: &str) {}

    /// The server has been looked at; `num_warm_up` requests that are not measured follow.
    fn warming_up(&mut self, _environment: &Environment, _num_warm_up: usize) {}

    /// A level starts.
    fn level_started(&mut self, _plan: &LevelPlan) {}

    /// A level goes on; ten times a second.
    fn progress(&mut self, _progress: &Progress) {}

    /// A level has ended, or was stopped; it is the last one of `run`.
    fn level_ended(&mut self, _run: &RunResult) {}
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// Numbers that requests count up as they run.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) num_due: AtomicUsize,
    pub(super) num_ended: AtomicUsize,
    pub(super) num_failed: AtomicUsize,
    pub(super) num_pieces: AtomicU64,
}

impl Counters {
    /// Returns the state after so much time.
    pub(super) fn progress(&self, elapsed: Duration) -> Progress {
        // A request is due before it ends, so reading in this order never finds more ended.
        let num_ended = self.num_ended.load(Ordering::Acquire);
        let num_due = self.num_due.load(Ordering::Acquire);
        Progress {
            elapsed,
            num_ended,
            num_failed: self.num_failed.load(Ordering::Relaxed),
            num_in_flight: num_due.saturating_sub(num_ended),
            num_pieces: self.num_pieces.load(Ordering::Relaxed),
        }
    }
}
