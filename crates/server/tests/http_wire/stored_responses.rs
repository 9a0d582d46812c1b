//! What is kept of responses: conversations that go on, runs in the background, and whose they are.

use crate::client::{Connection, Response, get};
use crate::harness::{Setup, TestServer, error_of, wait_until};
use crate::responses_api::{RESPONSES, answer, body, send};
use crate::script::Gate;
use crate::tools::hermes;
use mini_infer_server::{AccessConfig, KeyScope, ResponseStoreLimits, ServerConfig};
use serde_json::{Value, json};
use std::time::Duration;

fn id_of(response: &Value) -> String {
    response["id"].as_str().unwrap().to_owned()
}

fn show(server: &TestServer, id: &str) -> Response {
    get(server.address, &format!("{RESPONSES}/{id}"))
}

fn delete(server: &TestServer, id: &str) -> Response {
    Connection::send(server.address, &format!("DELETE {RESPONSES}/{id}"), "", "").finish()
}

/// Sends what a client sends that cancels: no body, and no type of one.
fn cancel(server: &TestServer, id: &str) -> Response {
    Connection::send(server.address, &format!("POST {RESPONSES}/{id}/cancel"), "", "").finish()
}

fn check_error(response: &Response, status: u16, code: &str) {
    assert_eq!(
        (response.status, error_of(response).1.as_str()),
        (status, code),
        "{}",
        response.body
    );
}

/// Starts a response in the background, which waits for `server`'s gate.
fn start(server: &TestServer, fields: Value) -> Value {
    let mut request = body("hi", json!({"background": true, "max_output_tokens": 20}));
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let response = answer(server, &request);
    assert_eq!((&response["status"], &response["background"]), (&json!("queued"), &json!(true)));
    assert_eq!((&response["output"], &response["usage"]), (&json!([]), &Value::Null));
    response
}

fn status(server: &TestServer, id: &str) -> String {
    show(server, id).json()["status"].as_str().unwrap().to_owned()
}

fn gated() -> TestServer {
    TestServer::start(Setup { gate: Gate::new(0), ..Setup::default() })
}

fn with_limits(max_responses: usize, max_bytes: usize) -> TestServer {
    let response_store = ResponseStoreLimits { max_responses, max_bytes };
    let config = ServerConfig { response_store, ..ServerConfig::default() };
    TestServer::start(Setup { config, ..Setup::default() })
}

#[test]
fn a_response_is_kept_as_it_was_told() {
    let server = TestServer::start(Setup::default());
    let told = send(&server, &body("hi", json!({"max_output_tokens": 3})));
    let id = id_of(&told.json());
    assert_eq!(show(&server, &id).body, told.body);
    let streamed = send(&server, &body("hi", json!({"max_output_tokens": 3, "stream": true})));
    let last: Value = streamed
        .events()
        .last()
        .unwrap()
        .split_once("data: ")
        .map(|(_, data)| serde_json::from_str(data).unwrap())
        .unwrap();
    let response = &last["response"];
    assert_eq!(&show(&server, &id_of(response)).json(), response);
    let query = format!("{RESPONSES}/{id}?include[]=reasoning.encrypted_content&stream=false");
    assert_eq!(get(server.address, &query).body, told.body);
    for (query, param) in
        [("stream=true", "stream"), ("starting_after=1", "starting_after"), ("x=1", "x")]
    {
        let refused = get(server.address, &format!("{RESPONSES}/{id}?{query}"));
        assert_eq!((refused.status, error_of(&refused).0.as_str()), (400, param));
    }
    let gone = delete(&server, &id);
    assert_eq!(gone.json(), json!({"id": id, "object": "response", "deleted": true}));
    for refused in [show(&server, &id), delete(&server, &id), cancel(&server, &id)] {
        check_error(&refused, 404, "response_not_found");
    }
    // Without being stored, a response is known to nobody.
    let passing = answer(&server, &body("hi", json!({"max_output_tokens": 1, "store": false})));
    assert_eq!(passing["store"], false);
    check_error(&show(&server, &id_of(&passing)), 404, "response_not_found");
}

#[test]
fn a_conversation_goes_on_from_any_of_its_responses() {
    let server = hermes();
    let tools =
        json!([{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]);
    let first = answer(&server, &body("b", json!({"tools": tools, "instructions": "be brief"})));
    let call_id = first["output"][1]["call_id"].as_str().unwrap();
    let output = json!({"type": "function_call_output", "call_id": call_id, "output": "Rain a"});
    let second = json!({"input": [output], "previous_response_id": id_of(&first), "tools": tools});
    let second = answer(&server, &second);
    assert_eq!(second["previous_response_id"], first["id"]);
    // Deleting the beginning harms nobody who went on from it.
    assert_eq!(delete(&server, &id_of(&first)).status, 200);
    let show = json!({"input": "show", "previous_response_id": id_of(&second), "tools": tools});
    let refused = send(&server, &show);
    assert_eq!(error_of(&refused).0, "input");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    // Instructions hold for their own response only.
    let call = format!(
        concat!(
            r#"{{"role": "assistant", "content": "", "tool_calls": [{{"id": "{}", "#,
            r#""type": "function", "function": {{"name": "get_weather", "#,
            r#""arguments": {{"city": "Köln"}}}}}}], "reasoning_content": "Hm"}}"#
        ),
        call_id
    );
    let expected = [
        r#"[{"role": "user", "content": "b"}"#.to_owned(),
        call,
        format!(r#"{{"role": "tool", "content": "Rain a", "tool_call_id": "{call_id}"}}"#),
        r#"{"role": "assistant", "content": "Plain text"}]"#.to_owned(),
    ];
    assert!(message.contains(&expected.join(", ")), "{message}");
    let gone = send(&server, &body("x", json!({"previous_response_id": id_of(&first)})));
    check_error(&gone, 400, "previous_response_not_found");
    server.wait_until_idle();
}

#[test]
fn what_a_response_was_given_is_listed() {
    let server = TestServer::start(Setup::default());
    let input =
        json!([{"role": "user", "content": "a", "id": "msg_a"}, {"role": "user", "content": "b"}]);
    let first = answer(&server, &json!({"input": input, "max_output_tokens": 1}));
    let fields = json!({"max_output_tokens": 1, "previous_response_id": id_of(&first)});
    let id = id_of(&answer(&server, &body("c", fields)));
    let list = |query: &str| {
        let response = get(server.address, &format!("{RESPONSES}/{id}/input_items{query}"));
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    };
    let texts = |list: &Value| -> Vec<String> {
        let items = list["data"].as_array().unwrap().iter();
        items.map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect()
    };
    let all = list("");
    assert_eq!(texts(&all), ["c", "a", "b", "a"]);
    assert_eq!((&all["object"], &all["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!((&all["first_id"], &all["last_id"]), (&all["data"][0]["id"], &json!("msg_a")));
    let one = json!({"type": "message", "id": "msg_a", "status": "completed", "role": "user",
                     "content": [{"type": "input_text", "text": "a"}]});
    assert_eq!(all["data"][3], one);
    let two = list("?order=asc&limit=2");
    assert_eq!(
        (texts(&two), &two["has_more"]),
        (vec!["a".to_owned(), "b".to_owned()], &json!(true))
    );
    let rest = list(&format!("?order=asc&limit=2&after={}", two["last_id"].as_str().unwrap()));
    assert_eq!(
        (texts(&rest), &rest["has_more"]),
        (vec!["a".to_owned(), "c".to_owned()], &json!(false))
    );
    for (query, param) in
        [("limit=0", "limit"), ("order=up", "order"), ("after=x", "after"), ("y=1", "y")]
    {
        let refused = get(server.address, &format!("{RESPONSES}/{id}/input_items?{query}"));
        assert_eq!((refused.status, error_of(&refused).0.as_str()), (400, param));
    }
    let none = get(server.address, &format!("{RESPONSES}/resp_0/input_items"));
    check_error(&none, 404, "response_not_found");
}

#[test]
fn a_key_sees_its_own_responses_only() {
    let mut access = AccessConfig::default();
    access.keys.add("one", KeyScope::Inference).unwrap();
    access.keys.add("two", KeyScope::Inference).unwrap();
    access.keys.add("root", KeyScope::Management).unwrap();
    let config = ServerConfig { access, ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, ..Setup::default() });
    let send = |key: &str, line: &str, body: &str| {
        let headers = format!("x-api-key: {key}\r\ncontent-type: application/json\r\n");
        Connection::send(server.address, line, &headers, body).finish()
    };
    let create = |key, fields| send(key, "POST /v1/responses", &body("hi", fields).to_string());
    let id = id_of(&create("one", json!({"max_output_tokens": 1})).json());
    for key in ["two", "root"] {
        for line in [
            "GET /v1/responses/ID",
            "DELETE /v1/responses/ID",
            "POST /v1/responses/ID/cancel",
            "GET /v1/responses/ID/input_items",
        ] {
            check_error(&send(key, &line.replace("ID", &id), ""), 404, "response_not_found");
        }
        check_error(
            &create(key, json!({"previous_response_id": id})),
            400,
            "previous_response_not_found",
        );
    }
    assert_eq!(send("one", &format!("GET /v1/responses/{id}"), "").status, 200);
}

#[test]
fn later_responses_push_out_earlier_ones() {
    let server = with_limits(2, 1 << 20);
    let create = |fields: Value| {
        let mut fields = fields;
        fields["max_output_tokens"] = json!(1);
        id_of(&answer(&server, &body("hi", fields)))
    };
    let [first, second] = [0, 1].map(|_| create(json!({})));
    let third = create(json!({"previous_response_id": first}));
    check_error(&show(&server, &second), 404, "response_not_found");
    assert_eq!([&first, &third].map(|id| show(&server, id).status), [200, 200]);
    let small = with_limits(100, 3000);
    let large = answer(
        &small,
        &body(
            &"x".repeat(150),
            json!({"max_output_tokens": 1, "metadata": {"a": "x".repeat(512), "b": "x".repeat(512), "c": "x".repeat(512)}}),
        ),
    );
    check_error(&show(&small, &id_of(&large)), 404, "response_not_found");
}

#[test]
fn a_server_may_keep_nothing() {
    let server = with_limits(100, 0);
    let response = answer(&server, &body("hi", json!({"max_output_tokens": 1})));
    assert_eq!(response["store"], false);
    check_error(&show(&server, &id_of(&response)), 404, "response_not_found");
    for field in ["store", "background"] {
        let refused = send(&server, &body("hi", json!({field: true})));
        assert_eq!((refused.status, error_of(&refused).0.as_str()), (400, field));
    }
}

#[test]
fn a_response_in_the_background_ends_by_itself() {
    let server = gated();
    let response = start(&server, json!({"max_output_tokens": 3}));
    let id = id_of(&response);
    server.gate.pass(1);
    wait_until("it runs", || status(&server, &id) == "in_progress");
    let early = send(&server, &body("x", json!({"previous_response_id": id})));
    check_error(&early, 400, "previous_response_still_runs");
    server.gate.open();
    wait_until("it has ended", || status(&server, &id) == "incomplete");
    let ended = show(&server, &id).json();
    assert_eq!(ended["output"][0]["content"][0]["text"], "abc");
    assert_eq!(ended["usage"]["output_tokens"], 3);
    // What has ended stays as it is.
    assert_eq!(cancel(&server, &id).json(), ended);
    let next =
        answer(&server, &body("x", json!({"previous_response_id": id, "max_output_tokens": 1})));
    assert_eq!(next["status"], "incomplete");
    check_error(&cancel(&server, &id_of(&next)), 400, "response_not_in_background");
}

#[test]
fn a_cancelled_response_keeps_what_it_has_and_frees_its_memory() {
    let server = gated();
    let id = id_of(&start(&server, json!({"max_output_tokens": 200})));
    server.gate.pass(4);
    server.gate.wait_for_step();
    let other = Connection::post(
        server.address,
        RESPONSES,
        &body("hi", json!({"max_output_tokens": 5})).to_string(),
    );
    let cancelled = cancel(&server, &id);
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    let response = cancelled.json();
    assert_eq!((&response["status"], &response["usage"]), (&json!("cancelled"), &Value::Null));
    let text = response["output"][0]["content"][0]["text"].as_str().unwrap_or_default();
    assert!("abcd".starts_with(text), "{text}");
    assert_eq!(show(&server, &id).json(), response);
    assert_eq!(cancel(&server, &id).json(), response);
    server.gate.open();
    // Others are not touched.
    let other = other.finish().json();
    assert_eq!(other["output"][0]["content"][0]["text"], "abcde");
    server.wait_until_idle();
}

#[test]
fn deleting_what_runs_ends_it() {
    let server = gated();
    let id = id_of(&start(&server, json!({"max_output_tokens": 200})));
    server.gate.wait_for_step();
    assert_eq!(delete(&server, &id).status, 200);
    let aborted = "mini_infer_finished_sequences_total{reason=\"abort\"}";
    wait_until("it is aborted", || {
        server.gate.pass(1);
        server.metric(aborted) == 1
    });
    server.wait_until_idle();
    check_error(&show(&server, &id), 404, "response_not_found");
}

#[test]
fn a_failure_in_the_background_is_told() {
    let server = TestServer::start(Setup { num_good_steps: 2, ..Setup::default() });
    let id = id_of(&start(&server, json!({})));
    wait_until("it has failed", || status(&server, &id) == "failed");
    let error = show(&server, &id).json()["error"].clone();
    assert_eq!(error["code"], "server_error");
    assert!(error["message"].as_str().unwrap().contains("the script says so"), "{error}");
}

#[test]
fn what_runs_in_the_background_counts_among_its_clients_requests() {
    let config = ServerConfig { max_requests_per_client: Some(1), ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, gate: Gate::new(0), ..Setup::default() });
    let id = id_of(&start(&server, json!({})));
    check_error(&send(&server, &body("hi", json!({}))), 429, "too_many_requests");
    server.gate.open();
    wait_until("it has ended", || status(&server, &id) == "incomplete");
    // The place is free before the end can be seen.
    assert_eq!(send(&server, &body("hi", json!({"max_output_tokens": 1}))).status, 200);
}

#[test]
fn time_limits_hold_in_the_background() {
    let config =
        ServerConfig { request_timeout: Some(Duration::from_secs(1)), ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, gate: Gate::new(1), ..Setup::default() });
    let id = id_of(&start(&server, json!({})));
    wait_until("its time is over", || status(&server, &id) == "failed");
    server.gate.open();
    server.wait_until_idle();
}

#[test]
fn a_shutdown_waits_for_what_runs_in_the_background() {
    let mut server = gated();
    let id = id_of(&start(&server, json!({"max_output_tokens": 3})));
    server.gate.pass(1);
    wait_until("it runs", || status(&server, &id) == "in_progress");
    server.ask_to_stop();
    wait_until("new requests are refused", || get(server.address, "/health/ready").status == 503);
    assert_eq!(status(&server, &id), "in_progress");
    server.gate.open();
    server.join();
}

#[test]
fn a_stream_that_its_client_leaves_is_not_kept() {
    let server = gated();
    let request = body("hi", json!({"stream": true, "max_output_tokens": 200})).to_string();
    let mut connection = Connection::post(server.address, RESPONSES, &request);
    connection.read_until("response.in_progress");
    server.gate.pass(3);
    connection.read_until("response.output_text.delta");
    let received = connection.received();
    let id = received.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(id.starts_with("resp_"), "{id}");
    drop(connection);
    // A step at a time, or the answer might end before the server has noticed.
    wait_until("it is aborted", || {
        server.gate.pass(1);
        server.metric("mini_infer_finished_sequences_total{reason=\"abort\"}") == 1
    });
    server.wait_until_idle();
    check_error(&show(&server, id), 404, "response_not_found");
}
