//! Each rule finds what it is for, with its figures, and nothing in a run that is well.

use super::*;
use crate::results::{LengthDist, LoadValue, Mode, RequestResult, Slo, TokenSource};
use crate::statistics::sample_requests::{even_request, failed_request, level_of, run_of};
use crate::statistics::{as_f64, merge_repeats};
use std::collections::BTreeMap;

const SLO: Slo = Slo { ttft_ms: Some(500.0), tpot_ms: Some(50.0) };
const OUTPUT_LEN: u32 = 20;

/// A closed loop of 120 requests with these latencies in seconds.
fn level(load: f64, ttft: f64, gap: f64) -> LevelResult {
    let e2e = ttft + gap * f64::from(OUTPUT_LEN - 1);
    let requests: Vec<RequestResult> =
        (0..120).map(|i| even_request(i, as_f64(i) * e2e / load, ttft, gap, OUTPUT_LEN)).collect();
    level_of(Mode::Concurrency, load, requests, 120.0 * e2e / load + e2e, SLO)
}

fn run(levels: Vec<LevelResult>) -> RunResult {
    let mut run = run_of("a", levels);
    (run.config.input_len, run.config.output_len) = (100, OUTPUT_LEN);
    run
}

/// A run without anything to say about it.
fn well() -> RunResult {
    run(vec![level(1.0, 0.1, 0.01), level(2.0, 0.1, 0.01)])
}

fn categories(run: &RunResult) -> Vec<String> {
    diagnose(run).findings.into_iter().map(|finding| finding.category).collect()
}

/// Returns the one warning about a run, which was well before `change`.
fn warning_after(change: impl FnOnce(&mut RunResult)) -> String {
    let mut run = well();
    change(&mut run);
    let mut warnings = warnings(&run);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    warnings.remove(0)
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn a_run_that_is_well_has_no_warnings_and_no_limit() {
    let diagnosis = diagnose(&well());
    assert_eq!(warnings(&well()), Vec::<String>::new());
    assert_eq!(diagnosis.overall_health, "excellent");
    assert_eq!(diagnosis.primary_bottleneck, "Balanced");
    assert_eq!(categories(&well()), ["Balanced"]);
}

#[test]
fn without_a_completed_request_nothing_is_known() {
    for levels in [Vec::new(), vec![level_of(Mode::Rate, 1.0, Vec::new(), 1.0, SLO)]] {
        let diagnosis = diagnose(&run(levels));
        assert_eq!(diagnosis.overall_health, "unknown");
        assert_eq!(diagnosis.primary_bottleneck, "Insufficient Data");
    }
}

#[test]
fn first_tokens_that_wait_while_throughput_stands_still_are_a_queue() {
    let run = run(vec![level(4.0, 0.1, 0.01), level(8.0, 0.48, 0.01), level(16.0, 1.06, 0.01)]);
    let diagnosis = diagnose(&run);
    assert_eq!(diagnosis.primary_bottleneck, "Queue/Slot");
    assert_eq!(diagnosis.overall_health, "bottlenecked");
    assert_says(&diagnosis.findings[0].headline, &["from c=8 on"]);
    assert_says(
        &diagnosis.findings[0].evidence[0],
        &["c=4 to c=8: 100 → 480 ms", "10.0 → 10.0 ms"],
    );
}

#[test]
fn first_tokens_that_wait_while_throughput_grows_are_prefill() {
    let run = run(vec![level(4.0, 0.2, 0.03), level(8.0, 0.55, 0.03)]);
    assert_eq!(categories(&run), ["Prefill"]);
}

#[test]
fn gaps_that_grow_with_load_are_decode() {
    let run = run(vec![level(1.0, 0.1, 0.02), level(8.0, 0.1, 0.06), level(16.0, 0.1, 0.061)]);
    let diagnosis = diagnose(&run);
    assert_eq!(diagnosis.primary_bottleneck, "Decode");
    assert_says(&diagnosis.findings[0].headline, &["3.00 times", "at c=8"]);
}

#[test]
fn limits_that_cost_no_slo_are_low() {
    let run = run(vec![level(1.0, 0.1, 0.01), level(8.0, 0.1, 0.03)]);
    assert_eq!(diagnose(&run).overall_health, "excellent");
    assert_eq!(diagnose(&run).findings[0].severity, Severity::Low);
}

#[test]
fn a_lowest_load_that_misses_the_slo_is_too_slow() {
    let diagnosis = diagnose(&run(vec![level(1.0, 0.1, 0.06)]));
    assert_eq!(diagnosis.primary_bottleneck, "Latency");
    assert_says(&diagnosis.findings[0].evidence.concat(), &["TPOT p90 is 60.0 ms, the SLO 50 ms."]);
}

#[test]
fn the_servers_own_metrics_show_waiting_and_full_memory() {
    let mut run = well();
    let metrics = [("num_requests_waiting", 3.0), ("gpu_cache_usage", 0.97)];
    run.levels[1].prometheus_metrics =
        Some(metrics.map(|(name, value)| (name.to_owned(), value)).into_iter().collect());
    assert_eq!(categories(&run), ["Queue/Slot", "KV Memory"]);
    run.levels[1].prometheus_metrics = Some(BTreeMap::from([("gpu_cache_usage".to_owned(), 0.5)]));
    assert_eq!(categories(&run), ["Balanced"]);
}

#[test]
fn outputs_that_others_interrupt_are_uneven() {
    let mut run = well();
    for request in &mut run.levels[1].requests {
        for time in &mut request.chunk_times[10..] {
            *time += 0.2;
        }
    }
    run.levels[1].summary =
        crate::statistics::summarize(&run.levels[1].requests, run.levels[1].duration, SLO);
    assert_eq!(categories(&run), ["Prefill"]);
}

#[test]
fn a_client_that_lags_or_is_busy_is_told_first() {
    let mut run = run(vec![level(4.0, 0.1, 0.01), level(8.0, 0.48, 0.01), level(16.0, 1.06, 0.01)]);
    run.levels[2].client_lag_p99_ms = Some(25.0);
    run.levels[2].client_cpu_share = Some(0.97);
    assert_eq!(diagnose(&run).primary_bottleneck, "Client");
    assert_says(&warnings(&run)[0], &["at c=16", "25.0 ms (p99)", "97 % busy"]);
    let quiet = |run: &mut RunResult| run.levels[0].client_cpu_share = Some(0.9);
    let mut run = well();
    quiet(&mut run);
    assert_eq!(warnings(&run), Vec::<String>::new());
}

#[test]
fn requests_that_were_sent_late_are_told() {
    let late = |run: &mut RunResult| {
        run.levels[1].mode = Mode::Rate;
        run.levels[1].summary.send_delay.p99 = Some(0.25);
    };
    assert_says(&warning_after(late), &["250 ms (p99)", "the client was late"]);
    let mut slow = well();
    late(&mut slow);
    slow.levels[1].summary.ttft.p50 = Some(3.0);
    assert_eq!(warnings(&slow), Vec::<String>::new(), "a small part of the time to a first token");
    let limited = |run: &mut RunResult| {
        late(run);
        run.config.max_concurrency = Some(4);
    };
    assert_says(&warning_after(limited), &["no more than 4", "--max-concurrency"]);
}

#[test]
fn failed_requests_are_counted_by_kind() {
    let warning = warning_after(|run| {
        let level = &mut run.levels[1];
        level.requests.push(failed_request(120, 1.0, "HTTP 500: a"));
        level.summary = crate::statistics::summarize(&level.requests, level.duration, SLO);
    });
    assert_says(&warning, &["1 of 241 requests failed, at c=2: HTTP 500 (1 times)"]);
}

#[test]
fn a_server_that_falls_behind_the_rate_offered_is_told() {
    // Ten a second arrive, five a second end.
    let behind: Vec<RequestResult> = (0..200)
        .map(|i| even_request(i, as_f64(i) * 0.1, 0.01 + as_f64(i) * 0.1, 0.001, OUTPUT_LEN))
        .collect();
    let behind = level_of(Mode::Rate, 10.0, behind, 41.0, Slo::default());
    let keeps_up: Vec<RequestResult> =
        (0..200).map(|i| even_request(i, as_f64(i) * 0.1, 0.01, 0.001, OUTPUT_LEN)).collect();
    let keeps_up = level_of(Mode::Rate, 9.0, keeps_up, 20.1, Slo::default());
    let said = warnings(&run(vec![keeps_up, behind.clone()]));
    assert_eq!(said.len(), 1, "{said:?}");
    assert_says(
        &said[0],
        &[
            "fell behind the rate offered at rate=10",
            "9.95 requests/s arrived in the second half, 5.03 ended",
        ],
    );
    let mut at_once = behind;
    at_once.value = LoadValue(f64::INFINITY);
    assert_eq!(warnings(&run(vec![at_once])), Vec::<String>::new());
}

#[test]
fn a_stall_is_told_with_the_usual_gap() {
    let warning = warning_after(|run| {
        for time in &mut run.levels[0].requests[7].chunk_times[10..] {
            *time += 9.0;
        }
    });
    assert_says(&warning, &["At c=1 an output stood still for 9.01 s", "10.0 ms (median)"]);
}

#[test]
fn tokens_counted_as_pieces_are_told() {
    let warning = warning_after(|run| {
        run.levels[0].requests[0].token_source = TokenSource::Chunks;
        let level = &mut run.levels[0];
        level.summary = crate::statistics::summarize(&level.requests, level.duration, SLO);
    });
    assert_says(&warning, &["At c=1 tokens were counted as pieces", "--tokenizer"]);
}

#[test]
fn lengths_other_than_asked_for_are_told_where_one_was_asked_for() {
    let output = |run: &mut RunResult| run.config.output_len = 40;
    assert_says(&warning_after(output), &["20.0 tokens", "not the 40 asked for"]);
    let prompt = |run: &mut RunResult| run.config.input_len = 300;
    assert_says(&warning_after(prompt), &["100 tokens in the mean, 300 were asked for"]);
    let mut spread = well();
    (spread.config.output_len, spread.config.input_len) = (40, 300);
    spread.config.output_dist = Some(LengthDist::Uniform);
    spread.config.input_dist = Some(LengthDist::Uniform);
    assert_eq!(warnings(&spread), Vec::<String>::new());
}

#[test]
fn cached_prompts_are_told_unless_they_share_by_design() {
    // 130 tokens, of which a template adds 30: distinct prompts of 100 share up to 55 of them.
    let cached = |run: &mut RunResult, cached_tokens| {
        for request in &mut run.levels[1].requests {
            (request.prompt_tokens, request.cached_tokens) = (Some(130), Some(cached_tokens));
        }
    };
    let warning = warning_after(|run| cached(run, 56));
    assert_says(&warning, &["for 100 % of the requests at c=2", "--seed"]);
    let mut template_only = well();
    cached(&mut template_only, 55);
    assert_eq!(warnings(&template_only), Vec::<String>::new());
    let mut shared = well();
    cached(&mut shared, 120);
    shared.config.preset = Some("chat".to_owned());
    assert_eq!(warnings(&shared), Vec::<String>::new());
}

#[test]
fn repeats_that_differ_widely_are_told() {
    let warning = warning_after(|run| {
        let runs = vec![level(2.0, 0.1, 0.01), level(2.0, 0.1, 0.012), level(2.0, 0.1, 0.009)];
        run.levels[1] = merge_repeats(runs, SLO).unwrap();
    });
    assert_says(&warning, &["Throughput is known to within", "at c=2", "--repeat"]);
}

#[test]
fn a_lower_load_that_misses_what_a_higher_one_meets_is_told() {
    let mut uneven = run(vec![level(1.0, 0.6, 0.01), level(2.0, 0.1, 0.01)]);
    uneven.capacity = None;
    let said = warnings(&uneven);
    assert_says(&said[0], &["at c=1", "higher load c=2"]);
}

#[test]
fn few_samples_are_told_by_level() {
    let warning = warning_after(|run| {
        let level = &mut run.levels[1];
        level.requests.truncate(99);
        level.summary = crate::statistics::summarize(&level.requests, level.duration, SLO);
    });
    assert_says(&warning, &["Under 100 requests completed at c=2"]);
}

#[test]
fn reasoning_and_a_stop_are_told() {
    let reasoning = |run: &mut RunResult| run.levels[1].summary.reasoning_share = Some(0.4);
    assert_says(&warning_after(reasoning), &["40 % of the pieces at c=2"]);
    let stopped = |run: &mut RunResult| {
        run.interrupted = true;
        run.levels[1].num_interrupted = Some(3);
    };
    assert_says(&warning_after(stopped), &["stopped before its end", "3 requests"]);
}

#[test]
fn a_capacity_of_another_slo_is_told() {
    let warning = warning_after(|run| {
        run.capacity = Some(crate::results::CapacityResult {
            mode: Mode::Concurrency,
            target: 0.9,
            slo_ttft_ms: Some(100.0),
            slo_tpot_ms: None,
            capacity: Some(2.0),
            first_fail: None,
            reason: crate::results::CapacityReason::MaxReached,
        });
    });
    assert_says(&warning, &["with another SLO"]);
}
