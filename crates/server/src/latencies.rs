//! How long requests take, where clients feel it: observed on each request's own task.

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use std::time::Duration;

/// Histograms of what clients wait for, in seconds; clones count into the same ones.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    queue: Histogram,
    ttft: Histogram,
    itl: Histogram,
    tpot: Histogram,
    e2e: Histogram,
}

impl Latencies {
    /// Creates empty histograms.
    pub(crate) fn new() -> Self {
        // 1 ms to 131 s in doublings; times per token from 0.5 ms.
        let (queue, ttft, e2e) = (doublings(0.001, 18), doublings(0.001, 18), doublings(0.001, 18));
        let (itl, tpot) = (doublings(0.0005, 14), doublings(0.0005, 14));
        Self { queue, ttft, itl, tpot, e2e }
    }

    /// Returns each histogram with its name, without the unit, and what it tells.
    pub(crate) fn all(&self) -> [(&'static str, &'static str, &Histogram); 5] {
        [
            ("request_queue_time", "From arrival to the step that first ran it", &self.queue),
            ("time_to_first_token", "From arrival to the first output token", &self.ttft),
            ("inter_token_latency", "Gaps between output tokens of one sequence", &self.itl),
            (
                "time_per_output_token",
                "Time after the first token of a sequence, divided by the tokens after it",
                &self.tpot,
            ),
            ("e2e_request_latency", "From arrival to the last token of the request", &self.e2e),
        ]
    }

    /// Notes that a request was admitted.
    pub(crate) fn observe_queue(&self, since_arrival: Duration) {
        self.queue.observe(since_arrival.as_secs_f64());
    }

    /// Notes a request's first token.
    pub(crate) fn observe_ttft(&self, since_arrival: Duration) {
        self.ttft.observe(since_arrival.as_secs_f64());
    }

    /// Notes a gap between two tokens of one sequence.
    pub(crate) fn observe_itl(&self, gap: Duration) {
        self.itl.observe(gap.as_secs_f64());
    }

    /// Notes that a sequence's last `num_gaps` tokens took `time` after the one before them.
    pub(crate) fn observe_tpot(&self, time: Duration, num_gaps: u32) {
        if num_gaps > 0 {
            self.tpot.observe(time.as_secs_f64() / f64::from(num_gaps));
        }
    }

    /// Notes the end of a request that succeeded.
    pub(crate) fn observe_e2e(&self, since_arrival: Duration) {
        self.e2e.observe(since_arrival.as_secs_f64());
    }
}

fn doublings(first: f64, count: u16) -> Histogram {
    Histogram::new(exponential_buckets(first, 2.0, count))
}
