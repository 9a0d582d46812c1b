//! A client's first request does not wait for all that another has queued.

use crate::client::Connection;
use crate::harness::{Setup, TestServer, wait_until};
use crate::script::Gate;
use mini_infer_engine::EngineConfig;
use mini_infer_server::{AccessConfig, KeyScope, ServerConfig};
use serde_json::json;

const NUM_QUEUED: usize = 12;
/// More than the steps that pass while requests arrive.
const NUM_TOKENS: u64 = 200;

fn send(server: &TestServer, line: &str, key: &str, body: &str) -> Connection {
    let headers = format!("content-type: application/json\r\nauthorization: Bearer {key}\r\n");
    Connection::send(server.address, line, &headers, body)
}

/// Lets steps pass until so many requests wait.
fn wait_for_queue(server: &TestServer, num_requests: usize) {
    let expected = format!("mini_infer_waiting_requests {num_requests}\n");
    wait_until(&expected, || {
        server.gate.pass(1);
        send(server, "GET /metrics", "heavy", "").finish().body.contains(&expected)
    });
}

#[test]
fn a_first_request_does_not_wait_for_another_key_s_queue() {
    let mut access = AccessConfig::default();
    for key in ["heavy", "light"] {
        access.keys.add(key, KeyScope::Inference).unwrap();
    }
    let config = ServerConfig { access, ..ServerConfig::default() };
    let default = Setup::default();
    let engine = EngineConfig { max_num_seqs: 1, max_queue_len: 64, ..default.engine };
    let server = TestServer::start(Setup { config, engine, gate: Gate::new(0), ..default });
    let body = json!({"prompt": "a", "max_tokens": NUM_TOKENS, "ignore_eos": true}).to_string();
    let complete = |key| send(&server, "POST /v1/completions", key, &body);
    // One more than wait runs.
    let queued: Vec<Connection> = (0..=NUM_QUEUED).map(|_| complete("heavy")).collect();
    wait_for_queue(&server, NUM_QUEUED);
    let first = complete("light");
    wait_for_queue(&server, NUM_QUEUED + 1);
    // For the one that runs, one that was there before with the same share, and this one.
    server.gate.pass(3 * NUM_TOKENS);
    assert_eq!(first.finish().status, 200);
    server.gate.open();
    for connection in queued {
        assert_eq!(connection.finish().status, 200);
    }
}
