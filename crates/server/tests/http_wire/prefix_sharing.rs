//! Who shares KV with whom, and what clients are told about it.

use crate::client::{Connection, post};
use crate::harness::{Setup, TestServer, wait_until};
use crate::script::Gate;
use mini_infer_engine::EngineConfig;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RUNNING: &str = "mini_infer_running_sequences";

/// Sends a prompt with further fields and returns its number of cached tokens.
fn cached(server: &TestServer, prompt: &str, fields: Value) -> u64 {
    let mut body = json!({"prompt": prompt, "max_tokens": 2, "temperature": 0});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let response = post(server.address, COMPLETIONS, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// A prompt of 60 tokens.
fn prompt() -> String {
    "abcdef".repeat(10)
}

#[test]
fn cached_tokens_are_counted_to_the_first_difference() {
    let server = TestServer::start(Setup::default());
    let first = prompt();
    assert_eq!(cached(&server, &first, json!({})), 0);
    // The last token is always computed, as its logits are wanted.
    assert_eq!(cached(&server, &first, json!({})), 59);
    for num_common in [1, 15, 16, 17, 31, 32, 33, 47, 58] {
        let other = format!("{}#{}", &first[..num_common], "x".repeat(20));
        assert_eq!(cached(&server, &other, json!({})), num_common as u64);
    }
    // A conversation goes on: of the answer `gh`, the last token was told but never computed.
    let longer = format!("{first}ghxyz");
    assert_eq!(cached(&server, &longer, json!({})), 61);
}

#[test]
fn prompts_with_different_salts_share_nothing() {
    let server = TestServer::start(Setup::default());
    let with = |salt: &str| cached(&server, &prompt(), json!({"cache_salt": salt}));
    assert_eq!(cached(&server, &prompt(), json!({})), 0);
    // Neither what is served nor the other salts lends its KV, whatever the salt is called.
    for salt in ["a", "b", "A", "script", "org/other-name", "\0", "0"] {
        assert_eq!(with(salt), 0, "{salt:?}");
    }
    for salt in ["a", "script"] {
        assert_eq!(with(salt), 59, "{salt:?}");
    }
    assert_eq!(cached(&server, &prompt(), json!({"cache_salt": null})), 59);
}

#[test]
fn a_salt_works_for_chat_as_for_text() {
    let server = TestServer::start(Setup::default());
    let chat = |salt: &str| {
        let messages = json!([{"role": "user", "content": prompt()}]);
        let body = json!({"messages": messages, "max_tokens": 1, "cache_salt": salt});
        let response = post(server.address, CHAT, &body.to_string());
        response.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!([chat("a"), chat("b")], [0, 0]);
    assert!(chat("a") > 60);
}

/// Returns how many of two equal prompts run in the step in which both can be admitted.
fn num_admitted_together(salts: [&str; 2]) -> u64 {
    let engine = EngineConfig { max_num_seqs: 2, ..Setup::default().engine };
    let server = TestServer::start(Setup { engine, gate: Gate::new(0), ..Setup::default() });
    let step = || {
        let num_steps = server.metric("mini_infer_steps_total");
        server.gate.pass(1);
        server.wait_for_metric("mini_infer_steps_total", num_steps + 1);
    };
    let send = |prompt: &str, n: u32, salt: &str| {
        let body = json!({"prompt": prompt, "n": n, "max_tokens": 200, "cache_salt": salt});
        Connection::post(server.address, COMPLETIONS, &body.to_string())
    };
    // Takes both places until the two prompts wait side by side.
    let first = send("q", 2, "x");
    server.gate.wait_for_step();
    let waiting = salts.map(|salt| send(&"ab".repeat(12), 1, salt));
    wait_until("both wait", || {
        step();
        server.metric("mini_infer_waiting_sequences") == 2
    });
    wait_until("the places are free", || {
        step();
        server.metric(RUNNING) == 0
    });
    step();
    let num_running = server.metric(RUNNING);
    server.gate.open();
    for connection in waiting.into_iter().chain([first]) {
        assert_eq!(connection.finish().status, 200);
    }
    num_running
}

#[test]
fn each_turn_of_a_conversation_computes_only_what_is_new() {
    let server = TestServer::start(Setup::default());
    let mut messages = vec![json!({"role": "system", "content": "x".repeat(30)})];
    let mut num_computed = 0;
    for question in ["how is 1", "and then 0", "so 5", "last of all 3"] {
        messages.push(json!({"role": "user", "content": question}));
        let body = json!({"messages": messages, "max_tokens": 6, "temperature": 0});
        let json = post(server.address, CHAT, &body.to_string()).json();
        let usage = &json["usage"];
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], num_computed, "{json}");
        // The last token of an answer is told and never computed.
        num_computed = usage["total_tokens"].as_u64().unwrap() - 1;
        messages.push(json["choices"][0]["message"].clone());
    }
}

#[test]
fn a_request_never_waits_for_a_prefix_that_it_may_not_share() {
    // An equal prompt of the same salt waits a step to find what the other computes. One of another
    // salt must not, or its wait would tell that somebody else sends the same prompt.
    assert_eq!(num_admitted_together(["a", "a"]), 1);
    assert_eq!(num_admitted_together(["a", "b"]), 2);
}

#[test]
fn a_prompt_that_is_not_cached_neither_finds_nor_leaves_anything() {
    let server = TestServer::start(Setup::default());
    let off = json!({"cache_prompt": false});
    assert_eq!(cached(&server, &prompt(), off.clone()), 0);
    assert_eq!(server.metric("mini_infer_kv_blocks{state=\"cached\"}"), 0);
    assert_eq!(cached(&server, &prompt(), json!({"cache_prompt": true})), 0);
    assert_eq!(cached(&server, &prompt(), off), 0);
    assert_eq!(cached(&server, &prompt(), json!({"cache_prompt": null})), 59);
}

#[test]
fn the_sums_of_all_usages_are_the_counters() {
    let server = TestServer::start(Setup::default());
    let mut sums = [0, 0, 0];
    let bodies = [
        json!({"prompt": prompt(), "max_tokens": 9}),
        json!({"prompt": prompt(), "max_tokens": 5, "n": 3}),
        json!({"prompt": [prompt(), "x8"], "max_tokens": 5, "best_of": 2}),
        json!({"prompt": prompt() + "?", "max_tokens": 5, "best_of": 3, "use_beam_search": true}),
        json!({"prompt": "x".repeat(50), "max_tokens": 5, "cache_prompt": false}),
        json!({"prompt": "?", "max_tokens": 5, "cache_salt": "a"}),
    ];
    for body in bodies {
        let usage = post(server.address, COMPLETIONS, &body.to_string()).json()["usage"].clone();
        sums[0] += usage["prompt_tokens"].as_u64().unwrap();
        sums[1] += usage["completion_tokens"].as_u64().unwrap();
        sums[2] += usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        // At once: the metrics are never behind what a client was told.
        let counters = [
            server.metric("mini_infer_tokens_total{kind=\"prompt\"}"),
            server.metric("mini_infer_tokens_total{kind=\"output\"}"),
            server.metric("mini_infer_prefix_cache_hit_tokens_total"),
        ];
        assert_eq!(counters, sums, "{body}");
    }
}
