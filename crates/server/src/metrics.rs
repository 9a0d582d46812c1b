//! What Prometheus scrapes: under `mini_infer_`, and again under the names that vLLM's dashboards
//! and routers read.
//!
//! Latencies are observed where clients feel them, on the request's own task; everything else is
//! read from the engine's last snapshot at scrape time, so that a scrape can neither wait for
//! the engine nor slow it down.

use crate::engine_collector::EngineCollector;
use crate::engine_monitor::EngineMonitor;
use crate::latencies::Latencies;
use crate::process_collector::ProcessCollector;
use crate::tiers::KvDetails;
use crate::vllm_collector::VllmCollector;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;

/// Content type of what [`Metrics::encode`] returns.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of a count of answers: the route, and the status.
type AnswerLabels = [(&'static str, String); 2];

/// All metrics of the server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    engine: EngineCollector,
    vllm: VllmCollector,
    latencies: Latencies,
    answers: Family<AnswerLabels, Counter>,
}

impl Metrics {
    /// Creates the metrics of a server without an engine.
    pub(crate) fn new() -> Self {
        let (latencies, engine) = (Latencies::new(), EngineCollector::default());
        let vllm = VllmCollector::new(latencies.clone());
        let answers = Family::default();
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("mini_infer");
        for (name, help, histogram) in latencies.all() {
            own.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        own.register(
            "http_answers",
            "HTTP requests answered, by route and status",
            answers.clone(),
        );
        own.register_collector(Box::new(engine.clone()));
        registry.register_collector(Box::new(vllm.clone()));
        registry.register_collector(Box::new(ProcessCollector));
        Self { registry, engine, vllm, latencies, answers }
    }

    /// Reads the engine's numbers from `monitor`, and those of the tiers from `kv`, from here on;
    /// they are about the model of this name.
    pub(crate) fn watch_engine(&self, monitor: Arc<EngineMonitor>, kv: KvDetails, model: &str) {
        self.vllm.watch(Arc::clone(&monitor), model.to_owned());
        self.engine.watch(monitor, kv);
    }

    /// Returns where latencies are noted.
    pub(crate) fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Counts an answer of a route as it is declared, or of none.
    pub(crate) fn count_answer(&self, route: Option<&str>, status: u16) {
        let route = route.unwrap_or("none").to_owned();
        self.answers.get_or_create(&[("route", route), ("status", status.to_string())]).inc();
    }

    /// Returns all metrics as text.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }
}
