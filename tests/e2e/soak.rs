//! Clients that come, go and change their minds for a while: afterwards the server is as before.

use crate::prefix_cache::short_answer;
use crate::pressure::without_a_stall;
use crate::prompts;
use crate::server_process::ServerProcess;
use crate::shared_server::{PLAIN, TINY_POOL};
use libtest_mimic::Trial;
use mini_infer_core::mix64;
use serde_json::{Value, json};
use std::env;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn trials() -> Vec<Trial> {
    trials![after_many_random_cancels_a_probe_gets_its_answer_and_all_blocks_are_back]
}

/// Sets how long clients come and go, in seconds.
const SECONDS_VARIABLE: &str = "MINI_INFER_SOAK_SECONDS";
const DEFAULT_SECONDS: u64 = 8;
const NUM_CLIENTS: u64 = 6;

fn after_many_random_cancels_a_probe_gets_its_answer_and_all_blocks_are_back() {
    let seconds = env::var(SECONDS_VARIABLE).map_or(DEFAULT_SECONDS, |text| text.parse().unwrap());
    let server = TINY_POOL.get();
    let probe = prompts::tokens(600, 100);
    let expected = short_answer(&PLAIN.get(), &probe);
    let aborted = "finished_sequences_total{reason=\"abort\"}";
    let num_aborted = server.metric(aborted);
    let end = Instant::now() + Duration::from_secs(seconds);
    without_a_stall(&server, || {
        thread::scope(|scope| {
            for client in 0..NUM_CLIENTS {
                let server = &server;
                scope.spawn(move || come_and_go(server, client, end));
            }
        });
    });
    assert_eq!(short_answer(&server, &probe)["choices"], expected["choices"]);
    server.wait_until_idle();
    assert!(server.metric(aborted) > num_aborted, "somebody must have left");
    assert_eq!(server.metric("finished_sequences_total{reason=\"error\"}"), 0);
}

/// Asks for one thing after the other until `end`, and leaves every second one before it is done.
fn come_and_go(server: &ServerProcess, client: u64, end: Instant) {
    for i in 0.. {
        let random = mix64(mix64(client).wrapping_add(i));
        let choose = |shift: u32, choices: u64| (random >> shift) % choices;
        let common = prompts::tokens(610 + choose(0, 3), 48);
        let body = json!({
            "prompt": prompts::continued(&common, random, choose(8, 60)), "seed": i, "ignore_eos": true,
            "max_tokens": 1 + choose(16, 80), "n": 1 + choose(24, 3),
        });
        if Instant::now() > end {
            return;
        }
        leave_or_stay(server, &body, choose(32, 40));
    }
}

/// Reads a stream to its end, or only `num_chunks` chunks of it where that is an odd number.
fn leave_or_stay(server: &ServerProcess, body: &Value, num_chunks: u64) {
    let mut stream = server.stream(body);
    let mut num_read = 0;
    while stream.next_chunk().is_some() {
        num_read += 1;
        if num_chunks % 2 == 1 && num_read >= num_chunks {
            return;
        }
    }
}
