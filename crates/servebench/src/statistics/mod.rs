//! What the requests of a level mean.

use crate::results::{GoodputAt, LevelResult, RepeatMetric, RequestResult, Slo, Summary};
use std::collections::BTreeMap;

/// Returns the requests of a level in a few numbers. `duration` in seconds.
#[must_use]
pub fn summarize(_requests: &[RequestResult], _duration: f64, _slo: Slo) -> Summary {
    Summary::default()
}

/// Returns mean, spread and confidence of the main figures over repeated runs of one level.
#[must_use]
pub fn summarize_repeats(_repeats: &[Summary]) -> BTreeMap<String, RepeatMetric> {
    BTreeMap::new()
}

/// Returns the highest load, and the good requests per second there, at which 90 % and 99 % of the
/// requests meet the SLO.
#[must_use]
pub fn goodput_at(_levels: &[LevelResult], _slo: Slo) -> Vec<GoodputAt> {
    Vec::new()
}
