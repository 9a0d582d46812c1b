//! Clients that go away: their memory is back at once, and they are no success.

use crate::patience::assert_within;
use crate::server_process::ServerProcess;
use crate::shared_server::{DEFAULT, NARROW};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_client_that_leaves_a_stream_frees_its_blocks,
        a_client_that_leaves_several_choices_frees_them_all,
        a_client_that_leaves_before_a_whole_response_frees_its_blocks,
        a_client_that_leaves_during_prefill_frees_its_blocks,
        a_client_that_leaves_the_queue_never_runs,
    ]
}

/// How long the memory of a client that left may stay taken.
const LIMIT: Duration = Duration::from_secs(1);

/// A request that would run for minutes.
fn endless() -> Value {
    json!({"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": true})
}

/// Checks that `leave` frees all memory in time, and counts `num_sequences` as aborted and none
/// as successful.
fn check_leaving(server: &ServerProcess, num_sequences: u64, leave: impl Fn(&ServerProcess)) {
    let finished = || {
        ["stop", "length", "abort"].map(|reason| {
            server.metric(&format!("finished_sequences_total{{reason=\"{reason}\"}}"))
        })
    };
    assert_within("freeing what a client left", LIMIT, || {
        let [stop, length, abort] = finished();
        leave(server);
        let left_at = Instant::now();
        server.wait_until_idle();
        let taken = left_at.elapsed();
        assert_eq!(finished(), [stop, length, abort + num_sequences]);
        taken
    });
    server.complete(&json!({"prompt": "Hi", "max_tokens": 1}));
}

fn a_client_that_leaves_a_stream_frees_its_blocks() {
    check_leaving(&DEFAULT.get(), 1, |server| {
        let mut stream = server.stream(&endless());
        for _ in 0..3 {
            stream.next_chunk();
        }
    });
}

fn a_client_that_leaves_several_choices_frees_them_all() {
    let mut request = endless();
    request["n"] = json!(4);
    check_leaving(&DEFAULT.get(), 4, |server| {
        let mut stream = server.stream(&request);
        stream.next_chunk();
        server.wait_for_metric("running_sequences", 4);
    });
}

fn a_client_that_leaves_before_a_whole_response_frees_its_blocks() {
    check_leaving(&DEFAULT.get(), 1, |server| {
        let exchange = server.send("/v1/completions", &endless());
        server.wait_for_metric("running_sequences", 1);
        drop(exchange);
    });
}

fn a_client_that_leaves_during_prefill_frees_its_blocks() {
    let server = NARROW.get();
    let num_output_tokens = || server.metric("tokens_total{kind=\"output\"}");
    let prompt: Vec<u32> = (0..4000).map(|i| 1000 + i).collect();
    check_leaving(&server, 1, |server| {
        let before = num_output_tokens();
        let exchange = server.send("/v1/completions", &json!({"prompt": prompt}));
        server.wait_for_metric("running_sequences", 1);
        drop(exchange);
        assert_eq!(num_output_tokens(), before, "the prompt was still being computed");
    });
}

fn a_client_that_leaves_the_queue_never_runs() {
    let server = NARROW.get();
    let running = server.send("/v1/completions", &endless());
    server.wait_for_metric("running_sequences", 1);
    let num_aborts = || server.metric("finished_sequences_total{reason=\"abort\"}");
    let before = num_aborts();
    assert_within("leaving the queue", LIMIT, || {
        let waiting = server.send("/v1/completions", &endless());
        server.wait_for_metric("waiting_requests", 1);
        drop(waiting);
        let left_at = Instant::now();
        server.wait_for_metric("waiting_requests", 0);
        left_at.elapsed()
    });
    assert!(num_aborts() > before);
    assert_eq!(server.metric("running_sequences"), 1, "the other client is served on");
    drop(running);
    server.wait_until_idle();
}
