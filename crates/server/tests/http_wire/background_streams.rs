//! Streams of responses in the background: picked up again, read by several, left and ended.

use crate::client::{Connection, Response, get};
use crate::harness::{PATIENCE, Setup, TestServer, error_of, wait_until};
use crate::responses_api::{RESPONSES, answer, body, send};
use crate::script::Gate;
use mini_infer_server::{AccessConfig, KeyScope, ResponseStoreLimits, ServerConfig};
use serde_json::{Value, json};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn gated() -> TestServer {
    TestServer::start(Setup { gate: Gate::new(0), ..Setup::default() })
}

fn with_store(max_responses: usize, max_bytes: usize) -> TestServer {
    let response_store = ResponseStoreLimits { max_responses, max_bytes };
    let config = ServerConfig { response_store, ..ServerConfig::default() };
    TestServer::start(Setup { config, ..Setup::default() })
}

/// Returns a body that asks for a stream in the background, with further fields.
fn streamed(fields: Value) -> Value {
    let mut request = body("hi", json!({"background": true, "stream": true}));
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

/// Starts a stream in the background and reads until it waits for `server`'s gate; also returns
/// its id.
fn start(server: &TestServer, fields: Value) -> (Connection, String) {
    let mut creator = Connection::post(server.address, RESPONSES, &streamed(fields).to_string());
    creator.read_until("event: response.queued");
    let id = id_of(&creator.received());
    (creator, id)
}

/// Returns the first id in a text.
fn id_of(text: &str) -> String {
    text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

/// Begins to read the events of a response.
fn read(server: &TestServer, id: &str, query: &str) -> Connection {
    Connection::send(server.address, &format!("GET {RESPONSES}/{id}?stream=true{query}"), "", "")
}

fn replay(server: &TestServer, id: &str, query: &str) -> String {
    let response = read(server, id, query).finish();
    assert_eq!(response.status, 200, "{}", response.body);
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    response.body
}

fn status(server: &TestServer, id: &str) -> String {
    let response = get(server.address, &format!("{RESPONSES}/{id}"));
    response.json()["status"].as_str().unwrap().to_owned()
}

fn cancel(server: &TestServer, id: &str) -> Response {
    Connection::send(server.address, &format!("POST {RESPONSES}/{id}/cancel"), "", "").finish()
}

fn delete(server: &TestServer, id: &str) {
    let line = format!("DELETE {RESPONSES}/{id}");
    assert_eq!(Connection::send(server.address, &line, "", "").finish().status, 200);
}

/// Returns the name and the data of an event.
fn event(text: &str) -> (String, Value) {
    let (name, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["type"], name);
    (name.to_owned(), data)
}

fn events(body: &str) -> Vec<(String, Value)> {
    body.split_terminator("\n\n").map(event).collect()
}

/// Returns the bytes of the events behind the one with this number.
fn tail(body: &str, after: usize) -> &str {
    let start = body.match_indices("\n\n").nth(after).unwrap().0;
    &body[start + 2..]
}

/// Returns the response that the last event of a stream holds, whose status that event names.
fn end_of(body: &str) -> Value {
    let last = body.strip_suffix("\n\n").unwrap().rsplit("\n\n").next().unwrap();
    let (name, data) = event(last);
    assert_eq!(name, format!("response.{}", data["response"]["status"].as_str().unwrap()));
    data["response"].clone()
}

fn text_of(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

#[test]
fn a_stream_in_the_background_is_queued_first_and_can_be_had_again() {
    let server = TestServer::start(Setup::default());
    let told = send(&server, &streamed(json!({"max_output_tokens": 3})));
    assert_eq!(told.header("content-type"), Some("text/event-stream"), "{}", told.body);
    let seen = events(&told.body);
    let begun: Vec<_> =
        seen[..3].iter().map(|(name, data)| (name.as_str(), &data["response"]["status"])).collect();
    let expected = [
        ("response.created", &json!("queued")),
        ("response.queued", &json!("queued")),
        ("response.in_progress", &json!("in_progress")),
    ];
    assert_eq!(begun, expected);
    let numbers = seen.iter().map(|(_, data)| data["sequence_number"].as_u64().unwrap());
    assert!(numbers.eq(0..seen.len() as u64));
    let deltas = seen.iter().filter(|(name, _)| name == "response.output_text.delta");
    assert_eq!(deltas.count(), 3);
    let ended = end_of(&told.body);
    assert_eq!((text_of(&ended), &ended["background"]), ("abc", &json!(true)));
    let id = ended["id"].as_str().unwrap();
    assert_eq!(get(server.address, &format!("{RESPONSES}/{id}")).json(), ended);
    assert_eq!(replay(&server, id, ""), told.body);
    let query = "&include[]=reasoning.encrypted_content&include_obfuscation=false";
    assert_eq!(replay(&server, id, query), told.body);
    for after in 0..seen.len() {
        let resumed = replay(&server, id, &format!("&starting_after={after}"));
        assert_eq!(resumed, tail(&told.body, after), "{after}");
    }
    // A conversation goes on from it as from others.
    let next = body("x", json!({"previous_response_id": id, "max_output_tokens": 1}));
    assert_eq!(answer(&server, &next)["status"], "incomplete");
    server.wait_until_idle();
}

#[test]
fn a_response_goes_on_when_its_creator_leaves() {
    let server = gated();
    let (mut creator, id) = start(&server, json!({"max_output_tokens": 5}));
    server.gate.pass(2);
    creator.read_until("\"delta\":\"b\"");
    let received = creator.received();
    let body = received.split_once("\r\n\r\n").unwrap().1;
    assert!(body.contains("event: response.in_progress"));
    drop(creator);
    assert_eq!(status(&server, &id), "in_progress");
    // Picked up behind its fifth event, before the end and to the end.
    let mut reader = read(&server, &id, "&starting_after=4");
    reader.read_until("\"delta\":\"b\"");
    assert!(!reader.received().contains("\"sequence_number\":4,"));
    server.gate.open();
    let rest = reader.finish().body;
    assert_eq!(text_of(&end_of(&rest)), "abcde");
    assert_eq!(rest, tail(&replay(&server, &id, ""), 4));
    server.wait_until_idle();
}

#[test]
fn a_response_goes_on_when_its_creator_leaves_before_it_is_admitted() {
    let server = gated();
    let (creator, id) = start(&server, json!({"max_output_tokens": 2}));
    drop(creator);
    server.gate.open();
    wait_until("it has ended", || status(&server, &id) == "incomplete");
    assert_eq!(text_of(&end_of(&replay(&server, &id, ""))), "ab");
    server.wait_until_idle();
}

#[test]
fn all_readers_get_the_same_bytes() {
    let server = gated();
    let (mut creator, id) = start(&server, json!({"max_output_tokens": 30}));
    let early = read(&server, &id, "");
    server.gate.pass(10);
    creator.read_until("\"delta\":\"j\"");
    let late = read(&server, &id, "");
    let behind = read(&server, &id, "&starting_after=7");
    let mut leaving = read(&server, &id, "");
    leaving.read_until("\"delta\":\"c\"");
    drop(leaving);
    server.gate.open();
    let told = creator.finish().body;
    assert_eq!(text_of(&end_of(&told)).len(), 30);
    assert_eq!([early.finish().body, late.finish().body], [told.as_str(), &told]);
    assert_eq!(behind.finish().body, tail(&told, 7));
    server.wait_until_idle();
}

#[test]
fn a_reader_that_takes_nothing_is_closed_and_harms_nobody() {
    let (lines, log) = mpsc::channel();
    let client_timeout = Duration::from_secs(1);
    let config = ServerConfig { client_timeout, ..ServerConfig::default() };
    let setup = Setup { config, gate: Gate::new(0), access_log: Some(lines), ..Setup::default() };
    let server = TestServer::start(setup);
    // Four events repeat the request: more than the buffers of any system hold.
    let request = streamed(json!({"max_output_tokens": 3, "user": "x".repeat(4 << 20)}));
    let mut creator = Connection::post(server.address, RESPONSES, &request.to_string());
    creator.read_until("\"object\":\"response\"");
    let id = id_of(&creator.received());
    let slow = read(&server, &id, "");
    server.gate.open();
    let told = creator.finish().body;
    assert_eq!(text_of(&end_of(&told)), "abc");
    let is_closed = |line: String| line.contains("method=GET") && line.ends_with("end=cut");
    while !is_closed(log.recv_timeout(PATIENCE).unwrap()) {}
    drop(slow);
    assert_eq!(replay(&server, &id, ""), told);
}

#[test]
fn cancelling_ends_all_streams_with_what_there_is() {
    let server = gated();
    let (mut creator, id) = start(&server, json!({"max_output_tokens": 200}));
    let reader = read(&server, &id, "&starting_after=1");
    server.gate.pass(3);
    creator.read_until("\"delta\":\"c\"");
    let cancelled = cancel(&server, &id).json();
    assert_eq!((&cancelled["status"], text_of(&cancelled)), (&json!("cancelled"), "abc"));
    let told = creator.finish().body;
    assert_eq!(end_of(&told), cancelled);
    let names: Vec<_> = events(&told).into_iter().map(|(name, _)| name).collect();
    let expected = [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.cancelled",
    ];
    assert!(names.ends_with(&expected.map(str::to_owned)), "{names:?}");
    assert_eq!(reader.finish().body, tail(&told, 1));
    assert_eq!(replay(&server, &id, ""), told);
    server.gate.open();
    server.wait_until_idle();
    // One that waits for its turn, too.
    let server = gated();
    let (creator, id) = start(&server, json!({}));
    let cancelled = cancel(&server, &id).json();
    assert_eq!(end_of(&creator.finish().body), cancelled);
}

#[test]
fn deleting_ends_all_streams() {
    let server = gated();
    let (mut creator, id) = start(&server, json!({"max_output_tokens": 200}));
    let mut reader = read(&server, &id, "");
    server.gate.pass(2);
    creator.read_until("\"delta\":\"b\"");
    reader.read_until("\"delta\":\"b\"");
    delete(&server, &id);
    for stream in [creator, reader] {
        let ended = end_of(&stream.finish().body);
        assert_eq!((&ended["status"], text_of(&ended)), (&json!("cancelled"), "ab"));
    }
    let gone = read(&server, &id, "").finish();
    assert_eq!((gone.status, error_of(&gone).1.as_str()), (404, "response_not_found"));
    server.gate.open();
    server.wait_until_idle();
}

#[test]
fn a_failure_ends_the_streams_and_is_kept() {
    let server = TestServer::start(Setup { num_good_steps: 2, ..Setup::default() });
    let told = send(&server, &streamed(json!({}))).body;
    let failed = end_of(&told);
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("server_error"))
    );
    assert_eq!(replay(&server, failed["id"].as_str().unwrap(), ""), told);
}

#[test]
fn streams_that_cannot_be_had_are_refused() {
    let server = gated();
    let (mut creator, id) = start(&server, json!({"max_output_tokens": 3}));
    server.gate.pass(1);
    creator.read_until("\"delta\":\"a\"");
    let check = |id: &str, query: &str, status: u16, param: &str, code: &str| {
        let refused = get(server.address, &format!("{RESPONSES}/{id}?{query}"));
        let (told_param, told_code) = error_of(&refused);
        let told = (refused.status, told_param.as_str(), told_code.as_str());
        assert_eq!(told, (status, param, code), "{query}");
    };
    // The last event so far has the number 5.
    let numbers = ["6", "18446744073709551615", "18446744073709551616", "-1", "1.5", "x", "", "+1"];
    for number in numbers {
        let query = format!("stream=true&starting_after={number}");
        check(&id, &query, 400, "starting_after", "invalid_value");
    }
    check(&id, "starting_after=1", 400, "starting_after", "invalid_value");
    check(&id, "stream=false&starting_after=1", 400, "starting_after", "invalid_value");
    check(&id, "stream=yes", 400, "stream", "invalid_value");
    let param = "include_obfuscation";
    check(&id, "stream=true&include_obfuscation=true", 400, param, "unsupported_parameter");
    check(&id, "stream=true&include_obfuscation=1", 400, param, "invalid_value");
    check(&id, "stream=true&after=1", 400, "after", "unknown_parameter");
    check("resp_0", "stream=true", 404, "response_id", "response_not_found");
    server.gate.open();
    creator.finish();
    let others = [json!({}), json!({"background": true}), json!({"stream": true})]
        .map(|fields: Value| id_of(&send(&server, &body("hi", fields)).body));
    for id in others {
        check(&id, "stream=true", 400, "stream", "response_not_streamed");
        wait_until("it has ended", || status(&server, &id) == "incomplete");
        check(&id, "stream=true", 400, "stream", "response_not_streamed");
    }
}

#[test]
fn a_key_reads_its_own_streams_only() {
    let mut access = AccessConfig::default();
    access.keys.add("one", KeyScope::Inference).unwrap();
    access.keys.add("two", KeyScope::Inference).unwrap();
    let config = ServerConfig { access, ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, ..Setup::default() });
    let send = |key: &str, line: &str, body: &str| {
        let headers = format!("x-api-key: {key}\r\ncontent-type: application/json\r\n");
        Connection::send(server.address, line, &headers, body).finish()
    };
    let request = streamed(json!({"max_output_tokens": 1})).to_string();
    let told = send("one", "POST /v1/responses", &request).body;
    let line = format!("GET {RESPONSES}/{}?stream=true", end_of(&told)["id"].as_str().unwrap());
    let refused = send("two", &line, "");
    assert_eq!((refused.status, error_of(&refused).1.as_str()), (404, "response_not_found"));
    assert_eq!(send("one", &line, "").body, told);
}

#[test]
fn events_make_room_before_their_response_does() {
    let sample = TestServer::start(Setup::default());
    let told = send(&sample, &streamed(json!({"max_output_tokens": 20}))).body;
    // Room for one response with all events, and another without.
    let server = with_store(100, 2 * told.len());
    let [first, second] = [0, 1].map(|_| {
        let told = send(&server, &streamed(json!({"max_output_tokens": 20}))).body;
        assert_eq!(end_of(&told)["status"], "incomplete");
        end_of(&told)["id"].as_str().unwrap().to_owned()
    });
    let refused = read(&server, &first, "").finish();
    assert_eq!((refused.status, error_of(&refused).1.as_str()), (404, "response_events_not_found"));
    assert_eq!(status(&server, &first), "incomplete");
    assert_eq!(text_of(&end_of(&replay(&server, &second, ""))).len(), 20);
    // In the end it goes, too.
    let server = with_store(1, 1 << 20);
    let [first, second] = [0, 1].map(|_| {
        let told = send(&server, &streamed(json!({"max_output_tokens": 1}))).body;
        end_of(&told)["id"].as_str().unwrap().to_owned()
    });
    let refused = read(&server, &first, "").finish();
    assert_eq!((refused.status, error_of(&refused).1.as_str()), (404, "response_not_found"));
    assert_eq!(events(&replay(&server, &second, "")).len(), 10);
}

#[test]
fn a_response_whose_events_are_too_many_ends_all_the_same() {
    let server = with_store(100, 12_000);
    let told = send(&server, &streamed(json!({"max_output_tokens": 100}))).body;
    let ended = end_of(&told);
    assert_eq!((&ended["status"], text_of(&ended).len()), (&json!("incomplete"), 100));
    let id = ended["id"].as_str().unwrap();
    assert_eq!(get(server.address, &format!("{RESPONSES}/{id}")).json(), ended);
    let refused = read(&server, id, "").finish();
    assert_eq!((refused.status, error_of(&refused).1.as_str()), (404, "response_events_not_found"));
    server.wait_until_idle();
}

#[test]
fn a_readers_time_limit_ends_its_stream_only() {
    let server = gated();
    let (creator, id) = start(&server, json!({"max_output_tokens": 2}));
    let line = format!("GET {RESPONSES}/{id}?stream=true&starting_after=1");
    let started = Instant::now();
    let reader = Connection::send(server.address, &line, "x-request-timeout: 0.2\r\n", "");
    let body = reader.finish().body;
    assert!(body.starts_with("event: error\n") && body.contains("request_timeout"), "{body}");
    assert!(started.elapsed() < PATIENCE);
    assert_eq!(status(&server, &id), "queued");
    server.gate.open();
    assert_eq!(text_of(&end_of(&creator.finish().body)), "ab");
}

#[test]
fn a_shutdown_waits_for_the_streams() {
    let mut server = gated();
    let (creator, id) = start(&server, json!({"max_output_tokens": 3}));
    server.ask_to_stop();
    wait_until("new requests are refused", || get(server.address, "/health/ready").status == 503);
    let mut reader = read(&server, &id, "");
    reader.read_until("event: response.queued");
    server.gate.open();
    let told = creator.finish().body;
    assert_eq!(text_of(&end_of(&told)), "abc");
    assert_eq!(reader.finish().body, told);
    server.join();
}
