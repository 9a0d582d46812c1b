//! Embeddings over the wire.
//!
//! The script's hidden state of a token is its id, 1, and the id of what follows it.

use crate::client::{Connection, post};
use crate::harness::{Setup, TestServer, error_of, wait_until};
use crate::script::Gate;
use mini_infer_engine::EngineConfig;
use serde_json::{Value, json};

const EMBEDDINGS: &str = "/v1/embeddings";
const ABORTED: &str = "mini_infer_finished_sequences_total{reason=\"abort\"}";

fn ask(server: &TestServer, body: Value) -> Value {
    let response = post(server.address, EMBEDDINGS, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn vector(json: &Value, index: usize) -> Vec<f32> {
    let object = &json["data"][index];
    assert_eq!((&object["object"], &object["index"]), (&json!("embedding"), &json!(index)));
    serde_json::from_value(object["embedding"].clone()).unwrap()
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
fn narrow(value: f64) -> f32 {
    value as f32
}

/// The mean of the script's states of a text, of which `cut` dimensions are scaled to a norm of 1.
fn expected(text: &str, cut: usize) -> Vec<f32> {
    let mean = |value: fn(u8) -> f64| text.bytes().map(value).sum::<f64>() / text.len() as f64;
    let next = |byte| if byte == b'z' { f64::from(b'a') } else { f64::from(byte) + 1.0 };
    let mean = [mean(f64::from), 1.0, mean(next)].map(|value| f64::from(narrow(value)));
    let norm = mean[..cut].iter().map(|value| value * value).sum::<f64>().sqrt();
    mean[..cut].iter().map(|value| narrow(value / norm)).collect()
}

#[test]
fn an_input_in_any_form_gives_its_unit_vector() {
    let server = TestServer::start(Setup::default());
    let json = ask(&server, json!({"input": "xyz", "model": "script", "user": "me"}));
    assert_eq!((&json["object"], &json["model"]), (&json!("list"), &json!("script")));
    assert_eq!(json["usage"], json!({"prompt_tokens": 3, "total_tokens": 3}));
    assert_eq!(vector(&json, 0), expected("xyz", 3));
    let json = ask(&server, json!({"input": ["xyz", "a"]}));
    assert_eq!([vector(&json, 0), vector(&json, 1)], [expected("xyz", 3), expected("a", 3)]);
    assert_eq!(json["usage"]["total_tokens"], 4);
    assert_eq!(vector(&ask(&server, json!({"input": [120, 121, 122]})), 0), expected("xyz", 3));
    let json = ask(&server, json!({"input": [[97], [120, 121, 122]]}));
    assert_eq!([vector(&json, 0), vector(&json, 1)], [expected("a", 3), expected("xyz", 3)]);
    server.wait_until_idle();
    assert_eq!(server.metric("mini_infer_kv_blocks{state=\"cached\"}"), 0, "nothing is kept");
}

#[test]
fn fewer_dimensions_are_scaled_again() {
    let server = TestServer::start(Setup::default());
    let json = ask(&server, json!({"input": "xyz", "dimensions": 2, "encoding_format": "float"}));
    assert_eq!(vector(&json, 0), expected("xyz", 2));
    let json = ask(&server, json!({"input": "xyz", "dimensions": 1}));
    assert_eq!(vector(&json, 0), [1.0]);
}

#[test]
fn base64_holds_the_same_bits() {
    let server = TestServer::start(Setup::default());
    let json = ask(&server, json!({"input": "xyz", "dimensions": 1, "encoding_format": "base64"}));
    // 00 00 80 3f
    assert_eq!(json["data"][0]["embedding"], "AACAPw==");
}

#[test]
fn many_inputs_go_through_a_small_queue_in_their_order() {
    // Four requests may wait.
    let server = TestServer::start(Setup::default());
    let texts: Vec<String> = (0..100).map(|i| "abc"[..1 + i % 3].repeat(1 + i % 7)).collect();
    let json = ask(&server, json!({"input": texts}));
    for (i, text) in texts.iter().enumerate() {
        assert_eq!(vector(&json, i), expected(text, 3), "{text}");
    }
    server.wait_until_idle();
    server.check_alive();
}

#[test]
fn chunks_change_no_bit() {
    let embedded = |max_batched_tokens| {
        let engine = EngineConfig { max_batched_tokens, ..Setup::default().engine };
        let server = TestServer::start(Setup { engine, ..Setup::default() });
        ask(&server, json!({"input": ["abcdefg".repeat(30), "xy".repeat(9)]}))["data"].clone()
    };
    assert_eq!(embedded(64), embedded(11));
}

#[test]
fn what_cannot_be_embedded_is_refused_by_field() {
    let server = TestServer::start(Setup::default());
    let cases = [
        (json!({}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [[]]}), "input[0]"),
        (json!({"input": ["a", 5]}), "input[1]"),
        (json!({"input": [999_999]}), "input"),
        (json!({"input": {"text": "a"}}), "input"),
        (json!({"input": vec!["a"; 2049]}), "input"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": 4}), "dimensions"),
        (json!({"input": "a", "dimensions": -1}), "dimensions"),
        (json!({"input": "a", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "a", "truncate": true}), "truncate"),
    ];
    for (body, param) in cases {
        let response = post(server.address, EMBEDDINGS, &body.to_string());
        assert_eq!(response.status, 400, "{body}: {}", response.body);
        assert_eq!(error_of(&response).0, param, "{body}");
    }
    let response = post(server.address, EMBEDDINGS, r#"{"input": "a", "model": "other"}"#);
    assert_eq!((response.status, error_of(&response).1.as_str()), (404, "model_not_found"));
    server.check_alive();
    server.wait_until_idle();
}

#[test]
fn an_input_may_fill_the_context_and_no_more() {
    let server = TestServer::start(Setup::default());
    assert_eq!(vector(&ask(&server, json!({"input": "a".repeat(256)})), 0), expected("a", 3));
    let body = json!({"input": ["a", "a".repeat(257)]}).to_string();
    let response = post(server.address, EMBEDDINGS, &body);
    assert_eq!(response.status, 400);
    assert_eq!(error_of(&response), ("input".to_owned(), "context_length_exceeded".to_owned()));
    assert!(
        response.body.contains("256 tokens and the longest input has 257"),
        "{}",
        response.body
    );
    server.wait_until_idle();
}

#[test]
fn a_client_that_leaves_frees_its_inputs() {
    let server = TestServer::start(Setup { gate: Gate::new(0), ..Setup::default() });
    // Four steps each.
    let body = json!({"input": vec!["a".repeat(250); 60]}).to_string();
    let headers = "content-type: application/json\r\n";
    let connection =
        Connection::send(server.address, &format!("POST {EMBEDDINGS}"), headers, &body);
    server.gate.wait_for_step();
    drop(connection);
    wait_until("they are aborted", || {
        server.gate.pass(1);
        server.metric(ABORTED) >= 1
    });
    server.gate.open();
    server.wait_until_idle();
    server.check_alive();
}

#[test]
fn a_device_that_fails_is_our_fault() {
    let server = TestServer::start(Setup { num_good_steps: 0, ..Setup::default() });
    let response = post(server.address, EMBEDDINGS, r#"{"input": "a"}"#);
    assert_eq!((response.status, error_of(&response).1.as_str()), (500, "engine_error"));
}
