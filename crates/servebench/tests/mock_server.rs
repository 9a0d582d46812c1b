//! The mock server's API, as raw bytes on a socket.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use serde_json::{Value, json};
use servebench::mock_server::{MockConfig, MockServer};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

/// An answer: its status, its head, and its body with the chunks put together.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The data of a stream's events.
    fn events(&self) -> Vec<&str> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }

    /// The data of those events that are JSON.
    fn chunks(&self) -> Vec<Value> {
        self.events().iter().filter_map(|event| serde_json::from_str(event).ok()).collect()
    }
}

fn send(server: &MockServer, method: &str, path: &str, body: &Value) -> TcpStream {
    let url = server.url();
    let address = url.trim_start_matches("http://").trim_end_matches("/v1");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: mock\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

/// Reads an answer to its end; an error when the connection breaks before.
fn receive(stream: TcpStream) -> io::Result<Answer> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    let mut body = Vec::new();
    if head.contains("transfer-encoding: chunked") {
        while let Some(chunk) = next_chunk(&mut reader)? {
            body.extend(chunk);
        }
    } else {
        reader.read_to_end(&mut body)?;
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Ok(Answer { status, head, body: String::from_utf8(body).unwrap() })
}

fn next_chunk(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut size = String::new();
    reader.read_line(&mut size)?;
    let size = usize::from_str_radix(size.trim(), 16).map_err(|_| ErrorKind::UnexpectedEof)?;
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk)?;
    chunk.truncate(size);
    Ok((size > 0).then_some(chunk))
}

fn ask(server: &MockServer, method: &str, path: &str, body: &Value) -> Answer {
    receive(send(server, method, path, body)).unwrap()
}

fn ask_chat(server: &MockServer, body: &Value) -> Answer {
    ask(server, "POST", CHAT, body)
}

fn fast() -> MockConfig {
    MockConfig { ttft_ms: 2.0, itl_ms: 1.0, ..MockConfig::default() }
}

/// A chat whose prompt has five words.
fn chat(num_tokens: u32) -> Value {
    let message = |role, content| json!({"role": role, "content": content});
    json!({
        "messages": [message("system", "be brief"), message("user", "a b c")],
        "max_tokens": num_tokens,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
}

#[test]
fn a_chat_streams_its_role_then_tokens_then_usage() {
    let server = MockServer::start(fast()).unwrap();
    let answer = ask_chat(&server, &chat(3));
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/event-stream"));
    assert_eq!(answer.events().last(), Some(&"[DONE]"));
    let chunks = answer.chunks();
    assert_eq!((chunks.len(), answer.events().len()), (6, 7));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(chunks[1]["choices"][0]["delta"]["content"], "");
    for chunk in &chunks[2..5] {
        assert_eq!(chunk["choices"][0]["delta"]["content"], "tok ");
    }
    assert_eq!(chunks[3]["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(chunks[4]["choices"][0]["finish_reason"], "length");
    assert_eq!(chunks[5]["usage"]["prompt_tokens"], 5);
    assert_eq!(chunks[5]["usage"]["completion_tokens"], 3);
}

#[test]
fn reasoning_pieces_and_cached_tokens_are_told() {
    let server = MockServer::start(MockConfig {
        reasoning_tokens: 3,
        tokens_per_chunk: 2,
        cached_tokens: Some(4),
        ..fast()
    })
    .unwrap();
    let chunks = ask_chat(&server, &chat(5)).chunks();
    let delta = |chunk: usize| &chunks[chunk]["choices"][0]["delta"];
    assert_eq!(delta(2)["reasoning_content"], "think think ");
    assert_eq!(delta(3)["reasoning_content"], "think ");
    assert_eq!(delta(4)["content"], "tok tok ");
    assert_eq!(chunks[5]["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
}

#[test]
fn without_streaming_the_answer_comes_whole() {
    let server = MockServer::start(fast()).unwrap();
    let mut request = chat(4);
    request["stream"] = json!(false);
    let answer = ask_chat(&server, &request).json();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["message"]["content"], "tok tok tok tok ");
    assert_eq!(answer["usage"]["total_tokens"], 9);
    let request = json!({"prompt": "a b", "max_tokens": 2});
    let answer = ask(&server, "POST", "/v1/completions", &request).json();
    assert_eq!(answer["choices"][0]["text"], "tok tok ");
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
}

#[test]
fn what_cannot_be_served_is_refused_with_the_right_status() {
    let server = MockServer::start(MockConfig { context_limit: Some(20), ..fast() }).unwrap();
    let too_long = ask_chat(&server, &chat(16));
    assert_eq!(too_long.status, 400);
    assert_eq!(too_long.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(ask_chat(&server, &chat(15)).status, 200);
    assert_eq!(ask_chat(&server, &json!({"messages": []})).status, 400);
    assert_eq!(ask_chat(&server, &chat(0)).status, 400);
    let to_fail = json!({"messages": [{"role": "user", "content": "please FAIL"}]});
    assert_eq!(ask_chat(&server, &to_fail).status, 500);
    assert_eq!(server.stats().refused, 1);
}

#[test]
fn a_full_queue_is_answered_429_and_a_client_that_leaves_makes_room() {
    let stalling = MockConfig { stall_after: Some(1), ..fast() };
    let server =
        MockServer::start(MockConfig { slots: Some(1), max_queue: Some(0), ..stalling }).unwrap();
    let mut stalled = BufReader::new(send(&server, "POST", CHAT, &chat(5)));
    let mut line = String::new();
    while !line.contains("tok") {
        line.clear();
        stalled.read_line(&mut line).unwrap();
    }
    let refused = ask_chat(&server, &chat(1));
    assert_eq!(refused.status, 429);
    assert!(refused.head.contains("retry-after: 1"));
    drop(stalled);
    // The server learns of it from the socket, at a time of its own.
    while server.stats().active > 0 {
        std::thread::yield_now();
    }
    assert_eq!(ask_chat(&server, &chat(1)).status, 200);
}

#[test]
fn streams_break_stop_short_or_lose_their_form_as_they_are_told() {
    let server = MockServer::start(MockConfig { drop_after: Some(2), ..fast() }).unwrap();
    assert!(receive(send(&server, "POST", CHAT, &chat(5))).is_err());
    let mut request = chat(5);
    request["stream"] = json!(false);
    assert!(receive(send(&server, "POST", CHAT, &request)).is_err());

    server.set(MockConfig { no_done: true, ..fast() });
    let answer = ask_chat(&server, &chat(2));
    assert!(answer.events().len() == 4 && !answer.body.contains("length"));

    server.set(MockConfig { malformed_after: Some(1), ..fast() });
    let answer = ask_chat(&server, &chat(3));
    assert_eq!(answer.events()[3], "{this is not json");
    assert_eq!(answer.body.matches("this is not").count(), 1);

    server.set(MockConfig { send_usage: false, ..fast() });
    let answer = ask_chat(&server, &chat(3));
    assert!(answer.body.contains("[DONE]") && !answer.body.contains("usage"));
}

#[test]
fn settings_change_by_name_and_unknown_ones_are_refused() {
    let server = MockServer::start(fast()).unwrap();
    let change = |path: &str, settings: Value| ask(&server, "POST", path, &settings);
    let changed = change("/_mock/config", json!({"itl_ms": 3.0, "slots": 2})).json();
    assert_eq!((&changed["itl_ms"], &changed["ttft_ms"]), (&json!(3.0), &json!(2.0)));
    assert_eq!(ask(&server, "GET", "/_mock/config", &Value::Null).json(), changed);
    for wrong in [json!({"ttft": 1}), json!({"jitter": 0.7}), json!({"slots": 0}), json!([1])] {
        let answer = change("/_mock/config", wrong.clone());
        assert_eq!(answer.status, 400, "{wrong}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    assert_eq!(ask(&server, "GET", "/_mock/config", &Value::Null).json(), changed);
    ask_chat(&server, &chat(2));
    assert_eq!(server.stats().total, 1);
    let reset = change("/_mock/reset", json!({"ttft_ms": 1.0})).json();
    assert_eq!((&reset["itl_ms"], &reset["ttft_ms"]), (&json!(20.0), &json!(1.0)));
    assert_eq!((server.stats().total, server.stats().output_tokens), (0, 0));
}

#[test]
fn models_stats_and_metrics_tell_what_it_is_and_did() {
    let server = MockServer::start(MockConfig { context_limit: Some(99), ..fast() }).unwrap();
    let get = |path| ask(&server, "GET", path, &Value::Null);
    ask_chat(&server, &chat(3));
    let model = get("/v1/models").json();
    assert_eq!(model["data"][0]["id"], "mock-model");
    assert_eq!(model["data"][0]["max_model_len"], 99);
    let stats = get("/stats").json();
    assert_eq!((&stats["total"], &stats["output_tokens"]), (&json!(1), &json!(3)));
    assert_eq!((&stats["peak"], &stats["connections"]), (&json!(1), &json!(3)));
    assert!(stats["late_max_ms"].as_f64().unwrap() > 0.0);
    let metrics = get("/metrics").body;
    let sample = "vllm:generation_tokens_total{model_name=\"mock-model\"} 3\n";
    assert!(metrics.contains(sample), "{metrics}");
    assert!(metrics.contains("# TYPE vllm:num_requests_running gauge\n"));
    assert_eq!(get("/health").status, 200);
}
