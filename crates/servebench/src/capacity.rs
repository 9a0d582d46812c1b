//! The search for the highest load that meets the SLO: pure, it only says what to measure next.

use crate::results::{CapacityReason, LevelResult};

/// Whether no request failed and the share `target` of them met the SLO.
#[must_use]
pub fn passes(_level: &LevelResult, _target: f64) -> bool {
    false
}

/// The search: ask [`next`](Self::next) for a load, measure it, [`record`](Self::record) it.
#[derive(Clone, Debug)]
pub struct CapacitySearch {}

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

impl CapacitySearch {
    /// Starts a search: doubling from `start` up to `max`, then halving until the gap is within
    /// `tolerance` of the passing load.
    #[must_use]
    pub fn new(_start: f64, _max: f64, _scale: LoadScale, _tolerance: f64) -> Self {
        Self {}
    }

    /// Returns the load to measure next; `None` when the search has ended.
    #[must_use]
    pub fn next(&self) -> Option<f64> {
        None
    }

    /// Notes whether the load that was measured passed.
    pub fn record(&mut self, _load: f64, _passed: bool) {}

    /// Returns what was found so far.
    #[must_use]
    pub fn outcome(&self) -> SearchOutcome {
        SearchOutcome { capacity: None, first_fail: None, reason: CapacityReason::StartFailed }
    }
}
