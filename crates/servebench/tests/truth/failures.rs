//! Requests that do not end as they should are failures of the right kind, and nothing else.

use super::{Truth, config, level};
use servebench::mock_server::{MockConfig, MockServer};
use servebench::results::{LevelResult, LoadValue, RunConfig};
use std::collections::BTreeMap;

const FAST: Truth = Truth { ttft_ms: 5.0, itl_ms: 1.0 };

/// Sends four requests, and checks that all fail alike.
fn check_failure(server: MockConfig, kind: &str) -> LevelResult {
    let server = MockServer::start(server).unwrap();
    let level = level(RunConfig { num_requests: Some(4), ..config(&server) });
    check_all_failed(&level, kind);
    level
}

fn check_all_failed(level: &LevelResult, kind: &str) {
    let summary = &level.summary;
    assert_eq!((summary.completed, summary.failed), (0, 4), "{:?}", summary.errors);
    assert_eq!(summary.errors, BTreeMap::from([(kind.to_owned(), 4)]));
    assert_eq!((summary.output_throughput, summary.goodput), (0.0, 0.0));
    assert_eq!((summary.slo_attainment, summary.ttft.count), (Some(0.0), 0));
    for request in &level.requests {
        assert!(!request.ok && request.error.as_ref().unwrap().starts_with(kind), "{request:?}");
    }
}

#[test]
fn a_connection_that_breaks_is_told_from_an_end() {
    let breaking = MockConfig { drop_after: Some(3), ..FAST.server() };
    check_failure(breaking, "connection dropped mid-stream");
}

#[test]
fn an_end_without_a_reason_is_incomplete() {
    check_failure(MockConfig { no_done: true, ..FAST.server() }, "incomplete stream");
}

#[test]
fn a_piece_that_is_no_json_fails_the_request() {
    let malformed = MockConfig { malformed_after: Some(2), ..FAST.server() };
    let level = check_failure(malformed, "malformed chunk");
    assert!(level.requests[0].error.as_ref().unwrap().contains("{this is not json"));
}

#[test]
fn a_stream_that_stalls_is_a_timeout() {
    let server = MockServer::start(MockConfig { stall_after: Some(2), ..FAST.server() }).unwrap();
    let level = level(RunConfig { num_requests: Some(4), timeout: 0.2, ..config(&server) });
    check_all_failed(&level, "timeout");
    // The client has gone, and with it the requests.
    while server.stats().active > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_status_that_is_no_success_is_the_kind() {
    check_failure(MockConfig { fail_rate: 1.0, ..FAST.server() }, "HTTP 500");
    let level = check_failure(MockConfig { context_limit: Some(25), ..FAST.server() }, "HTTP 400");
    assert!(level.requests[0].error.as_ref().unwrap().contains("maximum context length is 25"));
}

#[test]
fn a_server_that_is_gone_is_a_connect_error() {
    let gone = config(&MockServer::start(FAST.server()).unwrap());
    let level = level(RunConfig { num_requests: Some(4), ..gone });
    check_all_failed(&level, "connect error");
}

#[test]
fn a_full_queue_fails_only_those_that_it_refuses() {
    let server = MockServer::start(MockConfig {
        slots: Some(1),
        max_queue: Some(2),
        stall_after: Some(1),
        ..FAST.server()
    })
    .unwrap();
    let level = level(RunConfig {
        levels: vec![LoadValue(8.0)],
        num_requests: Some(8),
        timeout: 1.0,
        ..config(&server)
    });
    // One is served and two wait, until the client has had enough of them; nothing comes later.
    let kinds = BTreeMap::from([("HTTP 429".to_owned(), 5), ("timeout".to_owned(), 3)]);
    assert_eq!(level.summary.errors, kinds);
}

#[test]
fn some_failures_leave_the_other_requests_as_they_are() {
    let server = MockConfig { fail_rate: 0.4, seed: 3, ..FAST.server() };
    let server = MockServer::start(server).unwrap();
    let level = level(RunConfig { num_requests: Some(50), ..config(&server) });
    let summary = &level.summary;
    assert_eq!(summary.failed as u64, server.stats().refused);
    assert!((10..30).contains(&summary.failed), "{} failed", summary.failed);
    assert_eq!((summary.completed, summary.ttft.count), (50 - summary.failed, summary.completed));
    assert_eq!(server.stats().output_tokens, summary.completed as u64 * 6);
}
