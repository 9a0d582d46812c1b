//! Times that requests take, summed up.

use serde::Serialize;
use std::time::Duration;

/// Limits that a request has to meet to count for goodput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyLimits {
    /// Most time to the first output token.
    pub ttft: Duration,
    /// Most time for each later one, in the mean over the request.
    pub tpot: Duration,
}

impl LatencyLimits {
    /// A first token within 2 s and ten more a second, about as fast as people read.
    pub const DEFAULT: Self =
        Self { ttft: Duration::from_secs(2), tpot: Duration::from_millis(100) };
}

/// A distribution of times, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// The mean.
    pub mean: f64,
    /// Half of the times are at most this.
    pub p50: f64,
    /// 99 in 100 times are at most this.
    pub p99: f64,
}

impl LatencySummary {
    /// Sums up some times in seconds, in any order; `None` when there are none.
    pub(crate) fn of(seconds: &mut [f64]) -> Option<Self> {
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        seconds.sort_unstable_by(f64::total_cmp);
        let percentile = |percent: usize| {
            let rank = (seconds.len() * percent).div_ceil(100);
            seconds.get(rank.max(1) - 1).copied()
        };
        Some(Self { mean, p50: percentile(50)?, p99: percentile(99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let expected = LatencySummary { mean: 100.5, p50: 100.0, p99: 198.0 };
        assert_eq!(LatencySummary::of(&mut times), Some(expected));
        let expected = LatencySummary { mean: 3.0, p50: 3.0, p99: 3.0 };
        assert_eq!(LatencySummary::of(&mut [3.0]), Some(expected));
        assert_eq!(LatencySummary::of(&mut []), None);
    }
}
