//! What servers do beside plain streams, and the search for capacity.

use super::{Errors, Truth, alone, config, level, measure_until_true, percentile, slack, times};
use serde_json::Value;
use servebench::mock_server::{MockConfig, MockServer};
use servebench::results::TokenSource;
use servebench::results::{LevelResult, LoadValue, RequestResult, RunConfig, RunResult};
use std::fs;
use std::process::Command;

const TRUTH: Truth = Truth { ttft_ms: 150.0, itl_ms: 30.0 };

/// Measures four streams against a server, until `check` finds nothing wrong. Passes also how late
/// the two programs say that they were, in milliseconds.
fn check_level(server: &MockConfig, check: impl Fn(&mut Errors, &LevelResult, f64)) {
    let _alone = alone();
    let running = MockServer::start(server.clone()).unwrap();
    measure_until_true(|errors| {
        running.reset(server.clone());
        let level = level(RunConfig {
            levels: vec![LoadValue(4.0)],
            num_requests: Some(8),
            output_len: 16,
            ..config(&running)
        });
        assert_eq!(level.summary.completed, 8);
        check(errors, &level, slack(&running, &level));
    });
}

fn median(level: &LevelResult, time: impl Fn(&RequestResult) -> Option<f64>) -> f64 {
    percentile(&times(level, time), 50)
}

#[test]
fn several_tokens_in_a_piece_are_counted_and_not_taken_for_one() {
    let server = MockConfig { tokens_per_chunk: 4, ..TRUTH.server() };
    check_level(&server, |errors, level, slack| {
        // Sixteen tokens in four pieces: three gaps of 120 ms, over fifteen tokens.
        let gap = median(level, |request| Some(request.chunk_times[2] - request.chunk_times[1]));
        errors.near("ITL", gap, 120.0, slack);
        errors.near("E2E", median(level, |request| request.e2e), 150.0 + 360.0, slack);
        errors.near("TPOT", median(level, RequestResult::tpot), 360.0 / 15.0, slack / 15.0);
        assert_eq!(level.summary.tokens_per_chunk, Some(4.0));
        assert_eq!((level.summary.output_tokens_mean, level.summary.itl.count), (Some(16.0), 24));
    });
}

#[test]
fn reasoning_counts_as_output_and_the_answer_begins_after_it() {
    let server = MockConfig { reasoning_tokens: 4, ..TRUTH.server() };
    check_level(&server, |errors, level, slack| {
        errors.near("TTFT", median(level, |request| request.ttft), 150.0, slack);
        let answer_start = median(level, |request| request.answer_start);
        errors.near("answer", answer_start, 150.0 + 4.0 * 30.0, slack);
        assert_eq!(level.summary.reasoning_share, Some(0.25));
        assert!(level.requests.iter().all(|request| request.reasoning_chunks == 4));
        assert_eq!(level.summary.output_tokens_mean, Some(16.0));
    });
}

#[test]
fn tokens_come_from_usage_or_else_it_is_said_that_they_are_pieces() {
    let silent = MockConfig { send_usage: false, tokens_per_chunk: 2, ..TRUTH.server() };
    check_level(&silent, |_, level, _| {
        for request in &level.requests {
            // The truth is sixteen, but nobody can know.
            assert_eq!((request.output_tokens, request.token_source), (8, TokenSource::Chunks));
        }
        assert_eq!(level.summary.token_sources.get("chunks"), Some(&8));
    });
    let cached = MockConfig { cached_tokens: Some(5), ..TRUTH.server() };
    check_level(&cached, |_, level, _| {
        for request in &level.requests {
            assert_eq!((request.output_tokens, request.token_source), (16, TokenSource::Usage));
            assert_eq!((request.prompt_tokens, request.cached_tokens), (Some(20), Some(5)));
        }
        assert_eq!(level.summary.cached_share, Some(0.25));
    });
}

#[test]
fn a_conversation_sends_all_that_was_said_and_thinks_between_its_turns() {
    let _alone = alone();
    let server = MockServer::start(TRUTH.server()).unwrap();
    let level = level(RunConfig {
        levels: vec![LoadValue(2.0)],
        num_requests: Some(4),
        turns: Some(3),
        think_time: Some(0.05),
        ..config(&server)
    });
    assert_eq!((level.requests.len(), level.summary.completed), (12, 12));
    assert_eq!(server.stats().peak, 2);
    for session in 0..4 {
        let mut turns: Vec<&RequestResult> =
            level.requests.iter().filter(|request| request.session == Some(session)).collect();
        turns.sort_by_key(|request| request.turn);
        // The opening has 20 words, a follow-up 5, an answer 6.
        let prompts: Vec<u64> = turns.iter().map(|turn| turn.prompt_tokens.unwrap()).collect();
        assert_eq!(prompts, [20, 20 + 6 + 5, 20 + 2 * (6 + 5)]);
        for pair in turns.windows(2) {
            let ended = pair[0].start + pair[0].e2e.unwrap();
            assert!(pair[1].start >= ended + 0.05 - 1e-5, "{pair:?}");
        }
    }
}

#[test]
fn the_search_finds_the_load_at_which_the_target_breaks() {
    let _alone = alone();
    // The first token takes 60 ms for each request that is served: 5 make it 300 ms, 6 are 360.
    let slowing = MockConfig { slowdown: 1.0, ttft_ms: 60.0, itl_ms: 1.0, ..MockConfig::default() };
    let server = MockServer::start(slowing).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    measure_until_true(|errors| {
        let output = Command::new(env!("CARGO_BIN_EXE_servebench"))
            .args(["find-capacity", "--url", &server.url(), "--model", "mock-model"])
            .args(["--output-len", "2", "--input-len", "20", "--num-requests", "16"])
            .args(["--slo-ttft-ms", "330", "--slo-tpot-ms", "1000", "--max", "16", "--out"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let run: RunResult = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let capacity = run.capacity.unwrap();
        errors.within("capacity", capacity.capacity.unwrap_or(0.0), 5.0, 0.0);
        errors.within("first fail", capacity.first_fail.unwrap_or(0.0), 6.0, 0.0);
    });
    let run: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let loads: Vec<f64> = run["levels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|level| level["value"].as_f64().unwrap())
        .collect();
    assert_eq!(loads, [1.0, 2.0, 4.0, 5.0, 6.0, 8.0]);
}
