//! The engine's numbers for Prometheus, read from its last snapshot at scrape time.
//!
//! Costs the engine nothing: a scrape copies the snapshot and formats it on its own thread.

use crate::engine_monitor::EngineMonitor;
use mini_infer_engine::{EngineCounters, EngineStats, KvStats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Reads the engine's snapshot at scrape time.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineCollector {
    monitor: Arc<OnceLock<Arc<EngineMonitor>>>,
}

impl EngineCollector {
    /// Reads from `monitor` from here on.
    pub(crate) fn watch(&self, monitor: Arc<EngineMonitor>) {
        // A server has one engine for its whole life; the caller asserts it.
        let _ = self.monitor.set(monitor);
    }
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(monitor) = self.monitor.get() else {
            return Ok(());
        };
        encode_stats(&mut Writer { encoder: &mut encoder }, &monitor.stats())?;
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

/// Writes metrics one by one.
struct Writer<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
}

impl Writer<'_, '_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        encode_count(self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?, value)
    }

    /// Writes a gauge for each value of `label`.
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: &[(&str, u64)],
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut metric = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (label_value, value) in values {
            metric.encode_family(&[(label, *label_value)])?.encode_gauge(value)?;
        }
        Ok(())
    }

    /// Writes a counter for each value of `label`.
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: &[(&str, u64)],
    ) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut metric = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (label_value, value) in values {
            encode_count(metric.encode_family(&[(label, *label_value)])?, *value)?;
        }
        Ok(())
    }
}

fn encode_count(mut metric: MetricEncoder<'_>, value: u64) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

fn encode_stats(writer: &mut Writer<'_, '_>, stats: &EngineStats) -> fmt::Result {
    let EngineStats { num_running_seqs, num_waiting_seqs, num_waiting_requests, .. } = *stats;
    let help = "Sequences that take part in steps";
    writer.gauge("running_sequences", help, num_running_seqs.into())?;
    let help = "Sequences that wait, preempted ones included";
    writer.gauge("waiting_sequences", help, num_waiting_seqs.into())?;
    let help = "Requests of which no sequence has run yet";
    writer.gauge("waiting_requests", help, num_waiting_requests.into())?;
    encode_kv(writer, &stats.kv)?;
    encode_counters(writer, &stats.counters)
}

fn encode_kv(writer: &mut Writer<'_, '_>, kv: &KvStats) -> fmt::Result {
    writer.gauge("kv_pool_blocks", "Blocks in the KV pool", kv.num_blocks.into())?;
    let states = [
        ("free", kv.num_free_blocks.into()),
        ("active", kv.num_active_blocks.into()),
        ("cached", kv.num_cached_blocks.into()),
    ];
    writer.gauges("kv_blocks", "KV blocks by state", "state", &states)?;
    let help = "Tokens whose KV lies in active blocks";
    writer.gauge("kv_live_tokens", help, kv.num_live_tokens)?;
    writer.gauge("kv_shared_tokens", "Slots saved by sharing blocks", kv.num_shared_tokens)?;
    let causes = [
        ("reserved", kv.waste.reserved_slots),
        ("internal", kv.waste.internal_slots),
        ("external", kv.waste.external_slots),
    ];
    let help = "Allocated KV slots that hold no token, by cause";
    writer.gauges("kv_waste_slots", help, "cause", &causes)
}

fn encode_counters(writer: &mut Writer<'_, '_>, counters: &EngineCounters) -> fmt::Result {
    let tokens = [("prompt", counters.num_prompt_tokens), ("output", counters.num_output_tokens)];
    let help = "Tokens of admitted prompts, and tokens generated";
    writer.counters("tokens", help, "kind", &tokens)?;
    let finished = &counters.finished;
    let reasons = [
        ("stop", finished.num_stop),
        ("length", finished.num_length),
        ("abort", finished.num_abort),
        ("error", finished.num_error),
    ];
    let help = "Ended sequences by reason; stop and length are the successful ones";
    writer.counters("finished_sequences", help, "reason", &reasons)?;
    let help = "Prompt tokens looked up in the prefix cache";
    writer.counter("prefix_cache_queried_tokens", help, counters.num_queried_tokens)?;
    let help = "Prompt tokens found in the prefix cache";
    writer.counter("prefix_cache_hit_tokens", help, counters.num_hit_tokens)?;
    writer.counter("steps", "Steps that ran the executor", counters.num_steps)?;
    let help = "Times a running sequence lost its blocks";
    writer.counter("preemptions", help, counters.num_preemptions)?;
    let help = "Requests refused because the queue was full";
    writer.counter("refused_requests", help, counters.num_refused_requests)
}
