//! What the requests of a level mean: percentiles, throughput, goodput, confidence.
//!
//! Every figure comes from the requests themselves, so it can be computed again for another SLO.
//! Failed requests have no latency; they count against SLO attainment. Percentiles lie on straight
//! lines between samples, as numpy's do. A figure without samples is absent, never zero.
//!
//! Sorting dominates: `O(n log n)` in the number of pieces of text.

mod attainment;
mod difference;
mod distribution;
mod level_summary;
mod repeats;
mod steady_state;
mod student_t;

pub use attainment::{AttainmentPoint, attainment_curve, goodput_at, meets_slo};
pub use difference::{Difference, difference};
pub use distribution::{percentile, stats};
pub use level_summary::summarize;
pub use repeats::{
    complete, merge_repeats, repeat_metric, resummarize, resummarize_level, summarize_repeats,
};
pub use student_t::critical_value_95;

#[cfg(test)]
pub(crate) mod sample_requests;

/// Returns a count as a number to calculate with; exact below 2^53, which no count here reaches.
#[expect(clippy::cast_precision_loss, reason = "a count of what was measured is below 2^53")]
pub(crate) fn as_f64(count: usize) -> f64 {
    count as f64
}

/// Returns a number of tokens to calculate with; exact below 2^53, which no count here reaches.
#[expect(clippy::cast_precision_loss, reason = "a number of tokens is below 2^53")]
pub(crate) fn tokens_as_f64(count: u64) -> f64 {
    count as f64
}
