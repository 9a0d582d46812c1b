//! What the page's script knows of the runs, as JSON.
//!
//! Requests are columns of whole microseconds, not objects, and no request brings the times of its
//! pieces: 20,000 requests take less than 1 MB. Latencies are rounded *up*, so that comparing one
//! with an SLO of whole microseconds gives exactly what the unrounded one gives. Gaps between
//! pieces come as quantiles, throughput over time as sums over equal stretches of time.

use super::super::{caption, number};
use super::notice;
use crate::results::{GoodputAt, LevelResult, Mode, RequestResult, RunResult, Stats};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Most stretches of time into which the throughput of a level is summed.
const MAX_STRETCHES: f64 = 100.0;

/// Percentages at which the gaps between pieces are described.
const GAP_PERCENTAGES: [f64; 25] = [
    0.0, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0, 55.0, 60.0, 65.0,
    70.0, 75.0, 80.0, 85.0, 90.0, 95.0, 99.0, 99.9, 100.0,
];

/// What the script knows.
#[derive(Serialize)]
pub(super) struct Payload {
    gap_percentages: [f64; 25],
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    label: String,
    engine: String,
    slo_ttft_ms: Option<f64>,
    slo_tpot_ms: Option<f64>,
    capacity: Option<String>,
    capacity_load: Option<f64>,
    goodput_at: Vec<GoodputAt>,
    levels: Vec<Level>,
}

/// Times in milliseconds, but for the columns of the requests.
#[derive(Serialize)]
struct Level {
    mode: Mode,
    /// Nothing for infinity, which JSON does not have.
    load: Option<f64>,
    name: String,
    duration_s: f64,
    completed: usize,
    failed: usize,
    output_throughput: f64,
    request_throughput: f64,
    ttft: Spread,
    tpot: Spread,
    itl: Spread,
    e2e: Spread,
    tokens_mean: Option<f64>,
    client_lag_ms: Option<f64>,
    /// Mean and both ends of the confidence interval, in the unit of the metric in `run.json`.
    confidence: BTreeMap<String, (f64, f64, f64)>,
    gaps: Vec<f64>,
    repeats: Vec<Repeat>,
    requests: Requests,
}

#[derive(Serialize)]
struct Spread {
    mean: Option<f64>,
    p50: Option<f64>,
    p90: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
    worst10: Option<f64>,
}

/// One run of the level: the next `num_requests` of its requests.
#[derive(Serialize)]
struct Repeat {
    num_requests: usize,
    duration_s: f64,
    stretch_s: f64,
    /// Output tokens per second in each stretch.
    throughput: Vec<f64>,
}

/// Requests by column; times in microseconds since the request was due.
#[derive(Serialize)]
struct Requests {
    start: Vec<u64>,
    ttft: Vec<Option<u64>>,
    tpot: Vec<Option<u64>>,
    /// When it ended; for one that failed, when it was last heard of.
    end: Vec<Option<u64>>,
    tokens: Vec<u64>,
    /// Number of each request that failed, and why.
    failed: Vec<(usize, String)>,
    /// Turn in its conversation, when there are conversations.
    turn: Vec<Option<usize>>,
}

impl Payload {
    /// Sums up the runs for the script.
    pub(super) fn new(runs: &[RunResult]) -> Self {
        Self { gap_percentages: GAP_PERCENTAGES, runs: runs.iter().map(Run::new).collect() }
    }

    /// Returns the JSON in a form that cannot end the element around it, whatever the texts are.
    pub(super) fn to_inert_json(&self) -> String {
        let json = serde_json::to_string(self)
            .expect("a payload has only text keys and finite numbers, which JSON can say");
        // These signs occur only inside texts, where an escape means the same.
        json.replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026")
            .replace('\u{2028}', "\\u2028")
            .replace('\u{2029}', "\\u2029")
    }
}

/// Returns the levels of a run by load; a search for capacity measures them in another order.
pub(super) fn by_load(run: &RunResult) -> Vec<&LevelResult> {
    let mut levels: Vec<&LevelResult> = run.levels.iter().collect();
    let key = |level: &LevelResult| (matches!(level.mode, Mode::Rate), level.value);
    levels.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(Ordering::Equal));
    levels
}

impl Run {
    fn new(run: &RunResult) -> Self {
        let capacity = run.capacity.as_ref();
        Self {
            label: run.label.clone(),
            engine: caption::engine(run),
            slo_ttft_ms: run.config.slo_ttft_ms,
            slo_tpot_ms: run.config.slo_tpot_ms,
            capacity: capacity.map(caption::capacity),
            capacity_load: capacity.and_then(|capacity| capacity.capacity),
            goodput_at: run.goodput_at.clone().unwrap_or_default(),
            levels: by_load(run).into_iter().map(Level::new).collect(),
        }
    }
}

impl Level {
    fn new(level: &LevelResult) -> Self {
        let summary = &level.summary;
        let load = level.value.0;
        let confidence = level.repeat_metrics.iter().flatten().filter_map(|(name, metric)| {
            metric.ci95.map(|(low, high)| (name.clone(), (metric.mean, low, high)))
        });
        Self {
            mode: level.mode,
            load: load.is_finite().then_some(load),
            name: number::exact(load),
            duration_s: level.duration,
            completed: summary.completed,
            failed: summary.failed,
            output_throughput: summary.output_throughput,
            request_throughput: summary.request_throughput,
            ttft: Spread::new(&summary.ttft),
            tpot: Spread::new(&summary.tpot),
            itl: Spread::new(&summary.itl),
            e2e: Spread::new(&summary.e2e),
            tokens_mean: summary.output_tokens_mean,
            client_lag_ms: level.client_lag_p99_ms,
            confidence: confidence.collect(),
            gaps: gap_quantiles(&level.requests),
            repeats: repeats(level),
            requests: Requests::new(&level.requests),
        }
    }
}

impl Spread {
    fn new(stats: &Stats) -> Self {
        let ms = |seconds: Option<f64>| seconds.map(|seconds| rounded(seconds * 1000.0));
        Self {
            mean: ms(stats.mean),
            p50: ms(stats.p50),
            p90: ms(stats.p90),
            p99: ms(stats.p99),
            max: ms(stats.max),
            worst10: ms(stats.worst10_mean),
        }
    }
}

impl Requests {
    fn new(requests: &[RequestResult]) -> Self {
        let column = |time: fn(&RequestResult) -> Option<f64>| {
            requests.iter().map(|request| time(request).map(microseconds_up)).collect()
        };
        let failed = requests.iter().enumerate().filter(|(_, request)| !request.ok);
        let has_turns = requests.iter().any(|request| request.turn.is_some());
        Self {
            start: requests.iter().map(|request| microseconds_up(request.start)).collect(),
            ttft: column(|request| request.ttft),
            tpot: column(RequestResult::tpot),
            end: column(|request| {
                request.e2e.or_else(|| request.chunk_times.last().copied()).or(request.ttft)
            }),
            tokens: requests.iter().map(|request| request.output_tokens).collect(),
            failed: failed.map(|(i, request)| (i, notice::error_kind(request))).collect(),
            turn: if has_turns { requests.iter().map(|r| r.turn).collect() } else { Vec::new() },
        }
    }
}

/// Returns whole microseconds, rounded up from the milliseconds that an SLO is compared with.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates: a time below zero is none, one beyond 500,000 years is no time"
)]
fn microseconds_up(seconds: f64) -> u64 {
    let ms = seconds * 1000.0;
    let nearest = (ms * 1000.0).round();
    // What was measured in whole microseconds must not move by an error of the multiplication.
    let up = if nearest / 1000.0 >= ms { nearest } else { nearest + 1.0 };
    up as u64
}

/// Returns a number to a thousandth.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Returns the gaps between pieces of requests that ended well, in milliseconds, at
/// [`GAP_PERCENTAGES`]; nothing when there is no gap.
fn gap_quantiles(requests: &[RequestResult]) -> Vec<f64> {
    let ended_well = requests.iter().filter(|request| request.ok);
    let mut gaps: Vec<f64> = ended_well.flat_map(RequestResult::inter_token_latencies).collect();
    if gaps.is_empty() {
        return Vec::new();
    }
    gaps.sort_by(f64::total_cmp);
    GAP_PERCENTAGES.iter().map(|&percentage| rounded(at(&gaps, percentage) * 1000.0)).collect()
}

/// Returns the value at a percentage of sorted values, linear between neighbours.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a place within the values"
)]
fn at(sorted: &[f64], percentage: f64) -> f64 {
    let place = (sorted.len() - 1) as f64 * percentage / 100.0;
    let below = place as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// Returns the repeats of a level; a level that ran once is one repeat.
fn repeats(level: &LevelResult) -> Vec<Repeat> {
    let known: Vec<(usize, f64)> = level
        .repeats
        .iter()
        .flatten()
        .map(|repeat| (repeat.completed + repeat.failed, repeat.duration))
        .collect();
    let num_known: usize = known.iter().map(|(num_requests, _)| num_requests).sum();
    // Repeats that do not add up to the requests cannot be told apart.
    let parts = if !known.is_empty() && num_known == level.requests.len() {
        known
    } else {
        vec![(level.requests.len(), level.duration)]
    };
    let mut rest = level.requests.as_slice();
    let split = parts.into_iter().map(|(num_requests, duration)| {
        let (requests, others) = rest.split_at(num_requests);
        rest = others;
        Repeat::new(requests, duration)
    });
    split.collect()
}

impl Repeat {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "there are at most MAX_STRETCHES stretches, and no run has 2^52 tokens"
    )]
    fn new(requests: &[RequestResult], duration: f64) -> Self {
        let stretch_s = stretch_length(duration);
        let num_stretches = ((duration / stretch_s).ceil() as usize).max(1);
        let mut tokens = vec![0.0; num_stretches];
        for request in requests.iter().filter(|request| !request.chunk_times.is_empty()) {
            let tokens_per_piece = request.output_tokens as f64 / request.chunk_times.len() as f64;
            for time in &request.chunk_times {
                let stretch = ((request.start + time) / stretch_s) as usize;
                tokens[stretch.min(num_stretches - 1)] += tokens_per_piece;
            }
        }
        let throughput = tokens.iter().enumerate().map(|(i, tokens)| {
            let length = (duration - i as f64 * stretch_s).min(stretch_s);
            if length > 0.0 { rounded(tokens / length) } else { 0.0 }
        });
        Self {
            num_requests: requests.len(),
            duration_s: duration,
            stretch_s,
            throughput: throughput.collect(),
        }
    }
}

/// Returns the shortest of 1, 2, 5, 10, 20 … times 50 ms that divides `duration` into at most
/// [`MAX_STRETCHES`].
fn stretch_length(duration: f64) -> f64 {
    let mut length = 0.05;
    for factor in [2.0, 2.5, 2.0].into_iter().cycle() {
        if duration / length <= MAX_STRETCHES {
            break;
        }
        length *= factor;
    }
    length
}
