//! Streams, byte by byte.

use crate::client::{Connection, Response, post};
use crate::harness::{Setup, TestServer};
use crate::script::Gate;
use mini_infer_server::ServerConfig;
use serde_json::{Value, json};
use std::time::Duration;

/// Returns a stream's body with what differs between runs replaced.
fn transcript(response: &Response) -> String {
    let first = &response.chunks()[0];
    let id = first["id"].as_str().unwrap();
    let created = format!("\"created\":{}", first["created"]);
    response.body.replace(id, "ID").replace(&created, "\"created\":0")
}

fn stream(server: &TestServer, path: &str, body: Value) -> Response {
    let response = post(server.address, path, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    assert_eq!(response.header("cache-control"), Some("no-cache"));
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    response
}

#[test]
fn a_text_stream_is_these_bytes() {
    let server = TestServer::start(Setup::default());
    let body = json!({
        "prompt": "x7", "max_tokens": 9, "stream": true, "stream_options": {"include_usage": true},
    });
    let response = stream(&server, "/v1/completions", body);
    let head = r#"data: {"id":"ID","object":"text_completion","created":0,"model":"script""#;
    let expected = [
        r#""choices":[{"index":0,"text":"8","logprobs":null,"finish_reason":null}],"usage":null}"#,
        r#""choices":[{"index":0,"text":"9","logprobs":null,"finish_reason":null}],"usage":null}"#,
        r#""choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null}"#,
        r#""choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}}"#,
    ];
    let mut whole: String = expected.map(|rest| format!("{head},{rest}\n\n")).concat();
    whole.push_str("data: [DONE]\n\n");
    assert_eq!(transcript(&response), whole);
}

#[test]
fn a_chat_stream_is_these_bytes() {
    let server = TestServer::start(Setup::default());
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"messages": messages, "max_tokens": 2, "stream": true});
    let response = stream(&server, "/v1/chat/completions", body);
    let head = r#"data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"script""#;
    let expected = [
        r#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null"#,
        r#""delta":{"content":"a"},"logprobs":null,"finish_reason":null"#,
        r#""delta":{"content":"b"},"logprobs":null,"finish_reason":null"#,
        r#""delta":{},"logprobs":null,"finish_reason":"length""#,
    ];
    let chunk = |rest: &str| format!("{head},\"choices\":[{{\"index\":0,{rest}}}]}}\n\n");
    let mut whole: String = expected.map(chunk).concat();
    whole.push_str("data: [DONE]\n\n");
    assert_eq!(transcript(&response), whole);
}

#[test]
fn a_character_of_four_tokens_comes_in_one_chunk() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": "!", "max_tokens": 9, "stream": true});
    let response = stream(&server, "/v1/completions", body);
    let texts: Vec<String> = response
        .chunks()
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(texts, ["😀", ".", ""]);
    let cut = json!({"prompt": "!", "max_tokens": 2});
    let whole = post(server.address, "/v1/completions", &cut.to_string()).json();
    assert_eq!(whole["choices"][0]["text"], "\u{FFFD}");
}

#[test]
fn no_part_of_a_stop_string_is_streamed() {
    let server = TestServer::start(Setup::default());
    let body = json!({
        "prompt": "a", "max_tokens": 99, "stream": true, "stop": ["efx", "ghij"],
        "stream_options": {"include_usage": true},
    });
    let response = stream(&server, "/v1/completions", body);
    let chunks = response.chunks();
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "bcdef");
    let usage = chunks.last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 9);
    server.wait_until_idle();
}

#[test]
fn the_engine_stops_where_a_stop_string_was_found() {
    let server = TestServer::start(Setup { gate: Gate::new(5), ..Setup::default() });
    let body = json!({"prompt": "a", "max_tokens": 200, "stop": "def", "stream": true});
    let mut connection = Connection::post(server.address, "/v1/completions", &body.to_string());
    connection.read_until("\"finish_reason\":\"stop\"");
    server.gate.open();
    assert!(connection.finish().body.ends_with("data: [DONE]\n\n"));
    server.wait_until_idle();
    server.wait_for_metric("mini_infer_finished_sequences_total{reason=\"stop\"}", 1);
}

#[test]
fn each_choice_of_a_stream_opens_grows_and_ends() {
    let server = TestServer::start(Setup::default());
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"messages": messages, "max_tokens": 2, "n": 3, "stream": true});
    let response = stream(&server, "/v1/chat/completions", body);
    for index in 0..3 {
        let chunks = response.chunks();
        let own: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|choice| choice["index"] == index)
            .collect();
        assert_eq!(own.len(), 4, "{own:?}");
        assert_eq!(own[0]["delta"]["role"], "assistant");
        assert_eq!(own[2]["delta"]["content"], "b");
        assert_eq!(own[3]["finish_reason"], "length");
    }
    assert_eq!(response.events().last(), Some(&"data: [DONE]"));
}

#[test]
fn streamed_log_probabilities_come_with_their_text() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": "!", "max_tokens": 9, "stream": true, "logprobs": 0});
    let response = stream(&server, "/v1/completions", body);
    let first = &response.chunks()[0]["choices"][0];
    assert_eq!(first["text"], "😀");
    assert_eq!(first["logprobs"]["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(first["logprobs"]["text_offset"], json!([0, 0, 0, 0]));
}

#[test]
fn a_silent_stream_is_kept_open_with_comments() {
    let config =
        ServerConfig { ping_interval: Duration::from_millis(10), ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, gate: Gate::new(0), ..Setup::default() });
    let body = json!({"prompt": "x8", "max_tokens": 9, "stream": true});
    let mut connection = Connection::post(server.address, "/v1/completions", &body.to_string());
    connection.read_until(": ping\n\n");
    server.gate.open();
    let response = connection.finish();
    assert!(response.body.ends_with("data: [DONE]\n\n"));
}

#[test]
fn an_engine_failure_ends_a_stream_with_an_error_and_no_finish_reason() {
    let server = TestServer::start(Setup { num_good_steps: 2, ..Setup::default() });
    let body = json!({"prompt": "a", "max_tokens": 9, "stream": true});
    let response = stream(&server, "/v1/completions", body);
    let events = response.events();
    // Tokens that arrive together may share a chunk.
    assert!((2..=3).contains(&events.len()), "{events:?}");
    let last = events.last().unwrap();
    assert!(last.starts_with("event: error\ndata: {\"error\":{"), "{last}");
    assert!(last.contains("the script says so"));
    assert!(!response.body.contains("\"finish_reason\":\"") && !response.body.contains("[DONE]"));
    let whole = post(server.address, "/v1/completions", r#"{"prompt": "a"}"#);
    assert_eq!(whole.status, 500, "{}", whole.body);
    server.wait_for_metric("mini_infer_finished_sequences_total{reason=\"error\"}", 2);
}
