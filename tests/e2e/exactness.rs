//! Scheduling never changes output, seen from outside.
//!
//! The judge is [`PLAIN`] with one request at a time: no prefix cache, small chunks, one thread.
//! Everything else, [`DEFAULT`] and [`TINY_POOL`] under load, must give equal texts and equal
//! log probabilities, to the last digit.

use crate::server_process::ServerProcess;
use crate::shared_server::{DEFAULT, PLAIN, TINY_POOL};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::thread;

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        answers_in_company_equal_answers_alone,
        shared_prefixes_of_any_length_change_no_answer,
        preempted_streams_lose_and_repeat_nothing,
    ]
}

const NUM_PROMPTS: usize = 16;
const NUM_ROUNDS: usize = 2;

/// Returns requests that differ in marker, length and sampling; every second one is greedy.
fn mixed_requests() -> Vec<Value> {
    let names = ["Ada", "Bruno", "Clara", "David", "Edith", "Felix", "Greta", "Hugo"];
    let request = |i: usize| {
        let name = names[i % names.len()];
        let filler = "The night was calm and the lamp burned without a fault. ".repeat(i * i / 8);
        let prompt = format!("{filler}Note {i} of the keeper {name}: at {i} o'clock I saw");
        let mut body = json!({
            "prompt": prompt, "max_tokens": 12 + i, "logprobs": 2, "ignore_eos": true,
        });
        let sampling = match i % 4 {
            1 => json!({"temperature": 1.0, "seed": i}),
            3 => json!({"temperature": 0.7, "top_p": 0.9, "top_k": 50, "seed": i}),
            _ => json!({"temperature": 0}),
        };
        body.as_object_mut().unwrap().extend(sampling.as_object().unwrap().clone());
        body
    };
    (0..NUM_PROMPTS).map(request).collect()
}

/// Returns what the client sees of the only choice: text, tokens, log probabilities, reason.
fn only_choice(response: &Value) -> Value {
    response["choices"][0].clone()
}

/// Sends all requests at the same time and returns their choices in order.
fn all_at_once(server: &ServerProcess, requests: &[Value]) -> Vec<Value> {
    server.complete_together(requests).iter().map(only_choice).collect()
}

fn one_by_one(server: &ServerProcess, requests: &[Value]) -> Vec<Value> {
    requests.iter().map(|request| only_choice(&server.complete(request))).collect()
}

/// Returns the judge's choices for [`mixed_requests`].
fn mixed_choices_alone() -> &'static [Value] {
    static CHOICES: OnceLock<Vec<Value>> = OnceLock::new();
    CHOICES.get_or_init(|| one_by_one(&PLAIN.get(), &mixed_requests()))
}

fn check_equal(what: &str, found: &[Value], expected: &[Value]) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "{what}: request {i}");
    }
}

fn answers_in_company_equal_answers_alone() {
    let alone = mixed_choices_alone();
    let requests = mixed_requests();
    for (name, server) in [("without prefix cache", &PLAIN), ("with prefix cache", &DEFAULT)] {
        for round in 0..NUM_ROUNDS {
            let together = all_at_once(&server.get(), &requests);
            check_equal(&format!("{name}, round {round}"), &together, alone);
        }
    }
}

fn shared_prefixes_of_any_length_change_no_answer() {
    let (judge, server) = (PLAIN.get(), DEFAULT.get());
    for prefix_length in [15, 16, 17, 31, 32, 33] {
        let prefix = (0..prefix_length).map(|i| 1000 * prefix_length + 7 * i);
        let request = |ends: u32| {
            let prompt: Vec<u32> = prefix.clone().chain((0..5).map(|i| ends + 3 * i)).collect();
            json!({"prompt": prompt, "temperature": 0, "max_tokens": 6, "logprobs": 1})
        };
        let (first, second) = (request(2000), request(3000));
        for request in [&first, &second, &first] {
            let expected = only_choice(&judge.complete(request));
            let response = server.complete(request);
            assert_eq!(only_choice(&response), expected, "prefix of {prefix_length} tokens");
        }
        let cached_tokens = &server.complete(&first)["usage"]["prompt_tokens_details"];
        assert!(cached_tokens["cached_tokens"].as_u64().unwrap() >= 16, "{cached_tokens}");
    }
}

fn preempted_streams_lose_and_repeat_nothing() {
    let (judge, server) = (PLAIN.get(), TINY_POOL.get());
    let request = |i: u32| {
        let prompt = format!("Letter {i}. Dear friend, today I will tell you about my garden.");
        json!({
            "prompt": prompt, "temperature": i % 2, "seed": i, "ignore_eos": true,
            "max_tokens": 96, "logprobs": 1,
        })
    };
    let requests: Vec<Value> = (0..8).map(request).collect();
    let expected = all_at_once(&judge, &requests);
    let num_preemptions = server.metric("preemptions_total");
    let streamed: Vec<Value> = thread::scope(|scope| {
        let start = |request| {
            let server = &server;
            scope.spawn(move || joined(&server.stream(request).chunks()))
        };
        let threads: Vec<_> = requests.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(server.metric("preemptions_total") > num_preemptions, "the pool must run out");
    check_equal("preempted", &streamed, &expected);
    server.wait_until_idle();
}

/// Joins the chunks of a stream of one choice to the choice of a whole response.
fn joined(chunks: &[Value]) -> Value {
    let mut whole = json!({
        "index": 0, "text": "", "finish_reason": null,
        "logprobs": {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []},
    });
    for choice in chunks.iter().map(|chunk| &chunk["choices"][0]) {
        let text = format!("{}{}", text_of(&whole), text_of(choice));
        whole["text"] = json!(text);
        for (name, list) in whole["logprobs"].as_object_mut().unwrap() {
            let more = choice["logprobs"][name].as_array().into_iter().flatten().cloned();
            list.as_array_mut().unwrap().extend(more);
        }
        if !choice["finish_reason"].is_null() {
            assert!(whole["finish_reason"].is_null(), "a choice ends once");
            whole["finish_reason"] = choice["finish_reason"].clone();
        }
    }
    whole
}

fn text_of(choice: &Value) -> &str {
    choice["text"].as_str().unwrap()
}
