//! Requests as those who run a server see them: ids, the access log, deadlines, limits.

use crate::client::{Connection, Response, get, post};
use crate::harness::{PATIENCE, Setup, TestServer, error_of, wait_until};
use crate::script::Gate;
use mini_infer_engine::EngineConfig;
use mini_infer_server::{AccessConfig, KeyScope, ServerConfig};
use serde_json::json;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const COMPLETIONS: &str = "/v1/completions";
const RUNNING: &str = "mini_infer_running_sequences";
const ABORTED: &str = "mini_infer_finished_sequences_total{reason=\"abort\"}";

/// A request that runs until the end of the context.
fn long_body(stream: bool) -> String {
    json!({"prompt": "a", "max_tokens": 255, "ignore_eos": true, "stream": stream}).to_string()
}

fn send(server: &TestServer, headers: &str, body: &str) -> Connection {
    let headers = format!("content-type: application/json\r\n{headers}");
    Connection::send(server.address, &format!("POST {COMPLETIONS}"), &headers, body)
}

fn id(response: &Response) -> &str {
    response.header("x-request-id").unwrap()
}

fn logged(config: ServerConfig) -> (TestServer, Receiver<String>) {
    let (lines, seen) = channel();
    (TestServer::start(Setup { config, access_log: Some(lines), ..Setup::default() }), seen)
}

/// Returns the next line about a request to `route`.
fn next_line(lines: &Receiver<String>, route: &str) -> String {
    let is_wanted = |line: &String| line.contains(&format!(" route={route} "));
    let mut seen = std::iter::from_fn(|| lines.recv_timeout(PATIENCE).ok());
    seen.find(is_wanted).unwrap_or_else(|| panic!("no line about {route}"))
}

#[test]
fn a_request_keeps_a_plain_id_and_gets_one_otherwise() {
    let server = TestServer::start(Setup::default());
    let with = |headers: &str| {
        let response = Connection::send(server.address, "GET /version", headers, "").finish();
        id(&response).to_owned()
    };
    assert_eq!(with("x-request-id: trace-7.a:b\r\n"), "trace-7.a:b");
    let given = [with(""), with("x-request-id: a b\r\n"), with("x-request-id: \u{e9}\r\n")];
    assert!(given.iter().all(|id| id.starts_with("req-") && id.len() == 20), "{given:?}");
    assert_ne!(given[0], given[1]);
    let refused = [
        get(server.address, "/nothing"),
        post(server.address, COMPLETIONS, "{"),
        Connection::send(server.address, "GET /version", "host: evil.example\r\n", "").finish(),
    ];
    for response in refused {
        assert!(response.status >= 400);
        assert_eq!(response.json()["request_id"], id(&response), "{}", response.body);
    }
}

#[test]
fn an_error_inside_a_stream_carries_the_request_s_id() {
    let server = TestServer::start(Setup { num_good_steps: 2, ..Setup::default() });
    let body = json!({"prompt": "a", "max_tokens": 9, "stream": true}).to_string();
    let response = send(&server, "x-request-id: mine\r\n", &body).finish();
    let last = *response.events().last().unwrap();
    assert!(last.starts_with("event: error") && last.contains("\"request_id\":\"mine\""), "{last}");
}

#[test]
fn the_access_log_has_a_line_per_request_and_none_of_its_text() {
    let (server, lines) = logged(ServerConfig::default());
    let body = json!({"prompt": "secret7", "max_tokens": 9, "model": "org/other-name"});
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(stream);
        assert_eq!(send(&server, "x-request-id: mine\r\n", &body.to_string()).finish().status, 200);
        let line = next_line(&lines, COMPLETIONS);
        let (head, tail) = line.split_once(" ms=").unwrap();
        let expected = "access id=mine client=127.0.0.1 method=POST route=/v1/completions \
                        status=200 model=org/other-name prompt_tokens=7 output_tokens=3";
        assert_eq!(head, expected);
        assert!(tail.ends_with(" end=whole") && !line.contains("secret"), "{line}");
    }
    assert_eq!(get(server.address, "/v1/models/secret").status, 404);
    assert_eq!(get(server.address, "/secret").status, 404);
    let line = next_line(&lines, "/v1/models/{*id}");
    assert!(line.contains(" status=404 model=- ") && !line.contains("secret"), "{line}");
    let line = next_line(&lines, "-");
    assert!(line.contains(" status=404 ") && !line.contains("secret"), "{line}");
}

#[test]
fn a_client_that_leaves_is_logged_with_what_it_got() {
    let (lines, seen) = channel();
    let gate = Gate::new(3);
    let server = TestServer::start(Setup { access_log: Some(lines), gate, ..Setup::default() });
    let mut stream = send(&server, "", &long_body(true));
    stream.read_until("\"text\":\"d\"");
    drop(stream);
    // No step passes before the server has noticed, or the answer might end first.
    let line = next_line(&seen, COMPLETIONS);
    assert!(line.contains(" status=200 ") && line.ends_with(" end=cut"), "{line}");
    assert!(!line.contains(" output_tokens=0 "), "{line}");
}

#[test]
fn a_client_that_leaves_before_its_answer_begins_is_logged_too() {
    let (lines, seen) = channel();
    let gate = Gate::new(3);
    let server = TestServer::start(Setup { access_log: Some(lines), gate, ..Setup::default() });
    let whole = send(&server, "", &long_body(false));
    wait_until("it runs", || server.metric("mini_infer_running_sequences") == 1);
    drop(whole);
    let line = next_line(&seen, COMPLETIONS);
    assert!(line.contains(" status=499 ") && line.ends_with(" end=cut"), "{line}");
}

#[test]
fn a_request_beyond_its_time_is_ended_and_frees_its_memory() {
    let config = ServerConfig {
        request_timeout: Some(Duration::from_millis(200)),
        ..ServerConfig::default()
    };
    let server = TestServer::start(Setup { config, gate: Gate::new(2), ..Setup::default() });
    let whole = send(&server, "", &long_body(false));
    let response = whole.finish();
    assert_eq!((response.status, error_of(&response).1.as_str()), (504, "request_timeout"));
    assert!(response.body.contains("longer than 200ms"), "{}", response.body);
    wait_until("it is aborted", || {
        server.gate.pass(1);
        server.metric(ABORTED) == 1
    });
    server.gate.open();
    server.wait_until_idle();
    server.check_alive();
}

#[test]
fn a_stream_beyond_its_time_ends_with_an_error() {
    let server = TestServer::start(Setup { gate: Gate::new(2), ..Setup::default() });
    let response = send(&server, "x-request-timeout: 0.2\r\n", &long_body(true)).finish();
    assert_eq!(response.status, 200);
    let last = *response.events().last().unwrap();
    assert!(last.starts_with("event: error") && last.contains("request_timeout"), "{last}");
    assert!(!response.body.contains("[DONE]"));
    server.gate.open();
    server.wait_for_metric(ABORTED, 1);
    server.wait_until_idle();
}

#[test]
fn a_request_that_waits_is_ended_in_time_too() {
    let engine = EngineConfig { max_num_seqs: 1, ..Setup::default().engine };
    let server = TestServer::start(Setup { engine, gate: Gate::new(1), ..Setup::default() });
    let running = send(&server, "", &long_body(false));
    server.gate.wait_for_step();
    let waiting = send(&server, "x-request-timeout: 0.1\r\n", &long_body(false)).finish();
    assert_eq!((waiting.status, error_of(&waiting).1.as_str()), (504, "request_timeout"));
    server.gate.open();
    assert_eq!(running.finish().json()["usage"]["completion_tokens"], 255);
    server.wait_until_idle();
}

#[test]
fn a_timeout_that_is_no_time_is_refused_and_a_long_one_changes_nothing() {
    let server = TestServer::start(Setup::default());
    for value in ["0", "-1", "soon", "1e300"] {
        let headers = format!("x-request-timeout: {value}\r\n");
        let response = send(&server, &headers, r#"{"prompt": "a"}"#).finish();
        let expected = ("x-request-timeout".to_owned(), "invalid_value".to_owned());
        assert_eq!((response.status, error_of(&response)), (400, expected), "{value}");
    }
    let response = send(&server, "x-request-timeout: 600\r\n", &long_body(false)).finish();
    assert_eq!(response.json()["usage"]["completion_tokens"], 255);
}

#[test]
fn a_client_with_too_many_requests_is_refused_and_others_are_not() {
    let mut access = AccessConfig::default();
    for key in ["one", "two"] {
        access.keys.add(key, KeyScope::Inference).unwrap();
    }
    access.keys.add("watch", KeyScope::Management).unwrap();
    let server = TestServer::start(Setup {
        config: ServerConfig { access, max_requests_per_client: Some(2), ..Default::default() },
        // Room for answers that outlast the test, however many steps pass until both have arrived.
        engine: EngineConfig {
            max_model_len: 200_000,
            num_blocks: 26_000,
            ..Setup::default().engine
        },
        gate: Gate::new(0),
        ..Setup::default()
    });
    let (one, two) = ("x-api-key: one\r\n", "x-api-key: two\r\n");
    let endless_body = |stream: bool| {
        json!({"prompt": "a", "max_tokens": 190_000, "ignore_eos": true, "stream": stream})
            .to_string()
    };
    let running =
        [send(&server, one, &endless_body(false)), send(&server, one, &endless_body(true))];
    wait_until("both run", || {
        server.gate.pass(1);
        let watched = Connection::send(server.address, "GET /metrics", "x-api-key: watch\r\n", "");
        watched.finish().body.contains(&format!("\n{RUNNING} 2\n"))
    });
    let refused = send(&server, one, &long_body(false)).finish();
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(error_of(&refused).1, "too_many_requests");
    let other = send(&server, two, &long_body(false));
    server.gate.open();
    assert_eq!(other.finish().status, 200);
    drop(running);
    let again = || send(&server, one, r#"{"prompt": "x8"}"#).finish().status == 200;
    wait_until("the places are free", again);
}

#[test]
fn without_keys_an_address_is_a_client() {
    let config = ServerConfig { max_requests_per_client: Some(1), ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, gate: Gate::new(1), ..Setup::default() });
    let running = send(&server, "", &long_body(false));
    server.wait_for_metric(RUNNING, 1);
    let refused = post(server.address, COMPLETIONS, &long_body(false));
    assert_eq!((refused.status, error_of(&refused).1.as_str()), (429, "too_many_requests"));
    // What is not for the engine is no request of this kind.
    assert_eq!(get(server.address, "/v1/models").status, 200);
    server.gate.open();
    assert_eq!(running.finish().status, 200);
}
