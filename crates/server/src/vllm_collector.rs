//! The engine's numbers under vLLM's names, which dashboards, autoscalers and routers read.
//!
//! Names, types, labels and units are those of vLLM 0.12's V1 engine, with `gpu_cache_usage_perc`
//! and `time_per_output_token_seconds` of earlier ones beside them. vLLM counts sequences as
//! requests, and cached blocks that nobody holds as free; so does this.

use crate::engine_monitor::EngineMonitor;
use crate::latencies::Latencies;
use crate::metric_writer::MetricWriter;
use crate::ratio::Ratio;
use mini_infer_engine::EngineStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// vLLM numbers its engines; there is one here.
const ENGINE: (&str, &str) = ("engine", "0");

/// Writes what vLLM would call the engine's numbers.
#[derive(Clone)]
pub(crate) struct VllmCollector {
    latencies: Latencies,
    source: Arc<OnceLock<Source>>,
}

/// Where the numbers come from.
struct Source {
    monitor: Arc<EngineMonitor>,
    model: String,
}

impl VllmCollector {
    /// Creates the collector of a server without an engine.
    pub(crate) fn new(latencies: Latencies) -> Self {
        Self { latencies, source: Arc::default() }
    }

    /// Reads from `monitor`, for the model of this name, from here on.
    pub(crate) fn watch(&self, monitor: Arc<EngineMonitor>, model: String) {
        // A server has one engine for its whole life; the caller asserts it.
        let _ = self.source.set(Source { monitor, model });
    }
}

impl fmt::Debug for VllmCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VllmCollector").finish_non_exhaustive()
    }
}

impl Collector for VllmCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(Source { monitor, model }) = self.source.get() else {
            return Ok(());
        };
        let writer = &mut MetricWriter { encoder: &mut encoder };
        let labels = [("model_name", model.as_str()), ENGINE];
        encode_load(writer, labels, &monitor.stats())?;
        encode_counters(writer, labels, &monitor.stats())?;
        let [queue, ttft, itl, tpot, e2e] = self.latencies.all();
        let histograms = [
            ("vllm:request_queue_time", queue),
            ("vllm:time_to_first_token", ttft),
            ("vllm:inter_token_latency", itl),
            ("vllm:time_per_output_token", itl),
            ("vllm:request_time_per_output_token", tpot),
            ("vllm:e2e_request_latency", e2e),
        ];
        for (name, (_, help, histogram)) in histograms {
            writer.labelled_histogram_seconds(name, help, &labels, histogram)?;
        }
        Ok(())
    }
}

fn encode_load(
    writer: &mut MetricWriter<'_, '_>,
    labels: [(&str, &str); 2],
    stats: &EngineStats,
) -> fmt::Result {
    let running = [(labels, stats.num_running_seqs.into())];
    writer.gauges("vllm:num_requests_running", "Sequences that take part in steps", &running)?;
    let waiting = [(labels, stats.num_waiting_seqs.into())];
    writer.gauges("vllm:num_requests_waiting", "Sequences that wait", &waiting)?;
    let usage =
        Ratio { part: stats.kv.num_active_blocks.into(), whole: stats.kv.num_blocks.into() };
    let help = "Share of the KV blocks that sequences hold, 0 to 1";
    for name in ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"] {
        writer.labelled_gauge(name, help, &labels, usage.value())?;
    }
    Ok(())
}

fn encode_counters(
    writer: &mut MetricWriter<'_, '_>,
    labels: [(&str, &str); 2],
    stats: &EngineStats,
) -> fmt::Result {
    let counters = &stats.counters;
    let counts = [
        ("vllm:prompt_tokens", "Tokens of admitted prompts", counters.num_prompt_tokens),
        ("vllm:generation_tokens", "Tokens generated", counters.num_output_tokens),
        (
            "vllm:prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache",
            counters.num_queried_tokens,
        ),
        (
            "vllm:prefix_cache_hits",
            "Prompt tokens found in the prefix cache",
            counters.num_hit_tokens,
        ),
        (
            "vllm:num_preemptions",
            "Times a running sequence lost its blocks",
            counters.num_preemptions,
        ),
    ];
    for (name, help, count) in counts {
        writer.counters(name, help, &[(labels, count)])?;
    }
    let finished = &counters.finished;
    let reasons = [
        ("stop", finished.num_stop),
        ("length", finished.num_length),
        ("abort", finished.num_abort),
        ("error", finished.num_error),
    ];
    let [model, engine] = labels;
    let samples =
        reasons.map(|(reason, count)| ([model, engine, ("finished_reason", reason)], count));
    writer.counters("vllm:request_success", "Ended sequences by reason", &samples)
}
