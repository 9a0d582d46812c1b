//! Who shares KV with whom, and what clients are told about it.

use crate::client::{Connection, post};
use crate::harness::{Setup, TestServer, wait_until};
use crate::script::Gate;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

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
fn prompts_with_different_salts_share_nothing() {
    let server = TestServer::start(Setup::default());
    let with = |salt: &str| cached(&server, &prompt(), json!({"cache_salt": salt}));
    assert_eq!(cached(&server, &prompt(), json!({})), 0);
    // Neither what is served nor the other salts lends its KV, whatever the salt is called.
    for salt in ["a", "b", "A", "script", "org/other-name", "\0", "0"] {
        assert_eq!(with(salt), 0, "{salt:?}");
    }
    for salt in ["a", "script"] {
        assert!(with(salt) >= 48, "{salt:?}");
    }
    assert!(cached(&server, &prompt(), json!({"cache_salt": null})) >= 48);
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

#[test]
fn a_request_never_waits_for_a_prefix_that_it_may_not_share() {
    // An equal prompt with the same salt waits for the one that computes it; others must not, or
    // waiting would tell that somebody computes the same prompt.
    let server = TestServer::start(Setup { gate: Gate::new(0), ..Setup::default() });
    let send = |salt: &str| {
        let body = json!({"prompt": "ab".repeat(100), "max_tokens": 50, "cache_salt": salt});
        Connection::post(server.address, COMPLETIONS, &body.to_string())
    };
    let first = send("a");
    server.gate.wait_for_step();
    let second = send("b");
    server.gate.pass(1);
    wait_until("both run", || {
        server.gate.pass(1);
        server.metric("mini_infer_running_sequences") == 2
    });
    server.gate.open();
    for connection in [first, second] {
        let usage = &connection.finish().json()["usage"];
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    }
}

#[test]
fn a_prompt_that_is_not_cached_neither_finds_nor_leaves_anything() {
    let server = TestServer::start(Setup::default());
    let off = json!({"cache_prompt": false});
    assert_eq!(cached(&server, &prompt(), off.clone()), 0);
    assert_eq!(server.metric("mini_infer_kv_blocks{state=\"cached\"}"), 0);
    assert_eq!(cached(&server, &prompt(), json!({"cache_prompt": true})), 0);
    assert_eq!(cached(&server, &prompt(), off), 0);
    assert!(cached(&server, &prompt(), json!({"cache_prompt": null})) >= 48);
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
