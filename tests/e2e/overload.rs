//! More work than fits: what waits, what is refused, and what must answer all the same.

use crate::patience::assert_within;
use crate::shared_server::{DEFAULT, NARROW};
use libtest_mimic::Trial;
use serde_json::json;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_full_queue_refuses_at_once_and_harms_nobody,
        health_and_metrics_answer_while_a_long_prompt_is_computed,
    ]
}

fn a_full_queue_refuses_at_once_and_harms_nobody() {
    let server = NARROW.get();
    let request = json!({"prompt": "Once upon a time", "max_tokens": 64, "ignore_eos": true});
    let num_refused = server.metric("refused_requests_total");
    let running = server.send("/v1/completions", &request);
    server.wait_for_metric("running_sequences", 1);
    let waiting = [(); 2].map(|()| server.send("/v1/completions", &request));
    server.wait_for_metric("waiting_requests", 2);
    let refused = server.post("/v1/completions", &request);
    assert_eq!(refused.error().0, 429);
    assert_eq!(refused.error().1, "queue_full");
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    server.wait_for_metric("refused_requests_total", num_refused + 1);
    assert_eq!(server.get("/health").status, 200);
    for exchange in [running].into_iter().chain(waiting) {
        assert_eq!(exchange.response().ok()["usage"]["completion_tokens"], 64);
    }
    server.wait_until_idle();
}

fn health_and_metrics_answer_while_a_long_prompt_is_computed() {
    let server = DEFAULT.get();
    let mut first_token = 2000;
    assert_within("9 of 10 answers", Duration::from_millis(100), || {
        // Another prompt each time, or the prefix cache has it.
        first_token += 1;
        let prompt: Vec<u32> = (0..3000).map(|i| first_token + 7 * i).collect();
        let request = json!({"prompt": prompt, "max_tokens": 1});
        let mut times = Vec::new();
        thread::scope(|scope| {
            let prefill = scope.spawn(|| server.complete(&request));
            server.wait_for_metric("running_sequences", 1);
            while !prefill.is_finished() {
                for path in ["/health", "/metrics"] {
                    let asked_at = Instant::now();
                    assert_eq!(server.get(path).status, 200);
                    times.push(asked_at.elapsed());
                }
            }
        });
        assert!(times.len() > 10, "the prompt must be long enough to ask meanwhile");
        times.sort();
        times[times.len() * 9 / 10]
    });
}
