//! What a reader must know before believing the figures.
//!
//! Runs whose load, prompts or machine differ are not comparable, and the page says so above all
//! figures; so it does when the client was the bottleneck, requests failed, or tokens were guessed.

use super::configuration;
use super::payload::by_load;
use crate::results::{LengthDist, LevelResult, RequestResult, RunResult, TokenSource};
use std::collections::BTreeSet;

/// A client that lets events wait longer than this distorts latencies of tens of milliseconds.
const MAX_CLIENT_LAG_MS: f64 = 10.0;

/// A client this busy may be what limits the throughput.
const MAX_CLIENT_CPU_SHARE: f64 = 0.9;

/// Outputs shorter than this share of what was asked are another load than was asked.
const MIN_OUTPUT_SHARE: f64 = 0.95;

/// With fewer requests the 99th percentile is nearly the slowest request.
const MIN_REQUESTS_FOR_P99: usize = 100;

/// Returns what a reader must know, what matters most first.
pub(super) fn notices(runs: &[RunResult]) -> Vec<String> {
    let mut notices = configuration::differences(runs);
    for run in runs {
        notices.extend(run_notices(run).into_iter().map(|text| format!("{}: {text}", run.label)));
    }
    let levels = || runs.iter().flat_map(|run| &run.levels);
    let num_small = levels().filter(|level| level.requests.len() < MIN_REQUESTS_FOR_P99).count();
    if num_small > 0 {
        notices.push(format!(
            "{num_small} of {} loads have fewer than {MIN_REQUESTS_FOR_P99} requests: their p99 is \
             close to the slowest single request",
            levels().count()
        ));
    }
    notices
}

/// Returns what kind of error ended a request: what comes before the first colon.
pub(super) fn error_kind(request: &RequestResult) -> String {
    let error = request.error.as_deref().unwrap_or("unknown");
    error.split(':').next().unwrap_or(error).trim().to_owned()
}

fn run_notices(run: &RunResult) -> Vec<String> {
    let mut notices = Vec::new();
    if run.interrupted {
        notices.push(
            "stopped before its end; the figures are of what was measured until then".to_owned(),
        );
    }
    let levels = by_load(run);
    let mut at = |text: &str, is_so: &dyn Fn(&LevelResult) -> bool| {
        let labels: Vec<String> =
            levels.iter().filter(|level| is_so(level)).map(|level| level.label()).collect();
        if !labels.is_empty() {
            notices.push(format!("{text} (at {})", labels.join(", ")));
        }
    };
    at("requests failed; latencies are of those that did not", &|level| level.summary.failed > 0);
    at("the client was late to read, so latencies may be its own", &|level| {
        level.client_lag_p99_ms.is_some_and(|lag| lag > MAX_CLIENT_LAG_MS)
    });
    at(
        "the client had little processor time left and may be what limits the throughput",
        &|level| level.client_cpu_share.is_some_and(|share| share > MAX_CLIENT_CPU_SHARE),
    );
    at("outputs are shorter than was asked, so the load is not what it says", &|level| {
        has_short_outputs(run, level)
    });
    at("tokens are counted as pieces of text, because the server sends no usage", &|level| {
        level
            .requests
            .iter()
            .any(|request| request.ok && request.token_source == TokenSource::Chunks)
    });
    notices
}

/// Tells whether outputs that were to have one full length are shorter in the mean.
fn has_short_outputs(run: &RunResult, level: &LevelResult) -> bool {
    let config = &run.config;
    let has_one_length = config.ignore_eos
        && config.trace.is_none()
        && config.output_dist.is_none_or(|dist| dist == LengthDist::Fixed);
    has_one_length
        && level
            .summary
            .output_tokens_mean
            .is_some_and(|mean| mean < MIN_OUTPUT_SHARE * f64::from(config.output_len))
}

/// Returns the kinds of error of a run.
pub(super) fn error_kinds(run: &RunResult) -> BTreeSet<String> {
    let failed = run.levels.iter().flat_map(|level| &level.requests).filter(|r| !r.ok);
    failed.map(error_kind).collect()
}
