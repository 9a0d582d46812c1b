//! What limits the server: waiting, decoding, prefill, KV memory.

use super::{About, Found};
use crate::report::{milliseconds, number, percent};
use crate::results::{LevelResult, Mode, RunResult, Severity};

/// A latency that grows by this factor from one level to the next has jumped.
const JUMP: f64 = 2.0;
/// A jump by less than this is noise, in seconds.
const SMALLEST_JUMP_S: f64 = 0.02;
/// Gaps that grow by less than this factor are steady.
const STEADY: f64 = 1.3;
/// Gaps that grow by this factor over all levels are what limits.
const SLOWER_DECODE: f64 = 1.5;
/// Throughput has stopped growing when it grows by less than this share of what the load does.
const FLAT_GAIN: f64 = 0.15;
/// The p99 gap over the median gap from which on something interrupts the output.
const UNEVEN_GAPS: f64 = 4.0;
/// Mean use of a GPU from which on its arithmetic is what limits, in percent.
const BUSY_GPU_PERCENT: f64 = 90.0;
/// KV memory in use from which on it limits what runs at once.
const FULL_KV: f64 = 0.95;
/// Share of requests that must meet the SLO for a level to be well.
const WELL: f64 = 0.9;

/// Returns what limits the server.
pub(super) fn findings(run: &RunResult) -> Vec<Found> {
    let mut levels: Vec<&LevelResult> =
        run.levels.iter().filter(|level| level.summary.completed > 0).collect();
    levels.sort_by(|a, b| a.value.0.total_cmp(&b.value.0));
    let rules =
        [too_slow, queue, prefill, decode, uneven_gaps, waiting, server_queue, full_kv, peak];
    let mut found: Vec<Found> = rules.iter().filter_map(|rule| rule(&levels)).collect();
    if let Some(decode) = found.iter_mut().find(|found| found.finding.category == "Decode")
        && let Some(gpu) = gpu_evidence(run)
    {
        decode.finding.evidence.push(gpu);
    }
    // What limits a server that still meets its SLO everywhere hurts nobody yet.
    if is_well_everywhere(&levels) {
        for found in &mut found {
            found.finding.severity = found.finding.severity.min(Severity::Low);
        }
    }
    found
}

fn limit(category: &str, severity: Severity, headline: String) -> Found {
    Found::new(About::Server, category, severity, headline)
}

fn is_well_everywhere(levels: &[&LevelResult]) -> bool {
    let has_slo =
        |level: &LevelResult| level.summary.slo_ttft_ms.or(level.summary.slo_tpot_ms).is_some();
    let is_well =
        |level: &LevelResult| level.summary.slo_attainment.is_some_and(|share| share >= WELL);
    !levels.is_empty() && levels.iter().all(|level| has_slo(level) && is_well(level))
}

/// Returns the typical gap between tokens: between pieces, or per token where there is one piece.
fn gap(level: &LevelResult) -> Option<f64> {
    level.summary.itl.p50.or(level.summary.tpot.p50)
}

/// Returns by which factor a figure grows from one level to another.
fn growth(
    figure: fn(&LevelResult) -> Option<f64>,
    from: &LevelResult,
    to: &LevelResult,
) -> Option<f64> {
    let from = figure(from).filter(|from| *from > 0.0)?;
    Some(figure(to)? / from)
}

/// Whether more load brings hardly more throughput.
fn is_flat(from: &LevelResult, to: &LevelResult) -> bool {
    let gain = to.summary.output_throughput / from.summary.output_throughput - 1.0;
    let more_load = (to.value.0 / from.value.0 - 1.0).min(1.0);
    gain < FLAT_GAIN * more_load
}

/// Returns the step between levels at which TTFT jumps most while gaps are steady.
fn ttft_jump<'a>(levels: &[&'a LevelResult]) -> Option<(&'a LevelResult, &'a LevelResult)> {
    let ttft: fn(&LevelResult) -> Option<f64> = |level| level.summary.ttft.p50;
    let jump = |from: &LevelResult, to: &LevelResult| -> Option<f64> {
        let factor = growth(ttft, from, to)?;
        let by = ttft(to)? - ttft(from)?;
        let is_steady = growth(gap, from, to).is_none_or(|factor| factor < STEADY);
        (factor >= JUMP && by >= SMALLEST_JUMP_S && is_steady).then_some(factor)
    };
    let steps = levels.windows(2).filter_map(|pair| Some((jump(pair[0], pair[1])?, pair)));
    let (_, pair) = steps.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((pair[0], pair[1]))
}

fn ttft_evidence(from: &LevelResult, to: &LevelResult) -> [String; 2] {
    let milliseconds = |seconds: Option<f64>| seconds.map_or_else(|| "?".to_owned(), milliseconds);
    let step = |figure: fn(&LevelResult) -> Option<f64>| {
        format!("{} → {} ms", milliseconds(figure(from)), milliseconds(figure(to)))
    };
    let (from_label, to_label) = (from.label(), to.label());
    [
        format!(
            "TTFT p50 from {from_label} to {to_label}: {}; gaps between tokens: {}.",
            step(|level| level.summary.ttft.p50),
            step(gap)
        ),
        format!(
            "Output tokens/s: {} → {}.",
            number(from.summary.output_throughput),
            number(to.summary.output_throughput)
        ),
    ]
}

/// Says so when not even the lowest load meets the SLO.
fn too_slow(levels: &[&LevelResult]) -> Option<Found> {
    let lowest = levels.first()?;
    let summary = &lowest.summary;
    let attainment = summary.slo_attainment.filter(|share| *share < WELL)?;
    let late = |name: &str, p90: Option<f64>, limit: Option<f64>| -> Option<String> {
        let (p90, limit) = (p90? * 1e3, limit?);
        (p90 > limit).then(|| format!("{name} p90 is {} ms, the SLO {limit} ms.", number(p90)))
    };
    let evidence: Vec<String> = [
        late("TTFT", summary.ttft.p90, summary.slo_ttft_ms),
        late("TPOT", summary.tpot.p90, summary.slo_tpot_ms),
    ]
    .into_iter()
    .flatten()
    .collect();
    // Where latencies are well, it is failed requests that miss the SLO.
    if evidence.is_empty() {
        return None;
    }
    let headline = format!(
        "Even at {}, the lowest load, only {} of requests meet the SLO.",
        lowest.label(),
        percent(attainment)
    );
    let found = limit("Latency", Severity::High, headline).evidence(evidence).advice(
        "A smaller or quantised model, a faster machine or shorter prompts; or another SLO.",
    );
    Some(found)
}

fn queue(levels: &[&LevelResult]) -> Option<Found> {
    let (from, to) = ttft_jump(levels)?;
    if !is_flat(from, to) {
        return None;
    }
    let headline = format!(
        "Requests wait for a place: from {} on more load only makes first tokens later.",
        to.label()
    );
    let found =
        limit("Queue/Slot", Severity::High, headline).evidence(ttft_evidence(from, to)).advice(
            "Let more sequences run at once (vLLM and mini-infer --max-num-seqs, llama.cpp -np, \
             Ollama OLLAMA_NUM_PARALLEL) and give them KV memory, or spread the load over servers.",
        );
    Some(found)
}

fn prefill(levels: &[&LevelResult]) -> Option<Found> {
    let (from, to) = ttft_jump(levels)?;
    if is_flat(from, to) {
        return None;
    }
    let headline = format!(
        "First tokens wait for other prompts from {} on, while throughput still grows.",
        to.label()
    );
    let found =
        limit("Prefill", Severity::Medium, headline).evidence(ttft_evidence(from, to)).advice(
            "Prefill is the limit: shorter prompts, a prefix cache for what they share, or more \
             arithmetic (GPU, threads).",
        );
    Some(found)
}

fn decode(levels: &[&LevelResult]) -> Option<Found> {
    let (first, rest) = levels.split_first()?;
    let slowest = rest
        .iter()
        .max_by(|a, b| f64::total_cmp(&gap(a).unwrap_or_default(), &gap(b).unwrap_or_default()))?;
    let factor = growth(gap, first, slowest)?;
    if factor < SLOWER_DECODE {
        return None;
    }
    let (fast, slow) = (gap(first)?, gap(slowest)?);
    let gain = slowest.summary.output_throughput / first.summary.output_throughput;
    let headline = format!(
        "Each token takes {} times as long at {} as at {}.",
        number(factor),
        slowest.label(),
        first.label()
    );
    let evidence = [format!(
        "Gaps between tokens (p50): {} → {} ms; output tokens/s: {} → {} ({} times).",
        milliseconds(fast),
        milliseconds(slow),
        number(first.summary.output_throughput),
        number(slowest.summary.output_throughput),
        number(gain)
    )];
    let found = limit("Decode", Severity::Medium, headline).evidence(evidence).advice(
        "Every step reads the weights once and each sequence's KV: smaller weights or KV \
         (quantised), faster memory, or fewer sequences at once.",
    );
    Some(found)
}

fn gpu_evidence(run: &RunResult) -> Option<String> {
    let of_level = run.levels.last().and_then(|level| level.gpu_telemetry.as_ref());
    let busy = of_level.or(run.gpu_telemetry.as_ref())?.avg_gpu_util?;
    let meaning = if busy >= BUSY_GPU_PERCENT { "arithmetic or memory" } else { "not arithmetic" };
    Some(format!("The GPU was {} % busy in the mean: {meaning} is the limit.", number(busy)))
}

/// Prompts of others that are computed between two steps of an output lengthen the gap there.
fn uneven_gaps(levels: &[&LevelResult]) -> Option<Found> {
    let unevenness = |level: &LevelResult| -> Option<f64> {
        let itl = &level.summary.itl;
        let (p50, p99) = (itl.p50.filter(|gap| *gap > 0.0)?, itl.p99?);
        (p99 - p50 >= SMALLEST_JUMP_S).then_some(p99 / p50)
    };
    let first = levels.first()?;
    let base = unevenness(first).unwrap_or(1.0);
    let rest = levels[1..].iter().filter_map(|level| Some((unevenness(level)?, *level)));
    let (factor, worst) = rest.max_by(|a, b| a.0.total_cmp(&b.0))?;
    if factor < UNEVEN_GAPS || factor < JUMP * base {
        return None;
    }
    let itl = &worst.summary.itl;
    let headline = format!("Other requests interrupt outputs at {}.", worst.label());
    let evidence = [format!(
        "Gaps between tokens: p50 {} ms, but p99 {} ms.",
        itl.p50.map(milliseconds)?,
        itl.p99.map(milliseconds)?
    )];
    let found = limit("Prefill", Severity::Medium, headline).evidence(evidence).advice(
        "Compute prompts in smaller chunks between the steps (vLLM and mini-infer \
         --max-num-batched-tokens, llama.cpp -ub).",
    );
    Some(found)
}

/// Returns a metric that the server tells about a level.
fn metric(level: &LevelResult, name: &str) -> Option<f64> {
    level.prometheus_metrics.as_ref()?.get(name).copied()
}

fn waiting(levels: &[&LevelResult]) -> Option<Found> {
    let waiting = |level: &LevelResult| metric(level, "num_requests_waiting").filter(|n| *n > 0.0);
    let level = levels.iter().find(|level| waiting(level).is_some())?;
    let running = metric(level, "num_requests_running")
        .map_or_else(String::new, |running| format!(" and {} running", number(running)));
    let headline = format!("The server itself reports waiting requests at {}.", level.label());
    let evidence = [format!("{} waiting{running}.", number(waiting(level)?))];
    let found = limit("Queue/Slot", Severity::High, headline)
        .evidence(evidence)
        .advice("Let more sequences run at once, give them KV memory, or add a server.");
    Some(found)
}

/// Looks at what the server says prefill took, against what the client waited.
fn server_queue(levels: &[&LevelResult]) -> Option<Found> {
    let share = |level: &LevelResult| -> Option<(f64, f64)> {
        let waited_ms = level.summary.queue_network_overhead_ms.mean?;
        let ttft_ms = level.summary.ttft.mean? * 1e3;
        (waited_ms > 50.0 && waited_ms > 0.4 * ttft_ms).then_some((waited_ms, ttft_ms))
    };
    let level = levels.iter().find(|level| share(level).is_some())?;
    let (waited_ms, ttft_ms) = share(level)?;
    let headline = format!(
        "At {} {} of the time to the first token is not prefill.",
        level.label(),
        percent(waited_ms / ttft_ms)
    );
    let evidence = [format!(
        "TTFT is {} ms in the mean, of which waiting and network take {} ms.",
        number(ttft_ms),
        number(waited_ms)
    )];
    let found = limit("Queue/Network", Severity::Medium, headline)
        .evidence(evidence)
        .advice("Let more sequences run at once, or look at the network in between.");
    Some(found)
}

fn full_kv(levels: &[&LevelResult]) -> Option<Found> {
    let used =
        |level: &LevelResult| metric(level, "gpu_cache_usage").filter(|used| *used >= FULL_KV);
    let level = levels.iter().find(|level| used(level).is_some())?;
    let headline =
        format!("KV memory is full at {}: {} in use.", level.label(), percent(used(level)?));
    let found = limit("KV Memory", Severity::High, headline)
        .advice("Give the server more KV memory, store KV in fewer bits, or shorten contexts.");
    Some(found)
}

/// Says where throughput ends, if it does within the levels.
fn peak(levels: &[&LevelResult]) -> Option<Found> {
    let throughput = |level: &LevelResult| level.summary.output_throughput;
    // Tokens asked for at a low rate say nothing about what the server could do.
    if levels.first()?.mode != Mode::Concurrency {
        return None;
    }
    let flat = levels.windows(2).find(|pair| is_flat(pair[0], pair[1]))?;
    let most = levels.iter().max_by(|a, b| throughput(a).total_cmp(&throughput(b)))?;
    let headline = format!(
        "Throughput stops growing at {}: {} output tokens/s, at most {} ({}).",
        flat[0].label(),
        number(throughput(flat[0])),
        number(throughput(most)),
        most.label()
    );
    Some(limit("Throughput", Severity::Info, headline))
}
