//! What Prometheus scrapes, all under `mini_infer_`.
//!
//! Latencies are observed where clients feel them, on the request's own task; everything else is
//! read from the engine's last snapshot at scrape time, so that a scrape can neither wait for
//! the engine nor slow it down.

use crate::engine_monitor::EngineMonitor;
use mini_infer_engine::EngineStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::{Arc, OnceLock};
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

    /// Reads the engine's numbers from `monitor` from here on.
    pub(crate) fn watch_engine(&self, monitor: Arc<EngineMonitor>) {
        // A server has one engine for its whole life; the caller asserts it.
        let _ = self.engine.monitor.set(monitor);
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

/// Reads the engine's snapshot at scrape time.
#[derive(Clone, Debug, Default)]
struct EngineCollector {
    monitor: Arc<OnceLock<Arc<EngineMonitor>>>,
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(monitor) = self.monitor.get() else {
            return Ok(());
        };
        encode_stats(&mut encoder, &monitor.stats())?;
        let without_progress = monitor.time_without_progress().as_secs_f64();
        encoder
            .encode_descriptor(
                "time_without_progress",
                "Time since the engine last ended a step while it has work",
                Some(&Unit::Seconds),
                MetricType::Gauge,
            )?
            .encode_gauge(&without_progress)?;
        let step_time = monitor.step_time();
        let help = "Time of one engine step";
        let unit = Some(&Unit::Seconds);
        step_time.encode(encoder.encode_descriptor(
            "step_time",
            help,
            unit,
            step_time.metric_type(),
        )?)
    }
}

/// One metric of the engine: name, help, kind, and its value for each label value.
struct EngineMetric<'a> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    label: Option<&'static str>,
    values: &'a [(&'static str, u64)],
}

fn encode_stats(
    encoder: &mut DescriptorEncoder<'_>,
    stats: &EngineStats,
) -> Result<(), fmt::Error> {
    let (kv, counters) = (&stats.kv, &stats.counters);
    let gauge = |name, help, value| (MetricType::Gauge, name, help, value);
    let counter = |name, help, value| (MetricType::Counter, name, help, value);
    let plain = [
        gauge(
            "running_sequences",
            "Sequences that take part in steps",
            stats.num_running_seqs.into(),
        ),
        gauge(
            "waiting_sequences",
            "Sequences that wait, preempted ones included",
            stats.num_waiting_seqs.into(),
        ),
        gauge(
            "waiting_requests",
            "Requests of which no sequence has run yet",
            stats.num_waiting_requests.into(),
        ),
        gauge("kv_pool_blocks", "Blocks in the KV pool", kv.num_blocks.into()),
        gauge("kv_live_tokens", "Tokens whose KV lies in active blocks", kv.num_live_tokens),
        gauge("kv_shared_tokens", "Slots saved by sharing blocks", kv.num_shared_tokens),
        counter("steps", "Engine steps", counters.num_steps),
        counter(
            "preemptions",
            "Times a running sequence lost its blocks",
            counters.num_preemptions,
        ),
        counter(
            "prefix_cache_queried_tokens",
            "Prompt tokens looked up in the prefix cache",
            counters.num_queried_tokens,
        ),
        counter(
            "prefix_cache_hit_tokens",
            "Prompt tokens found in the prefix cache",
            counters.num_hit_tokens,
        ),
        counter(
            "refused_requests",
            "Requests refused because the queue was full",
            counters.num_refused_requests,
        ),
    ];
    for (kind, name, help, value) in plain {
        let values = &[("", value)];
        encode_metric(encoder, &EngineMetric { name, help, kind, label: None, values })?;
    }
    let finished = &counters.finished;
    let labelled = [
        EngineMetric {
            name: "kv_blocks",
            help: "KV blocks by state",
            kind: MetricType::Gauge,
            label: Some("state"),
            values: &[
                ("free", kv.num_free_blocks.into()),
                ("active", kv.num_active_blocks.into()),
                ("cached", kv.num_cached_blocks.into()),
            ],
        },
        EngineMetric {
            name: "kv_waste_slots",
            help: "Allocated KV slots that hold no token, by cause",
            kind: MetricType::Gauge,
            label: Some("cause"),
            values: &[
                ("reserved", kv.waste.reserved_slots),
                ("internal", kv.waste.internal_slots),
                ("external", kv.waste.external_slots),
            ],
        },
        EngineMetric {
            name: "tokens",
            help: "Tokens of admitted prompts, and tokens generated",
            kind: MetricType::Counter,
            label: Some("kind"),
            values: &[
                ("prompt", counters.num_prompt_tokens),
                ("output", counters.num_output_tokens),
            ],
        },
        EngineMetric {
            name: "finished_sequences",
            help: "Ended sequences by reason; stop and length are the successful ones",
            kind: MetricType::Counter,
            label: Some("reason"),
            values: &[
                ("stop", finished.num_stop),
                ("length", finished.num_length),
                ("abort", finished.num_abort),
                ("error", finished.num_error),
            ],
        },
    ];
    labelled.iter().try_for_each(|metric| encode_metric(encoder, metric))
}

fn encode_metric(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &EngineMetric<'_>,
) -> Result<(), fmt::Error> {
    let mut metric_encoder =
        encoder.encode_descriptor(metric.name, metric.help, None, metric.kind)?;
    for &(label_value, value) in metric.values {
        match metric.label {
            None => encode_value(&mut metric_encoder, metric.kind, value)?,
            Some(label) => {
                let labels = [(label, label_value)];
                let mut encoder = metric_encoder.encode_family(&labels)?;
                encode_value(&mut encoder, metric.kind, value)?;
            }
        }
    }
    Ok(())
}

fn encode_value(
    encoder: &mut MetricEncoder<'_>,
    kind: MetricType,
    value: u64,
) -> Result<(), fmt::Error> {
    match kind {
        MetricType::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
        MetricType::Gauge | MetricType::Histogram | MetricType::Info | MetricType::Unknown => {
            encoder.encode_gauge(&value)
        }
    }
}
