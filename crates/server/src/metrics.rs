//! What Prometheus scrapes, all under `mini_infer_`.
//!
//! Latencies are observed where clients feel them, on the request's own task; everything else is
//! read from the engine's last snapshot at scrape time, so that a scrape can neither wait for
//! the engine nor slow it down.

use crate::engine_collector::EngineCollector;
use crate::engine_monitor::EngineMonitor;
use crate::tiers::KvDetails;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::time::Duration;

/// Content type of what [`Metrics::encode`] returns.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of the server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    engine: EngineCollector,
    ttft: Histogram,
    itl: Histogram,
    e2e: Histogram,
}

impl Metrics {
    /// Creates the metrics of a server without an engine.
    pub(crate) fn new() -> Self {
        // 1 ms to 131 s in doublings; gaps between tokens from 0.5 ms.
        let (ttft, e2e) = (doublings(0.001, 18), doublings(0.001, 18));
        let itl = doublings(0.0005, 14);
        let engine = EngineCollector::default();
        let mut registry = Registry::with_prefix("mini_infer");
        let latencies = [
            ("time_to_first_token", "From arrival to the first output token", &ttft),
            ("inter_token_latency", "Gaps between output tokens of one sequence", &itl),
            ("e2e_request_latency", "From arrival to the last token of the request", &e2e),
        ];
        for (name, help, histogram) in latencies {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        registry.register_collector(Box::new(engine.clone()));
        Self { registry, engine, ttft, itl, e2e }
    }

    /// Reads the engine's numbers from `monitor`, and those of the tiers from `kv`, from here on.
    pub(crate) fn watch_engine(&self, monitor: Arc<EngineMonitor>, kv: KvDetails) {
        self.engine.watch(monitor, kv);
    }

    /// Notes a request's first token.
    pub(crate) fn observe_ttft(&self, since_arrival: Duration) {
        self.ttft.observe(since_arrival.as_secs_f64());
    }

    /// Notes a gap between two tokens of one sequence.
    pub(crate) fn observe_itl(&self, gap: Duration) {
        self.itl.observe(gap.as_secs_f64());
    }

    /// Notes the end of a request that succeeded.
    pub(crate) fn observe_e2e(&self, since_arrival: Duration) {
        self.e2e.observe(since_arrival.as_secs_f64());
    }

    /// Returns all metrics as text.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }
}

fn doublings(first: f64, count: u16) -> Histogram {
    Histogram::new(exponential_buckets(first, 2.0, count))
}
