//! Requests made up for tests.

use super::summarize;
use crate::results::{
    Environment, LevelResult, LoadValue, Mode, RequestResult, RunConfig, RunResult, Slo,
    TokenSource,
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
    let summary = summarize(&requests, duration, slo);
    let client_lag_p99_ms = Some(0.1);
    LevelResult {
        client_lag_p99_ms,
        ..LevelResult::new(mode, LoadValue(load), duration, requests, summary)
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
    RunResult::new(label.to_owned(), config, Environment::default(), levels)
}
