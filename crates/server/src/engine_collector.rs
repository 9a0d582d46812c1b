//! The engine's numbers for Prometheus, read from its last snapshot at scrape time.
//!
//! Costs the engine nothing: a scrape copies the snapshot and formats it on its own thread.

use crate::engine_monitor::EngineMonitor;
use crate::metric_writer::MetricWriter;
use crate::tiers::{KvDetails, TierReport};
use mini_infer_engine::{EngineCounters, EngineStats, KvStats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Reads the engine's snapshot at scrape time.
#[derive(Clone, Default)]
pub(crate) struct EngineCollector {
    source: Arc<OnceLock<Source>>,
}

/// Where the numbers come from.
struct Source {
    monitor: Arc<EngineMonitor>,
    kv: KvDetails,
}

impl EngineCollector {
    /// Reads from `monitor` and `kv` from here on.
    pub(crate) fn watch(&self, monitor: Arc<EngineMonitor>, kv: KvDetails) {
        // A server has one engine for its whole life; the caller asserts it.
        let _ = self.source.set(Source { monitor, kv });
    }
}

impl fmt::Debug for EngineCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineCollector").finish_non_exhaustive()
    }
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(Source { monitor, kv }) = self.source.get() else {
            return Ok(());
        };
        let writer = &mut MetricWriter { encoder: &mut encoder };
        encode_stats(writer, &monitor.stats())?;
        encode_tiers(writer, &kv.tier_reports())?;
        let without_progress = monitor.time_without_progress().as_secs_f64();
        let help = "Time since the engine last ended a step while it has work";
        writer.gauge_seconds("time_without_progress", help, without_progress)?;
        let help = "Time of one engine step";
        writer.histogram_seconds("step_time", help, &monitor.step_time())?;
        let help = "Time of the parts of engine steps, and of what is done between them";
        writer.histograms_seconds("step_phase_time", help, &monitor.phases().samples())
    }
}

fn encode_stats(writer: &mut MetricWriter<'_, '_>, stats: &EngineStats) -> fmt::Result {
    let EngineStats { num_running_seqs, num_waiting_seqs, num_waiting_requests, .. } = *stats;
    let help = "Sequences that take part in steps";
    writer.gauge("running_sequences", help, num_running_seqs.into())?;
    let help = "Sequences that wait, preempted ones included";
    writer.gauge("waiting_sequences", help, num_waiting_seqs.into())?;
    let help = "Requests of which no sequence has run yet";
    writer.gauge("waiting_requests", help, num_waiting_requests.into())?;
    let help = "Steps in a row in which no sequence of those there were ran";
    writer.gauge("steps_without_progress", help, stats.num_steps_without_progress.into())?;
    encode_kv(writer, &stats.kv)?;
    encode_counters(writer, &stats.counters)
}

fn encode_kv(writer: &mut MetricWriter<'_, '_>, kv: &KvStats) -> fmt::Result {
    writer.gauge("kv_pool_blocks", "Blocks in the KV pool", kv.num_blocks.into())?;
    let states = [
        ([("state", "free")], kv.num_free_blocks.into()),
        ([("state", "active")], kv.num_active_blocks.into()),
        ([("state", "cached")], kv.num_cached_blocks.into()),
    ];
    writer.gauges("kv_blocks", "KV blocks by state", &states)?;
    let help = "Active KV blocks that more than one sequence holds";
    writer.gauge("kv_shared_blocks", help, kv.num_shared_blocks.into())?;
    writer.gauge("kv_allocated_slots", "KV slots in active blocks", kv.num_allocated_slots)?;
    let help = "Tokens whose KV lies in active blocks";
    writer.gauge("kv_live_tokens", help, kv.num_live_tokens)?;
    writer.gauge("kv_shared_tokens", "Slots saved by sharing blocks", kv.num_shared_tokens)?;
    let causes = [
        ([("cause", "reserved")], kv.waste.reserved_slots),
        ([("cause", "internal")], kv.waste.internal_slots),
        ([("cause", "external")], kv.waste.external_slots),
    ];
    let help = "Allocated KV slots that hold no token, by cause";
    writer.gauges("kv_waste_slots", help, &causes)?;
    let help = "Blocks copied before they were written to, or because a hit ended inside them";
    writer.counter("kv_copied_blocks", help, kv.num_copied_blocks)?;
    let help = "Cached blocks whose content was dropped or handed to a tier";
    writer.counter("kv_evicted_blocks", help, kv.num_evicted_blocks)
}

fn encode_counters(writer: &mut MetricWriter<'_, '_>, counters: &EngineCounters) -> fmt::Result {
    let tokens = [
        ([("kind", "prompt")], counters.num_prompt_tokens),
        ([("kind", "output")], counters.num_output_tokens),
    ];
    writer.counters("tokens", "Tokens of admitted prompts, and tokens generated", &tokens)?;
    let finished = &counters.finished;
    let reasons = [
        ([("reason", "stop")], finished.num_stop),
        ([("reason", "length")], finished.num_length),
        ([("reason", "abort")], finished.num_abort),
        ([("reason", "error")], finished.num_error),
    ];
    let help = "Ended sequences by reason; stop and length are the successful ones";
    writer.counters("finished_sequences", help, &reasons)?;
    let help = "Prompt tokens looked up in the prefix cache";
    writer.counter("prefix_cache_queried_tokens", help, counters.num_queried_tokens)?;
    let help = "Prompt tokens found in the prefix cache";
    writer.counter("prefix_cache_hit_tokens", help, counters.num_hit_tokens)?;
    let help = "Tokens whose KV a tier gave back instead of being computed again";
    writer.counter("kv_restored_tokens", help, counters.num_restored_tokens)?;
    let help = "Sequences that took over the KV of a sibling";
    writer.counter("forked_sequences", help, counters.num_forks)?;
    writer.counter("steps", "Steps that ran the executor", counters.num_steps)?;
    let help = "Times a running sequence lost its blocks";
    writer.counter("preemptions", help, counters.num_preemptions)?;
    let help = "Requests refused because the queue was full";
    writer.counter("refused_requests", help, counters.num_refused_requests)
}

/// Writes what the tiers tell; nothing where there are none.
fn encode_tiers(writer: &mut MetricWriter<'_, '_>, tiers: &[TierReport]) -> fmt::Result {
    if tiers.is_empty() {
        return Ok(());
    }
    let each = |value: fn(&TierReport) -> u64| -> Vec<_> {
        tiers.iter().map(|tier| ([("tier", tier.name)], value(tier))).collect()
    };
    let held = each(|tier| tier.num_held_blocks);
    writer.gauges("kv_tier_blocks", "Blocks that a tier holds", &held)?;
    let held = each(|tier| tier.held_bytes);
    writer.gauges("kv_tier_used_bytes", "Bytes that a tier takes", &held)?;
    let capacity = each(|tier| tier.capacity_bytes);
    writer.gauges("kv_tier_capacity_bytes", "Bytes that a tier may take", &capacity)?;
    let queued = each(|tier| tier.num_queued_blocks);
    writer.gauges("kv_tier_queued_blocks", "Blocks that wait to be written", &queued)?;
    let paused = each(|tier| tier.is_paused.into());
    writer.gauges("kv_tier_paused", "1 while a tier takes no blocks after failures", &paused)?;
    let saved = each(|tier| tier.num_saved_blocks);
    writer.counters("kv_tier_saved_blocks", "Blocks saved to a tier", &saved)?;
    let restored = each(|tier| tier.num_restored_blocks);
    writer.counters("kv_tier_restored_blocks", "Blocks restored from a tier", &restored)?;
    let evicted = each(|tier| tier.num_evicted_blocks);
    writer.counters("kv_tier_evicted_blocks", "Blocks that a tier evicted", &evicted)?;
    let by = |label: &'static str, counts: fn(&TierReport) -> &[(&'static str, u64)]| {
        let mut samples = Vec::new();
        for tier in tiers {
            let counts = counts(tier).iter();
            samples.extend(
                counts.map(|(value, count)| ([("tier", tier.name), (label, *value)], *count)),
            );
        }
        samples
    };
    let dropped = by("cause", |tier| &tier.dropped);
    let help = "Blocks offered to a tier and not kept, by cause";
    writer.counters("kv_tier_dropped_blocks", help, &dropped)?;
    let refused = by("cause", |tier| &tier.refused);
    let help = "Blocks that a tier had and would not restore, by cause";
    writer.counters("kv_tier_refused_blocks", help, &refused)?;
    let errors = by("operation", |tier| &tier.errors);
    writer.counters("kv_tier_errors", "Failures of a tier's device, by operation", &errors)
}
