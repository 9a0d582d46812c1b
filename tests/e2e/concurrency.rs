//! Many at once: what paging and batching are for.

use crate::patience::wait_for;
use crate::prompts;
use crate::server_process::ServerProcess;
use crate::shared_server::DEFAULT;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_paged_pool_runs_four_times_as_many_as_contiguous_memory_of_the_same_bytes,
        eight_clients_get_far_more_tokens_per_second_than_one,
        a_long_prompt_stalls_no_stream_beyond_one_step,
    ]
}

/// Sends requests that ask for a seventh of the longest sequence, some for several choices, and
/// returns the most that were running at once with all answers. Outputs are long enough for the
/// first of them to run still when the last prompt is computed.
fn run_at_once(flags: &[&str]) -> (u64, Vec<Value>) {
    let pool = ["--num-blocks", "256", "--max-model-len", "1024", "--max-num-seqs", "64"];
    let server = ServerProcess::start(&[&pool[..], flags].concat());
    let requests: Vec<Value> = (0..20)
        .map(|i| {
            json!({
                "prompt": prompts::tokens(400 + i, 60), "temperature": i % 2, "seed": i,
                "n": if i % 5 == 0 { 3 } else { 1 }, "max_tokens": 80, "ignore_eos": true,
                "logprobs": 0,
            })
        })
        .collect();
    let mut most_running = 0;
    let responses = thread::scope(|scope| {
        let responses = scope.spawn(|| server.complete_together(&requests));
        while !responses.is_finished() {
            most_running = most_running.max(server.metric("running_sequences"));
            thread::park_timeout(Duration::from_millis(5));
        }
        responses.join().unwrap()
    });
    assert_eq!(server.metric("kv_pool_blocks"), 256);
    let oversize = json!({"prompt": vec![5; 1024], "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &oversize).error().1, "context_length_exceeded");
    (most_running, responses.iter().map(|response| response["choices"].clone()).collect())
}

fn a_paged_pool_runs_four_times_as_many_as_contiguous_memory_of_the_same_bytes() {
    let (contiguous, contiguous_answers) = run_at_once(&["--kv-allocator", "contiguous-max"]);
    assert_eq!(contiguous, 4, "the pool has four times the longest sequence");
    let (paged, paged_answers) = run_at_once(&[]);
    assert!(paged >= 4 * contiguous, "{paged} against {contiguous}");
    // Contiguous memory shares nothing, so this also judges the choices that do.
    assert_eq!(paged_answers, contiguous_answers);
}

fn eight_clients_get_far_more_tokens_per_second_than_one() {
    const NUM_OUTPUT: u64 = 32;
    const NUM_CLIENTS: u64 = 8;
    let server = DEFAULT.get();
    let mut tries = Vec::new();
    for seed in [500, 510, 520] {
        let request = |i| {
            json!({
                "prompt": prompts::tokens(seed + i, 8), "max_tokens": NUM_OUTPUT,
                "ignore_eos": true,
            })
        };
        let timed = |requests: &[Value]| {
            let started_at = Instant::now();
            server.complete_together(requests);
            started_at.elapsed()
        };
        let one = timed(&[request(0)]);
        let eight: Vec<Value> = (1..=NUM_CLIENTS).map(request).collect();
        let eight = timed(&eight);
        // Tokens per second grow by the number of clients times one's time over all their time.
        let gain = NUM_CLIENTS as f64 * one.as_secs_f64() / eight.as_secs_f64();
        if gain > 1.5 {
            return;
        }
        tries.push(gain);
    }
    panic!("gains: {tries:?}");
}

fn a_long_prompt_stalls_no_stream_beyond_one_step() {
    const PROMPT_LENGTH: u64 = 4000;
    /// By default a step computes 512 tokens, one of which is the stream's.
    const NUM_STEPS: u64 = PROMPT_LENGTH.div_ceil(511);
    let server = DEFAULT.get();
    let mut stream = server
        .stream(&json!({"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": true}));
    stream.next_chunk().unwrap();
    let prompt = prompts::tokens(530, PROMPT_LENGTH);
    let sent_at = Instant::now();
    let (gaps, taken) = thread::scope(|scope| {
        let long = scope.spawn(|| {
            server.complete(&json!({"prompt": prompt, "max_tokens": 1}));
            sent_at.elapsed()
        });
        wait_for("both run", || (server.metric("running_sequences") == 2).then_some(()));
        let mut gaps = Vec::new();
        while !long.is_finished() {
            let waited_from = Instant::now();
            stream.next_chunk().unwrap();
            gaps.push(waited_from.elapsed());
        }
        (gaps, long.join().unwrap())
    });
    drop(stream);
    server.wait_until_idle();
    // Each step of the prompt brings the stream a token, so no gap is longer than one step.
    assert!(gaps.len() as u64 + 2 >= NUM_STEPS, "{} tokens in {NUM_STEPS} steps", gaps.len());
    let worst = gaps.iter().max().copied().unwrap_or(Duration::ZERO);
    assert!(worst < taken / 2, "a gap of {worst:?} while the prompt took {taken:?}: {gaps:?}");
}
