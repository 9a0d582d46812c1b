//! Requests made up for tests.

use super::summarize;
use crate::results::{
    Environment, LevelResult, LoadValue, Mode, RequestResult, RunConfig, RunResult, SCHEMA_VERSION,
    Slo, TokenSource,
};
use rand::RngExt;
use rand::rngs::StdRng;

/// Returns a request whose tokens come one in a piece, `gap` apart after the first, all in seconds.
pub(crate) fn even_request(
    index: usize,
    start: f64,
    ttft: f64,
    gap: f64,
    num_tokens: u32,
) -> RequestResult {
    let chunk_times: Vec<f64> = (0..num_tokens).map(|i| ttft + f64::from(i) * gap).collect();
    RequestResult {
        index,
        start,
        ok: true,
        ttft: Some(ttft),
        e2e: chunk_times.last().copied(),
        chunk_times,
        prompt_tokens: Some(100),
        output_tokens: u64::from(num_tokens),
        token_source: TokenSource::Usage,
        ..RequestResult::default()
    }
}

/// Returns a request that failed.
pub(crate) fn failed_request(index: usize, start: f64, error: &str) -> RequestResult {
    RequestResult { index, start, error: Some(error.to_owned()), ..RequestResult::default() }
}

/// Returns requests with random times; one in ten fails.
pub(crate) fn random_requests(rng: &mut StdRng, count: usize) -> Vec<RequestResult> {
    let mut start = 0.0;
    (0..count)
        .map(|index| {
            start += rng.random_range(0.0..0.2);
            if rng.random_bool(0.1) {
                return failed_request(index, start, "HTTP 500: overloaded");
            }
            let (ttft, gap) = (rng.random_range(0.01..1.0), rng.random_range(0.001..0.1));
            even_request(index, start, ttft, gap, rng.random_range(1..40))
        })
        .collect()
}

/// Returns a level of these requests that ran once.
pub(crate) fn level_of(
    mode: Mode,
    load: f64,
    requests: Vec<RequestResult>,
    duration: f64,
    slo: Slo,
) -> LevelResult {
    LevelResult {
        mode,
        value: LoadValue(load),
        duration,
        client_lag_p99_ms: Some(0.1),
        client_cpu_share: None,
        summary: summarize(&requests, duration, slo),
        requests,
        repeat_count: 1,
        repeats: None,
        repeat_metrics: None,
        gpu_telemetry: None,
        prometheus_metrics: None,
        bottlenecks: None,
        num_interrupted: None,
    }
}

/// Returns a run of these levels.
pub(crate) fn run_of(label: &str, levels: Vec<LevelResult>) -> RunResult {
    let mode = levels.first().map_or(Mode::Concurrency, |level| level.mode);
    let config = RunConfig {
        url: "http://127.0.0.1:8000/v1".to_owned(),
        model: "small".to_owned(),
        mode,
        levels: levels.iter().map(|level| level.value).collect(),
        ..RunConfig::default()
    };
    RunResult {
        schema_version: SCHEMA_VERSION,
        label: label.to_owned(),
        config,
        environment: Environment::default(),
        levels,
        capacity: None,
        gpu_telemetry: None,
        bottleneck_diagnosis: None,
        goodput_at: None,
        interrupted: false,
    }
}
