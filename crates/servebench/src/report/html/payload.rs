//! What the page's script knows of the runs, as JSON.
//!
//! Requests are columns of whole microseconds, not objects, and no request brings the times of its
//! pieces: 20,000 requests take less than 1 MB. Latencies are rounded *up*, so that comparing one
//! with an SLO of whole microseconds gives exactly what the unrounded one gives. Gaps between
//! pieces come as quantiles, throughput over time as sums over equal stretches of time.

use super::super::{caption, number};
use super::notice;
use crate::results::{LevelResult, Mode, RequestResult, RunResult, Stats};
use crate::statistics::{as_f64, percentile, tokens_as_f64};
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
        Self {
            label: run.label.clone(),
            engine: caption::engine(run),
            slo_ttft_ms: run.config.slo_ttft_ms,
            slo_tpot_ms: run.config.slo_tpot_ms,
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
    // 0.07 ms times 1000 is a little more than 70: rounding that up at once would move it to 71.
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
    gaps.sort_by(f64::total_cmp);
    let at = |percentage| percentile(&gaps, percentage).map(|gap| rounded(gap * 1000.0));
    GAP_PERCENTAGES.into_iter().filter_map(at).collect()
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
        reason = "there are at most MAX_STRETCHES stretches"
    )]
    fn new(requests: &[RequestResult], duration: f64) -> Self {
        let stretch_s = stretch_length(duration);
        let num_stretches = ((duration / stretch_s).ceil() as usize).max(1);
        let mut tokens = vec![0.0; num_stretches];
        for request in requests.iter().filter(|request| !request.chunk_times.is_empty()) {
            let tokens_per_piece =
                tokens_as_f64(request.output_tokens) / as_f64(request.chunk_times.len());
            for time in &request.chunk_times {
                let stretch = ((request.start + time) / stretch_s) as usize;
                tokens[stretch.min(num_stretches - 1)] += tokens_per_piece;
            }
        }
        let throughput = tokens.iter().enumerate().map(|(i, tokens)| {
            let length = (duration - as_f64(i) * stretch_s).min(stretch_s);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Slo;
    use crate::statistics::sample_requests::{even_request, level_of, random_requests};
    use crate::statistics::{meets_slo, merge_repeats};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    /// Counts as the script does.
    fn num_good(requests: &Requests, slo: Slo) -> usize {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test's SLO")]
        let most = |ms: Option<f64>| ms.map_or(u64::MAX, |ms| (ms * 1000.0).round() as u64);
        let (most_ttft, most_tpot) = (most(slo.ttft_ms), most(slo.tpot_ms));
        let failed: Vec<usize> = requests.failed.iter().map(|(i, _)| *i).collect();
        (0..requests.ttft.len())
            .filter(|i| {
                !failed.contains(i)
                    && requests.ttft[*i].is_some_and(|ttft| ttft <= most_ttft)
                    && requests.tpot[*i].is_none_or(|tpot| tpot <= most_tpot)
            })
            .count()
    }

    #[test]
    fn rounded_times_meet_an_slo_exactly_when_the_unrounded_do() {
        let mut rng = StdRng::seed_from_u64(7);
        let requests = random_requests(&mut rng, 300);
        let columns = Requests::new(&requests);
        // Limits at, just above and just below what was measured, in whole microseconds.
        for request in requests.iter().filter(|request| request.ok) {
            let near = |seconds: Option<f64>| seconds.map(|s| (s * 1e6).round() / 1e3);
            for shift in [-0.001, 0.0, 0.001] {
                let shifted = |ms: Option<f64>| ms.map(|ms| ((ms + shift) * 1e3).round() / 1e3);
                let slo = Slo {
                    ttft_ms: shifted(near(request.ttft)),
                    tpot_ms: shifted(near(request.tpot())),
                };
                let expected = requests.iter().filter(|request| meets_slo(request, slo)).count();
                assert_eq!(num_good(&columns, slo), expected, "{slo:?}");
            }
        }
    }

    #[test]
    fn times_grow_by_less_than_a_microsecond() {
        for microseconds in [0_u32, 1, 7, 70, 290, 1001, 123_457, 4_000_003] {
            for part in [0.0, 0.1, 0.5, 0.999] {
                let exact = f64::from(microseconds) + part;
                let up = tokens_as_f64(microseconds_up(exact / 1e6));
                assert!(up > exact - 1e-6 && up < exact + 1.0 + 1e-6, "{exact} became {up}");
            }
        }
    }

    #[test]
    fn repeats_are_told_apart_and_hold_all_tokens() {
        let part = |num_requests: usize, duration: f64| {
            let requests = (0..num_requests).map(|i| even_request(i, 0.0, 0.1, 0.05, 21)).collect();
            level_of(Mode::Concurrency, 2.0, requests, duration, Slo::default())
        };
        let level = merge_repeats(vec![part(3, 1.1), part(2, 1.2)], Slo::default()).unwrap();
        let repeats = repeats(&level);
        let sizes: Vec<usize> = repeats.iter().map(|repeat| repeat.num_requests).collect();
        assert_eq!(sizes, [3, 2]);
        for repeat in repeats {
            let length =
                |i: usize| (repeat.duration_s - as_f64(i) * repeat.stretch_s).min(repeat.stretch_s);
            let tokens: f64 =
                repeat.throughput.iter().enumerate().map(|(i, rate)| rate * length(i)).sum();
            assert!((tokens - as_f64(repeat.num_requests * 21)).abs() < 0.01, "{tokens}");
        }
    }

    #[test]
    fn throughput_over_time_has_few_stretches_of_round_length() {
        for (duration, expected) in
            [(0.3, 0.05), (5.0, 0.05), (9.0, 0.1), (60.0, 1.0), (3600.0, 50.0)]
        {
            let length = stretch_length(duration);
            assert!((length - expected).abs() < 1e-9, "{duration} s: {length}");
            assert!(duration / length <= MAX_STRETCHES);
        }
    }

    #[test]
    fn levels_are_in_order_of_load() {
        let level = |load| level_of(Mode::Concurrency, load, Vec::new(), 1.0, Slo::default());
        let levels = vec![level(4.0), level(f64::INFINITY), level(1.0), level(3.0)];
        let run = crate::statistics::sample_requests::run_of("label", levels);
        let loads: Vec<f64> = by_load(&run).iter().map(|level| level.value.0).collect();
        assert_eq!(loads, [1.0, 3.0, 4.0, f64::INFINITY]);
    }
}
