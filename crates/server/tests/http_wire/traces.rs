//! Spans, as a collector gets them.

use crate::client::{Connection, get};
use crate::harness::{PATIENCE, Setup, TestServer};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Stands in for a collector: returns its address, and what it is sent.
fn collector() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (bodies, seen) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            while let Some(body) = read_request(&mut reader) {
                if bodies.send(body).is_err() {
                    return;
                }
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                reader.get_mut().write_all(answer).unwrap();
            }
        }
    });
    (endpoint, seen)
}

/// Reads a request for `/v1/traces`; `None` when the connection ended.
fn read_request(reader: &mut impl BufRead) -> Option<Value> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    assert_eq!(line.trim(), "POST /v1/traces HTTP/1.1");
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Some(serde_json::from_slice(&body).unwrap())
}

/// Sends a request for two tokens.
fn complete(server: &TestServer, headers: &str) {
    let headers = format!("content-type: application/json\r\nx-request-id: mine\r\n{headers}");
    let body = r#"{"prompt": "secret", "max_tokens": 2}"#;
    let line = "POST /v1/completions";
    let response = Connection::send(server.address, line, &headers, body).finish();
    assert_eq!(response.status, 200, "{}", response.body);
}

/// Returns the next spans that the collector was sent.
fn next_spans(seen: &Receiver<Value>) -> Vec<Value> {
    let body = seen.recv_timeout(PATIENCE).unwrap();
    let service = &body["resourceSpans"][0]["resource"]["attributes"][0];
    assert_eq!(service["value"]["stringValue"], "mini-infer");
    assert!(!body.to_string().contains("secret"), "{body}");
    body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    &attributes.iter().find(|attribute| attribute["key"] == key).unwrap()["value"]
}

fn nanos(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

#[test]
fn a_request_becomes_a_span_with_its_phases_below_it() {
    let (endpoint, seen) = collector();
    let server = TestServer::start(Setup { otlp_endpoint: Some(endpoint), ..Setup::default() });
    assert_eq!(get(server.address, "/health").status, 200);
    complete(&server, &format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n"));
    let spans = next_spans(&seen);
    let names: Vec<_> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["POST /v1/completions", "queue", "prefill", "decode"]);
    let root = &spans[0];
    assert_eq!((&root["traceId"], &root["parentSpanId"]), (&TRACE.into(), &PARENT.into()));
    assert_eq!(attribute(root, "gen_ai.usage.input_tokens")["intValue"], "6");
    assert_eq!(attribute(root, "gen_ai.usage.output_tokens")["intValue"], "2");
    assert_eq!(attribute(root, "gen_ai.request.model")["stringValue"], "script");
    assert_eq!(attribute(root, "mini_infer.request_id")["stringValue"], "mine");
    assert_eq!(attribute(root, "http.response.status_code")["intValue"], "200");
    for phases in spans[1..].windows(2) {
        assert_eq!(phases[0]["endTimeUnixNano"], phases[1]["startTimeUnixNano"]);
    }
    for phase in &spans[1..] {
        assert_eq!((&phase["traceId"], &phase["parentSpanId"]), (&TRACE.into(), &root["spanId"]));
        assert!(nanos(&phase["startTimeUnixNano"]) >= nanos(&root["startTimeUnixNano"]));
        assert!(nanos(&phase["endTimeUnixNano"]) <= nanos(&root["endTimeUnixNano"]));
    }
    assert!(nanos(&root["startTimeUnixNano"]) > 1_700_000_000_000_000_000);
}

#[test]
fn a_trace_that_is_not_sampled_is_not_sent() {
    let (endpoint, seen) = collector();
    let server = TestServer::start(Setup { otlp_endpoint: Some(endpoint), ..Setup::default() });
    complete(&server, &format!("traceparent: 00-{TRACE}-{PARENT}-00\r\n"));
    complete(&server, "traceparent: nonsense\r\n");
    // The server sends what it has when it ends.
    drop(server);
    let spans = next_spans(&seen);
    assert_eq!(spans.len(), 4);
    assert!(spans.iter().all(|span| span["traceId"] != TRACE));
    assert!(spans[0].get("parentSpanId").is_none());
}

#[test]
fn requests_go_on_without_a_collector() {
    // Bound and dropped: nobody listens there.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let otlp_endpoint = Some(format!("http://{address}"));
    let server = TestServer::start(Setup { otlp_endpoint, ..Setup::default() });
    for _ in 0..3 {
        complete(&server, "");
    }
    server.check_alive();
}
