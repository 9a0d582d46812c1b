//! The requests of one run of a level in a few numbers.

use super::attainment::num_meeting;
use super::distribution::stats;
use super::steady_state::steady_state;
use super::{as_f64, tokens_as_f64};
use crate::results::{RequestResult, Slo, Stats, Summary, TokenSource};
use std::collections::BTreeMap;

/// Returns the requests of one run of a level in a few numbers. `duration` in seconds; without a
/// duration there is no throughput.
///
/// For a level that ran several times, see [`merge_repeats`](super::merge_repeats): the times of
/// each run count from its own start.
#[must_use]
pub fn summarize(requests: &[RequestResult], duration: f64, slo: Slo) -> Summary {
    let completed: Vec<&RequestResult> = requests.iter().filter(|request| request.ok).collect();
    let per_second = |amount: f64| if duration > 0.0 { amount / duration } else { 0.0 };
    let num_completed = as_f64(completed.len());
    let output_tokens =
        tokens_as_f64(completed.iter().map(|request| request.output_tokens).sum::<u64>());
    let prompt_tokens: Option<u64> =
        completed.iter().map(|request| request.prompt_tokens).sum::<Option<u64>>();
    let num_pieces = as_f64(completed.iter().map(|request| request.chunk_times.len()).sum());
    let num_reasoning = as_f64(completed.iter().map(|request| request.reasoning_chunks).sum());
    let num_good = num_meeting(requests, slo);
    let steady = steady_state(requests);
    let of = |figure: fn(&RequestResult) -> Option<f64>| -> Stats {
        stats(completed.iter().filter_map(|request| figure(request)))
    };
    Summary {
        completed: completed.len(),
        failed: requests.len() - completed.len(),
        errors: errors_by_kind(requests),
        duration,
        request_throughput: per_second(num_completed),
        output_throughput: per_second(output_tokens),
        input_throughput: prompt_tokens
            .filter(|_| !completed.is_empty())
            .map(|sum| per_second(tokens_as_f64(sum))),
        steady_state_request_throughput: steady.map(|steady| steady.requests_per_s),
        steady_state_output_throughput: steady.map(|steady| steady.output_tokens_per_s),
        goodput: per_second(as_f64(num_good)),
        slo_attainment: share(as_f64(num_good), as_f64(requests.len())),
        slo_ttft_ms: slo.ttft_ms,
        slo_tpot_ms: slo.tpot_ms,
        ttft: of(|request| request.ttft),
        tpot: of(RequestResult::tpot),
        itl: stats(completed.iter().flat_map(|request| request.inter_token_latencies())),
        e2e: of(|request| request.e2e),
        normalised_latency: of(RequestResult::normalised_latency),
        // Failed requests were sent too, and a client that is late is late for them as well.
        send_delay: stats(requests.iter().filter_map(|request| request.send_delay)),
        output_tokens_mean: share(output_tokens, num_completed),
        tokens_per_chunk: share(output_tokens, num_pieces),
        token_sources: token_sources(&completed),
        cached_share: cached_share(&completed),
        reasoning_share: share(num_reasoning, num_pieces),
        answer_start: of(|request| request.answer_start),
        server_prefill_ms: of(|request| request.server_prefill_ms),
        server_decode_ms: of(|request| request.server_decode_ms),
        queue_network_overhead_ms: of(|request| request.queue_network_overhead_ms),
        gpu_telemetry: None,
    }
}

/// Returns a part of a whole; `None` of nothing.
fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// Counts failed requests by what their error says before the first colon.
fn errors_by_kind(requests: &[RequestResult]) -> BTreeMap<String, usize> {
    let mut errors = BTreeMap::new();
    for request in requests.iter().filter(|request| !request.ok) {
        let error = request.error.as_deref().unwrap_or_default();
        let kind = error.split(':').next().unwrap_or_default().trim();
        let kind = if kind.is_empty() { "unknown" } else { kind };
        *errors.entry(kind.to_owned()).or_default() += 1;
    }
    errors
}

/// Counts requests by where their numbers of tokens come from.
fn token_sources(completed: &[&RequestResult]) -> BTreeMap<String, usize> {
    let mut sources = BTreeMap::new();
    for request in completed {
        let name = match request.token_source {
            TokenSource::Usage => "usage",
            TokenSource::Tokenizer => "tokenizer",
            TokenSource::Chunks => "chunks",
        };
        *sources.entry(name.to_owned()).or_default() += 1;
    }
    sources
}

/// Returns the share of prompt tokens that came from the server's cache, over the requests for
/// which it tells both numbers.
fn cached_share(completed: &[&RequestResult]) -> Option<f64> {
    let told = completed
        .iter()
        .filter_map(|request| Some((request.cached_tokens?, request.prompt_tokens?)));
    let (cached, prompt) =
        told.fold((0, 0), |(cached, prompt), told| (cached + told.0, prompt + told.1));
    share(tokens_as_f64(cached), tokens_as_f64(prompt))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::sample_requests::{even_request, failed_request, random_requests};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    const SLO: Slo = Slo { ttft_ms: Some(500.0), tpot_ms: Some(50.0) };

    #[test]
    fn figures_of_three_requests_are_those_computed_by_hand() {
        let mut first = even_request(0, 0.0, 0.2, 0.01, 11);
        first.cached_tokens = Some(40);
        first.send_delay = Some(0.001);
        let second = even_request(1, 0.5, 0.6, 0.02, 21);
        let requests = [first, second, failed_request(2, 0.6, "HTTP 500: out of memory")];
        let got = summarize(&requests, 2.0, SLO);
        assert_eq!((got.completed, got.failed), (2, 1));
        assert_eq!(got.errors, BTreeMap::from([("HTTP 500".to_owned(), 1)]));
        assert_eq!((got.request_throughput, got.output_throughput), (1.0, 16.0));
        assert_eq!(got.input_throughput, Some(100.0));
        // The second is late with its first token, and the third failed.
        assert_eq!((got.goodput, got.slo_attainment), (0.5, Some(1.0 / 3.0)));
        let close = |got: Option<f64>, expected: f64| (got.unwrap() - expected).abs() < 1e-12;
        assert!(close(got.ttft.p50, 0.4) && close(got.ttft.max, 0.6), "{:?}", got.ttft);
        assert!(close(got.tpot.p50, 0.015) && got.tpot.count == 2, "{:?}", got.tpot);
        assert!(close(got.itl.p50, 0.02) && got.itl.count == 30, "{:?}", got.itl);
        assert!(close(got.e2e.max, 1.0) && close(got.e2e.mean, 0.65), "{:?}", got.e2e);
        let normalised = f64::midpoint(0.3 / 11.0, 1.0 / 21.0);
        assert!(close(got.normalised_latency.mean, normalised), "{:?}", got.normalised_latency);
        assert_eq!((got.send_delay.count, got.send_delay.max), (1, Some(0.001)));
        assert_eq!(got.cached_share, Some(0.4), "of the request for which it is told");
        assert_eq!((got.output_tokens_mean, got.tokens_per_chunk), (Some(16.0), Some(1.0)));
        assert_eq!(got.token_sources, BTreeMap::from([("usage".to_owned(), 2)]));
        assert_eq!(got.steady_state_output_throughput, None, "too few requests");
    }

    #[test]
    fn nothing_measured_gives_no_figures() {
        let got = summarize(&[], 0.0, SLO);
        let expected =
            Summary { slo_ttft_ms: SLO.ttft_ms, slo_tpot_ms: SLO.tpot_ms, ..Summary::default() };
        assert_eq!(got, expected);
        let failed = summarize(&[failed_request(0, 0.0, ""); 1], 1.0, SLO);
        assert_eq!(failed.errors, BTreeMap::from([("unknown".to_owned(), 1)]));
        assert_eq!((failed.slo_attainment, failed.ttft.p50), (Some(0.0), None));
    }

    #[test]
    fn prompt_throughput_needs_every_prompt_counted() {
        let mut uncounted = even_request(1, 0.0, 0.1, 0.01, 5);
        uncounted.prompt_tokens = None;
        let got = summarize(&[even_request(0, 0.0, 0.1, 0.01, 5), uncounted], 1.0, SLO);
        assert_eq!(got.input_throughput, None);
    }

    #[test]
    fn sums_over_random_requests_equal_a_naive_count() {
        let mut rng = StdRng::seed_from_u64(3);
        for case in 0..100 {
            let requests = random_requests(&mut rng, 1 + case);
            let got = summarize(&requests, 12.5, SLO);
            let mut num_good = 0.0;
            let mut num_tokens = 0;
            for request in &requests {
                if !request.ok {
                    continue;
                }
                num_tokens += request.output_tokens;
                let first_in_time = request.ttft.unwrap() <= 0.5;
                let rest_in_time = request.tpot().is_none_or(|tpot| tpot <= 0.05);
                if first_in_time && rest_in_time {
                    num_good += 1.0;
                }
            }
            assert_eq!(got.completed + got.failed, requests.len(), "case {case}");
            assert_eq!(got.errors.values().sum::<usize>(), got.failed, "case {case}");
            assert!((got.output_throughput * 12.5 - tokens_as_f64(num_tokens)).abs() < 1e-6);
            assert!((got.goodput * 12.5 - num_good).abs() < 1e-9, "case {case}");
            assert_eq!(got.slo_attainment, Some(num_good / as_f64(requests.len())));
        }
    }
}
