//! What is measured, against a server whose times are known.
//!
//! A busy machine delays both programs, and only ever makes a latency longer. So no latency may be
//! below the truth, the shortest must be within 1 ms or 1 % of it, and a median within that and
//! what server and client themselves say about their lateness. A measurement is repeated until all
//! of this holds, a few times at most: noise passes, and a figure that is computed wrongly is wrong
//! each time. Every summary is computed a second time here. One measurement runs at a time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![expect(clippy::cast_precision_loss, reason = "numbers of requests are small")]

mod failures;
mod features;
mod open_loop;
mod streams;

use servebench::mock_server::{MockConfig, MockServer};
use servebench::results::{LevelResult, RequestResult, RunConfig, Stats};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often a measurement is tried.
const MAX_ATTEMPTS: usize = 6;

/// Held by whoever measures.
static MACHINE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    // Another test's failure does not concern this one.
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is not as it should be.
#[derive(Default)]
struct Errors(Vec<String>);

impl Errors {
    /// Notes a time that is not within 1 ms or 1 % and the slack, all in milliseconds.
    fn near(&mut self, what: &str, measured: f64, truth: f64, slack: f64) {
        if (measured - truth).abs() > 1.0_f64.max(truth * 0.01) + slack {
            self.0.push(format!("{what}: {measured:.2} ms instead of {truth:.2} ms"));
        }
    }

    /// Notes a number that is not within a share of the truth.
    fn within(&mut self, what: &str, measured: f64, truth: f64, share: f64) {
        if (measured - truth).abs() > truth * share {
            self.0.push(format!("{what}: {measured} instead of {truth}"));
        }
    }
}

/// Measures until nothing is wrong.
fn measure_until_true(mut measure: impl FnMut(&mut Errors)) {
    let mut attempts = Vec::new();
    for _ in 0..MAX_ATTEMPTS {
        let mut errors = Errors::default();
        measure(&mut errors);
        if errors.0.is_empty() {
            return;
        }
        attempts.push(errors.0.join("; "));
    }
    panic!("wrong in all attempts:\n{}", attempts.join("\n"));
}

fn config(server: &MockServer) -> RunConfig {
    RunConfig {
        url: server.url(),
        model: "mock-model".to_owned(),
        input_len: 20,
        output_len: 6,
        warmup: 0,
        gpu_telemetry: false,
        timeout: 60.0,
        ..RunConfig::default()
    }
}

fn level(config: RunConfig) -> LevelResult {
    servebench::benchmark(config).unwrap().levels.remove(0)
}

/// Returns a time of every request that has it, in milliseconds, sorted.
fn times(level: &LevelResult, time: impl Fn(&RequestResult) -> Option<f64>) -> Vec<f64> {
    let mut times: Vec<f64> =
        level.requests.iter().filter_map(time).map(|seconds| seconds * 1e3).collect();
    times.sort_by(f64::total_cmp);
    times
}

fn gaps(level: &LevelResult) -> Vec<f64> {
    let gap = |pair: &[f64]| (pair[1] - pair[0]) * 1e3;
    let of_request =
        |request: &RequestResult| request.chunk_times.windows(2).map(gap).collect::<Vec<f64>>();
    let mut gaps: Vec<f64> = level.requests.iter().flat_map(of_request).collect();
    gaps.sort_by(f64::total_cmp);
    gaps
}

/// Returns a percentile with linear interpolation, as numpy has it.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let place = percent * (sorted.len() - 1);
    let (below, above) = (sorted[place / 100], sorted[place.div_ceil(100)]);
    below + (above - below) * (place % 100) as f64 / 100.0
}

/// Returns by how much server and client say that they were late, in milliseconds.
fn slack(server: &MockServer, level: &LevelResult) -> f64 {
    server.stats().write_late_p99_ms + level.client_lag_p99_ms.unwrap()
}

/// Checks a distribution of a summary, in seconds, against the times that it describes.
fn check_stats(stats: &Stats, sorted_ms: &[f64]) {
    let worst = &sorted_ms[sorted_ms.len() - sorted_ms.len().div_ceil(10)..];
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let expected = [
        (stats.mean, mean(sorted_ms)),
        (stats.p50, percentile(sorted_ms, 50)),
        (stats.p90, percentile(sorted_ms, 90)),
        (stats.p99, percentile(sorted_ms, 99)),
        (stats.max, sorted_ms[sorted_ms.len() - 1]),
        (stats.worst10_mean, mean(worst)),
    ];
    for (got, expected) in expected {
        assert!((got.unwrap() * 1e3 - expected).abs() < 1e-6, "{stats:?} {expected}");
    }
    assert_eq!(stats.count, sorted_ms.len());
}

/// Times of requests with six tokens each.
#[derive(Clone, Copy)]
struct Truth {
    ttft_ms: f64,
    itl_ms: f64,
}

impl Truth {
    const NUM_TOKENS: f64 = 6.0;

    fn e2e_ms(self) -> f64 {
        self.ttft_ms + 5.0 * self.itl_ms
    }

    fn server(self) -> MockConfig {
        MockConfig { ttft_ms: self.ttft_ms, itl_ms: self.itl_ms, ..MockConfig::default() }
    }
}
