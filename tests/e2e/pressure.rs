//! Pools too small for what is asked of them: everybody is served, nobody stands still, and no
//! answer changes.

use crate::prefix_cache::short_answer;
use crate::prompts;
use crate::server_process::ServerProcess;
use crate::shared_server::{DEFAULT, INT8_PLAIN, INT8_POOL, PLAIN, TINY_POOL, TINY_POOL_TOKENS};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        by_default_eight_requests_of_512_tokens_run_without_preemption,
        two_hundred_mixed_requests_through_the_smallest_pool_never_stall,
        eight_requests_in_a_pool_for_one_all_finish_with_their_own_answers,
        int8_answers_in_a_full_pool_equal_those_of_an_idle_server_without_a_cache,
    ]
}

/// How long a step may take on however busy a machine; idle, it is a fraction of a second.
const LONGEST_STEP: Duration = Duration::from_secs(20);

/// Sets a flag when it is dropped, so also when a check panics.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while somebody watches that each step makes progress.
///
/// # Panics
/// When sequences are there and a step runs none of them, or when no step ends for long.
pub(crate) fn without_a_stall<T>(server: &ServerProcess, work: impl FnOnce() -> T) -> T {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                assert_eq!(server.metric("steps_without_progress"), 0);
                let seconds = server.measure("time_without_progress_seconds");
                assert!(seconds < LONGEST_STEP.as_secs_f64(), "no step for {seconds} seconds");
                thread::park_timeout(Duration::from_millis(20));
            }
        });
        let _done = SetWhenDropped(&is_done);
        work()
    })
}

/// Sends all `requests`, `num_clients` at a time, and returns the responses in order.
fn in_turns(server: &ServerProcess, requests: &[Value], num_clients: usize) -> Vec<Value> {
    let next = Mutex::new(0..requests.len());
    let responses = Mutex::new(vec![Value::Null; requests.len()]);
    thread::scope(|scope| {
        for _ in 0..num_clients {
            scope.spawn(|| {
                while let Some(i) = { next.lock().unwrap().next() } {
                    let response = server.complete(&requests[i]);
                    responses.lock().unwrap()[i] = response;
                }
            });
        }
    });
    responses.into_inner().unwrap()
}

fn by_default_eight_requests_of_512_tokens_run_without_preemption() {
    let server = DEFAULT.get();
    let requests: Vec<Value> = (0..8)
        .map(|i| {
            let prompt = prompts::tokens(60 + i, 480);
            json!({"prompt": prompt, "max_tokens": 32, "ignore_eos": true})
        })
        .collect();
    let num_preemptions = server.metric("preemptions_total");
    for response in without_a_stall(&server, || server.complete_together(&requests)) {
        assert_eq!(response["usage"]["total_tokens"], 512);
    }
    assert_eq!(server.metric("preemptions_total"), num_preemptions);
}

fn two_hundred_mixed_requests_through_the_smallest_pool_never_stall() {
    let server = TINY_POOL.get();
    let common = prompts::tokens(70, 60);
    let lengths = [1, 8, 17, 40, 120].into_iter().cycle();
    let requests: Vec<Value> = (0..200_u64)
        .zip(lengths)
        .map(|(i, length)| {
            let prompt = match i % 3 {
                0 => prompts::tokens(1000 + i, length),
                _ => prompts::continued(&common, 1000 + i, length),
            };
            let mut body = json!({
                "prompt": prompt, "max_tokens": 1 + i % 7, "seed": i, "ignore_eos": true,
            });
            let kind = match i % 10 {
                3 => json!({"n": 3}),
                6 => json!({"use_beam_search": true, "best_of": 2}),
                8 => json!({"cache_prompt": false}),
                9 => json!({"cache_salt": "other"}),
                _ => json!({"temperature": i % 2}),
            };
            body.as_object_mut().unwrap().extend(kind.as_object().unwrap().clone());
            body
        })
        .collect();
    let responses = without_a_stall(&server, || in_turns(&server, &requests, 10));
    for (request, response) in requests.iter().zip(&responses) {
        let num_choices = request["n"].as_u64().unwrap_or(1);
        let expected = num_choices * request["max_tokens"].as_u64().unwrap();
        assert_eq!(response["usage"]["completion_tokens"], expected, "{request}");
        assert_eq!(
            response["usage"]["prompt_tokens"],
            request["prompt"].as_array().unwrap().len(),
            "nothing is cut"
        );
    }
    server.wait_until_idle();
}

fn eight_requests_in_a_pool_for_one_all_finish_with_their_own_answers() {
    const NUM_OUTPUT: u64 = 60;
    let (server, judge) = (TINY_POOL.get(), PLAIN.get());
    // The pool holds 1.1 of them.
    let length = u64::from(TINY_POOL_TOKENS) * 10 / 11 - NUM_OUTPUT;
    let requests: Vec<Value> = (0..8)
        .map(|i| {
            json!({
                "prompt": prompts::tokens(80 + i, length), "max_tokens": NUM_OUTPUT, "seed": i,
                "temperature": i % 2, "ignore_eos": true, "logprobs": 1,
            })
        })
        .collect();
    let found = without_a_stall(&server, || server.complete_together(&requests));
    let expected = judge.complete_together(&requests);
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found["choices"], expected["choices"], "request {i}");
    }
    server.wait_until_idle();
}

/// Returns requests to go on with a list of objects, with one right way to go on.
fn probes() -> Vec<Value> {
    let names = ["Ada", "Bruno", "Clara", "David", "Edith", "Felix", "Greta", "Hugo", "Ida", "Jan"];
    let line = |i: usize| {
        let name = names[i % names.len()];
        format!("{{\"id\": {i}, \"name\": \"{name}\", \"age\": {}}}", 20 + 7 * i % 60)
    };
    let probe = |i: usize| {
        let examples: Vec<String> = (0..4).map(line).collect();
        let name = names[i % names.len()];
        let prompt =
            format!("{}\n{{\"id\": {}, \"name\": \"{name}\", \"age\":", examples.join("\n"), i + 4);
        json!({"prompt": prompt, "temperature": 0, "max_tokens": 12, "stop": "\n", "logprobs": 1})
    };
    (0..30).map(probe).collect()
}

fn int8_answers_in_a_full_pool_equal_those_of_an_idle_server_without_a_cache() {
    let (server, judge) = (INT8_POOL.get(), INT8_PLAIN.get());
    let probes = probes();
    let expected: Vec<Value> = probes.iter().map(|probe| judge.complete(probe)).collect();
    let is_done = AtomicBool::new(false);
    let found = thread::scope(|scope| {
        for client in 0..4_u64 {
            let (server, is_done) = (&server, &is_done);
            scope.spawn(move || keep_decoding(server, client, is_done));
        }
        let _done = SetWhenDropped(&is_done);
        without_a_stall(&server, || in_turns(&server, &probes, 4))
    });
    assert!(server.metric("preemptions_total") > 0, "the pool must run out");
    assert!(server.metric("kv_evicted_blocks_total") > 0, "the pool must be full");
    assert!(server.metric("prefix_cache_hit_tokens_total") > 0, "the cache must be in use");
    for ((probe, found), expected) in probes.iter().zip(&found).zip(&expected) {
        assert_eq!(found["choices"], expected["choices"], "{probe}");
        let text = expected["choices"][0]["text"].as_str().unwrap();
        assert!(text.trim_end().ends_with('}'), "{probe}: {text} is no end of an object");
    }
    server.wait_until_idle();
    let prompt = prompts::tokens(90, 70);
    assert_eq!(short_answer(&server, &prompt)["choices"], short_answer(&judge, &prompt)["choices"]);
}

/// Asks for one long answer after the other, all of them unique, until `is_done`.
fn keep_decoding(server: &ServerProcess, client: u64, is_done: &AtomicBool) {
    for i in 0.. {
        let mut stream = server.stream(&json!({
            "prompt": prompts::tokens(2000 + 100 * client + i, 20), "max_tokens": 150,
            "seed": i, "ignore_eos": true,
        }));
        while stream.next_chunk().is_some() {
            if is_done.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}
