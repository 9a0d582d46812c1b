//! Anthropic's Messages API: whole, streamed and refused.

use crate::client::{Connection, Response, get, post};
use crate::harness::{Setup, TestServer, wait_until};
use crate::script::Gate;
use crate::tools::{hermes, start};
use mini_infer_server::{AccessConfig, KeyScope, ServerConfig};
use mini_infer_text::ReasoningFormat;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

pub(crate) fn send(server: &TestServer, body: &Value) -> Response {
    post(server.address, MESSAGES, &body.to_string())
}

fn answer(server: &TestServer, body: &Value) -> Value {
    let response = send(server, body);
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// Returns a body that asks one thing, with further fields.
pub(crate) fn body(ask: &str, fields: Value) -> Value {
    let mut body = json!({"max_tokens": 50, "messages": [{"role": "user", "content": ask}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Checks that a response is an error of Anthropic's shape; returns its type and message.
pub(crate) fn error_of(response: &Response) -> (String, String) {
    let json = response.json();
    assert_eq!(json["type"], "error", "{json}");
    assert!(json["request_id"].is_string(), "{json}");
    let fields: Vec<&String> = json["error"].as_object().unwrap().keys().collect();
    assert_eq!(fields[..2], ["type", "message"], "{json}");
    let text = |field: &str| json["error"][field].as_str().unwrap().to_owned();
    (text("type"), text("message"))
}

pub(crate) fn check_error(response: &Response, status: u16, kind: &str) {
    assert_eq!((response.status, error_of(response).0.as_str()), (status, kind));
}

/// Returns the events of a stream, whose names must be their types.
fn events(response: &Response) -> Vec<Value> {
    let read = |event: &&str| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    response.events().iter().map(read).collect()
}

/// Puts a stream together as Anthropic's client does, and checks the order of its events.
fn joined(server: &TestServer, body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let response = send(server, &body);
    assert_eq!(response.header("content-type"), Some("text/event-stream"), "{}", response.body);
    let events = events(&response);
    let mut message = events[0]["message"].clone();
    assert_eq!(message["content"], json!([]));
    let (mut open, mut arguments) = (None, String::new());
    for event in &events[1..] {
        let index = event["index"].as_u64();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!((open, index), (None, Some(content.len() as u64)));
                content.push(event["content_block"].clone());
                (open, arguments) = (index, String::new());
            }
            "content_block_delta" => {
                assert_eq!(open, index);
                let block = message["content"].as_array_mut().unwrap().last_mut().unwrap();
                let (field, delta) = match event["delta"]["type"].as_str().unwrap() {
                    "text_delta" => ("text", &event["delta"]["text"]),
                    "thinking_delta" => ("thinking", &event["delta"]["thinking"]),
                    "input_json_delta" => {
                        arguments.push_str(event["delta"]["partial_json"].as_str().unwrap());
                        continue;
                    }
                    other => panic!("{other}"),
                };
                let before = block[field].as_str().unwrap();
                block[field] = json!(format!("{before}{}", delta.as_str().unwrap()));
            }
            "content_block_stop" => {
                assert_eq!(open.take(), index);
                if !arguments.is_empty() {
                    let block = message["content"].as_array_mut().unwrap().last_mut().unwrap();
                    assert_eq!(block["input"], json!({}));
                    let whole = serde_json::from_str(&arguments);
                    block["input"] = whole.unwrap_or(json!({"INVALID_JSON": arguments}));
                }
            }
            "message_delta" => {
                assert_eq!(open, None);
                let fields = event["delta"].as_object().unwrap().clone();
                message.as_object_mut().unwrap().extend(fields);
                message["usage"] = event["usage"].clone();
            }
            other => assert_eq!(other, "message_stop"),
        }
    }
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    message
}

/// Asks whole and streamed, and checks that both say the same but for ids and cache hits.
pub(crate) fn ask(server: &TestServer, body: &Value) -> Value {
    let (mut whole, mut streamed) = (answer(server, body), joined(server, body));
    for message in [&mut whole, &mut streamed] {
        assert!(message["id"].as_str().unwrap().starts_with("msg_"), "{message}");
        message["id"] = Value::Null;
        let usage = &mut message["usage"];
        let count = |field: &str| usage[field].as_u64().unwrap();
        let num_prompt_tokens = count("input_tokens") + count("cache_read_input_tokens");
        *usage = json!({"prompt": num_prompt_tokens, "output": count("output_tokens")});
        for block in message["content"].as_array_mut().unwrap() {
            if block["type"] == "tool_use" {
                assert!(block["id"].as_str().unwrap().starts_with("toolu_"), "{block}");
                block["id"] = Value::Null;
            }
        }
    }
    assert_eq!(whole, streamed);
    whole
}

fn tools() -> Value {
    json!({"tools": [{"name": "get_weather", "input_schema": {"type": "object"}}]})
}

fn call() -> Value {
    json!({"type": "tool_use", "id": null, "name": "get_weather", "input": {"city": "Köln"}})
}

#[test]
fn a_message_has_every_field_that_clients_require() {
    let server = TestServer::start(Setup::default());
    let mut whole = answer(&server, &body("hi", json!({"max_tokens": 3, "model": "script"})));
    assert!(whole["id"].as_str().unwrap().starts_with("msg_"));
    whole["id"] = Value::Null;
    let expected = json!({
        "id": null, "type": "message", "role": "assistant", "model": "script",
        "content": [{"type": "text", "text": "abc"}],
        "stop_reason": "max_tokens", "stop_sequence": null,
        "usage": {
            "input_tokens": 21, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": 3,
        },
    });
    assert_eq!(whole, expected);
}

#[test]
fn a_stream_is_these_bytes() {
    let server = TestServer::start(Setup::default());
    let response = send(&server, &body("hi", json!({"max_tokens": 2, "stream": true})));
    let id = events(&response)[0]["message"]["id"].as_str().unwrap().to_owned();
    let expected = [
        r#"message_start","message":{"id":"ID","type":"message","role":"assistant","model":"script","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":21,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}"#,
        r#"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}"#,
        r#"content_block_delta","index":0,"delta":{"type":"text_delta","text":"b"}}"#,
        r#"content_block_stop","index":0}"#,
        r#"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":{"input_tokens":21,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":2}}"#,
        r#"message_stop"}"#,
    ];
    let event = |rest: &str| {
        let name = rest.split('"').next().unwrap();
        format!("event: {name}\ndata: {{\"type\":\"{rest}\n\n")
    };
    assert_eq!(response.body.replace(&id, "ID"), expected.map(event).concat());
}

#[test]
fn why_a_message_ended_is_told() {
    let server = TestServer::start(Setup::default());
    let stopped = ask(&server, &body("hi", json!({"stop_sequences": ["zz", "cd"]})));
    assert_eq!(stopped["content"], json!([{"type": "text", "text": "ab"}]));
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("cd"))
    );
    // The last message, the assistant's, is the beginning of the answer.
    let messages =
        json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x7"}]);
    let ended = ask(&server, &body("", json!({"messages": messages})));
    assert_eq!(ended["content"], json!([{"type": "text", "text": "89"}]));
    assert_eq!(
        (&ended["stop_reason"], &ended["stop_sequence"]),
        (&json!("end_turn"), &Value::Null)
    );
    server.wait_until_idle();
}

#[test]
fn calls_and_thinking_are_blocks() {
    let server = hermes();
    let with_call = ask(&server, &body("c", tools()));
    assert_eq!(
        (&with_call["content"], &with_call["stop_reason"]),
        (&json!([call()]), &json!("tool_use"))
    );
    let two = ask(&server, &body("d", tools()));
    assert_eq!(two["content"], json!([{"type": "text", "text": "Two:"}, call(), call()]));
    let thinking = |text: &str| json!({"type": "thinking", "thinking": text, "signature": ""});
    let both = ask(&server, &body("b", tools()));
    assert_eq!(both["content"], json!([thinking("Hm"), call()]));
    let reasoned = ask(&server, &body("r", json!({})));
    assert_eq!(
        reasoned["content"],
        json!([thinking("Why not?"), {"type": "text", "text": "Yes."}])
    );
    assert_eq!(reasoned["stop_reason"], "end_turn");
    server.wait_until_idle();
}

#[test]
fn choices_of_tools_bound_the_calls() {
    let server = hermes();
    let mut one = body("d", tools());
    one["tool_choice"] = json!({"type": "auto", "disable_parallel_tool_use": true});
    assert_eq!(ask(&server, &one)["content"].as_array().unwrap()[1..], [call()]);
    let mut none = body("c", tools());
    none["tool_choice"] = json!({"type": "none"});
    let text = ask(&server, &none);
    assert_eq!(
        (&text["content"][0]["type"], &text["stop_reason"]),
        (&json!("text"), &json!("end_turn"))
    );
    let nothing = json!({"type": "object", "additionalProperties": false});
    let closed = json!({"tools": [{"name": "get_weather", "input_schema": nothing}]});
    let no_input = json!({"type": "tool_use", "id": null, "name": "get_weather", "input": {}});
    let any = json!({"type": "any", "disable_parallel_tool_use": true});
    for choice in [any, json!({"type": "tool", "name": "get_weather"})] {
        // Alone, the model would answer this with text.
        let mut forced = body("c", closed.clone());
        (forced["tool_choice"], forced["max_tokens"]) = (choice, json!(120));
        // Tokens of several lengths make the same text.
        forced["temperature"] = json!(0);
        let message = ask(&server, &forced);
        assert_eq!(message["content"], json!([no_input]));
        assert_eq!(message["stop_reason"], "tool_use");
    }
}

#[test]
fn arguments_that_were_cut_are_told_as_text() {
    let server = hermes();
    let mut cut = body("c", tools());
    cut["max_tokens"] = json!(4);
    let message = ask(&server, &cut);
    assert_eq!(message["content"][0]["input"], json!({"INVALID_JSON": "{\"city\": \"K"}));
    assert_eq!(message["stop_reason"], "max_tokens");
}

#[test]
fn templates_see_the_conversation_as_the_other_api_has_it() {
    let server = hermes();
    let hint = json!({"type": "ephemeral"});
    let request = json!({
        "max_tokens": 5,
        "system": [{"type": "text", "text": "be ", "cache_control": hint}, {"type": "text", "text": "brief"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "f", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "5"},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": true,
                 "content": [{"type": "text", "text": "no"}]},
                {"type": "text", "text": "well?", "cache_control": hint},
            ]},
            {"role": "user", "content": "show"},
        ],
        "tools": [{"type": "custom", "name": "g", "description": "d", "cache_control": hint,
                   "input_schema": {"type": "object"}}],
        "metadata": {"user_id": "me"}, "service_tier": "auto",
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    });
    let response = send(&server, &request);
    check_error(&response, 400, "invalid_request_error");
    let message = error_of(&response).1;
    let (_, seen) = message.split_once("messages: ").unwrap();
    let expected = concat!(
        r#"[{"role": "system", "content": "be brief"}, {"role": "user", "content": "ab"}, "#,
        r#"{"role": "assistant", "content": "so", "tool_calls": ["#,
        r#"{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}, "#,
        r#"{"id": "t2", "type": "function", "function": {"name": "f", "arguments": {}}}], "#,
        r#""reasoning_content": "hm"}, "#,
        r#"{"role": "tool", "content": "5", "tool_call_id": "t1"}, "#,
        r#"{"role": "tool", "content": "no", "tool_call_id": "t2"}, "#,
        r#"{"role": "user", "content": "well?"}]"#,
        r#"[{"type": "function", "function": {"name": "g", "description": "d", "#,
        r#""parameters": {"type": "object"}}}]"#,
    );
    assert_eq!(seen, expected);
}

#[test]
fn thinking_is_a_variable_of_the_template() {
    let template = "{{ messages[-1].content }}{% if enable_thinking is defined %}\
                    {{ 'r' if enable_thinking else 'a' }}{% endif %}";
    let server = start(None, Some(ReasoningFormat::Qwen3), template);
    let kinds = |fields: Value| -> Vec<String> {
        let message = ask(&server, &body("s", fields));
        let blocks = message["content"].as_array().unwrap().iter();
        blocks.map(|block| block["type"].as_str().unwrap().to_owned()).collect()
    };
    let thinking = |value: Value| kinds(json!({"thinking": value}));
    assert_eq!(thinking(json!({"type": "enabled", "budget_tokens": 1})), ["thinking", "text"]);
    assert_eq!(thinking(json!({"type": "adaptive"})), ["thinking", "text"]);
    assert_eq!(thinking(json!({"type": "disabled"})), ["text"]);
    // What follows `s` is thought of as well.
    assert_eq!(thinking(Value::Null), ["thinking", "text"]);
}

/// Bodies that are refused, and what the message begins with.
const BAD: &[(&str, &str)] = &[
    (r#"{"messages": [{"role": "user", "content": "x"}]}"#, "max_tokens: is required"),
    (r#"{"max_tokens": 0, "messages": [{"role": "user", "content": "x"}]}"#, "max_tokens: "),
    (r#"{"max_tokens": -1, "messages": [{"role": "user", "content": "x"}]}"#, "max_tokens: "),
    (r#"{"max_tokens": 5}"#, "messages: "),
    (r#"{"max_tokens": 5, "messages": []}"#, "messages: "),
    (r#"{"max_tokens": 5, "messages": ["x"]}"#, "messages[0]: "),
    (
        r#"{"max_tokens": 5, "messages": [{"role": "system", "content": "x"}]}"#,
        "messages[0].role: ",
    ),
    (r#"{"max_tokens": 5, "messages": [{"role": "user"}]}"#, "messages[0].content: "),
    (
        r#"{"max_tokens": 5, "messages": [{"role": "user", "content": []}]}"#,
        "messages[0].content: must not be empty",
    ),
    (
        r#"{"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}"#,
        "messages[0].content[0].type: ",
    ),
    (
        r#"{"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}"#,
        "messages[0].content[0].text: ",
    ),
    (
        r#"{"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}"#,
        "messages[0].content[0].tool_use_id: ",
    ),
    (
        r#"{"max_tokens": 5, "messages": [{"role": "assistant", "content":
            [{"type": "tool_use", "id": "1", "name": "f", "input": "x"}]}]}"#,
        "messages[0].content[0].input: ",
    ),
    (
        r#"{"max_tokens": 5, "messages": [{"role": "user", "content": "x", "name": "y"}]}"#,
        "messages[0].name: ",
    ),
];

/// Fields that are refused, and what the message begins with.
const BAD_FIELDS: &[(&str, &str)] = &[
    (r#""system": 5"#, "system: "),
    (r#""system": [{"type": "image"}]"#, "system[0].type: "),
    (r#""stop_sequences": [""]"#, "stop_sequences: "),
    (r#""stop_sequences": "x""#, "stop_sequences: "),
    (r#""temperature": 3"#, "temperature: "),
    (r#""top_p": 0"#, "top_p: "),
    (r#""top_k": -2"#, "top_k: "),
    (r#""stream": 1"#, "stream: "),
    (r#""thinking": {"type": "enabled"}"#, "thinking.budget_tokens: "),
    (r#""thinking": {"type": "much"}"#, "thinking.type: "),
    (r#""thinking": {"type": "adaptive", "display": "omitted"}"#, "thinking.display: "),
    (r#""thinking": true"#, "thinking: "),
    (r#""tools": [{"name": "f"}]"#, "tools[0].input_schema: "),
    (r#""tools": [{"name": "a b", "input_schema": {}}]"#, "tools[0].name: "),
    (r#""tools": [{"name": "f", "input_schema": {}, "description": 5}]"#, "tools[0].description: "),
    (r#""tools": [{"type": "bash_20250124", "name": "bash"}]"#, "tools[0].type: "),
    (r#""tool_choice": {"type": "some"}"#, "tool_choice.type: "),
    (r#""service_tier": "best""#, "service_tier "),
    (r#""mcp_servers": [{}]"#, "mcp_servers "),
    (r#""min_p": 0.5"#, "min_p: "),
    (r#""messages_": 5"#, "messages_: "),
];

#[test]
fn bad_input_is_refused_by_field() {
    let server = TestServer::start(Setup::default());
    let check = |body: &str, expected: &str| {
        let response = post(server.address, MESSAGES, body);
        check_error(&response, 400, "invalid_request_error");
        let message = error_of(&response).1;
        assert!(message.starts_with(expected), "{body}: {message}");
    };
    BAD.iter().for_each(|(body, expected)| check(body, expected));
    for (field, expected) in BAD_FIELDS {
        let messages = r#""messages": [{"role": "user", "content": "x"}]"#;
        check(&format!("{{\"max_tokens\": 5, {messages}, {field}}}"), expected);
    }
    check("{", "the body is not valid JSON");
    server.check_alive();
}

#[test]
fn errors_have_anthropics_shape_wherever_they_come_from() {
    let mut access = AccessConfig::default();
    access.keys.add("key", KeyScope::Inference).unwrap();
    let config = ServerConfig {
        access,
        max_body_bytes: 1000,
        client_timeout: Duration::from_secs(1),
        ..ServerConfig::default()
    };
    let server = TestServer::start(Setup { config, ..Setup::default() });
    let json_body = "content-type: application/json\r\n";
    let key = "x-api-key: key\r\nanthropic-version: 2023-06-01\r\n";
    let send = |line: &str, headers: &str, body: &str| {
        Connection::send(server.address, line, headers, body).finish()
    };
    for path in [MESSAGES, COUNT] {
        let line = format!("POST {path}");
        check_error(&send(&line, json_body, "{}"), 401, "authentication_error");
        check_error(&send(&line, key, "{}"), 415, "invalid_request_error");
        let with_key = format!("{json_body}{key}");
        check_error(&send(&line, &with_key, &"x".repeat(2000)), 413, "request_too_large");
        let other = body("hi", json!({"model": "claude"})).to_string();
        check_error(&send(&line, &with_key, &other), 404, "not_found_error");
        let good = body("hi", json!({"model": "script"})).to_string();
        assert_eq!(send(&line, &with_key, &good).status, 200, "{path}");
        check_error(&send(&format!("GET {path}"), key, ""), 405, "invalid_request_error");
        let foreign = format!(
            "{line} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        let foreign = Connection::send_raw(server.address, &foreign).finish();
        check_error(&foreign, 403, "permission_error");
        let slow = format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{with_key}\
             content-length: 100\r\n\r\n{{"
        );
        let slow = Connection::send_raw(server.address, &slow).finish();
        check_error(&slow, 408, "invalid_request_error");
    }
    // Other routes keep OpenAI's.
    let other = send("POST /v1/completions", json_body, "{}");
    assert_eq!(other.json()["error"]["code"], "invalid_api_key");
}

#[test]
fn refusals_of_a_busy_or_loading_server_have_its_shape_too() {
    let loading = TestServer::start_loading(ServerConfig::default());
    let refused = send(&loading, &body("hi", json!({})));
    check_error(&refused, 503, "overloaded_error");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let config = ServerConfig { max_requests_per_client: Some(1), ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, gate: Gate::new(1), ..Setup::default() });
    let running = Connection::post(server.address, MESSAGES, &body("hi", json!({})).to_string());
    wait_until("one runs", || server.metric("mini_infer_running_sequences") == 1);
    let refused = send(&server, &body("hi", json!({})));
    check_error(&refused, 429, "rate_limit_error");
    assert_eq!(refused.header("retry-after"), Some("1"));
    server.gate.open();
    assert_eq!(running.finish().status, 200);
}

#[test]
fn an_engine_failure_ends_a_stream_with_an_error_and_no_stop_reason() {
    let server = TestServer::start(Setup { num_good_steps: 2, ..Setup::default() });
    let response = send(&server, &body("hi", json!({"stream": true})));
    let events = events(&response);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
    assert!(last["error"]["message"].as_str().unwrap().contains("the script says so"));
    assert!(!response.body.contains("message_delta") && !response.body.contains("message_stop"));
    check_error(&send(&server, &body("hi", json!({}))), 500, "api_error");
}

#[test]
fn a_silent_stream_has_ping_events() {
    let config =
        ServerConfig { ping_interval: Duration::from_millis(10), ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, gate: Gate::new(0), ..Setup::default() });
    let request = body("hi", json!({"stream": true})).to_string();
    let mut connection = Connection::post(server.address, MESSAGES, &request);
    connection.read_until("event: ping\ndata: {\"type\":\"ping\"}\n\n");
    server.gate.open();
    assert!(connection.finish().body.ends_with("data: {\"type\":\"message_stop\"}\n\n"));
}

#[test]
fn counted_tokens_are_those_of_the_prompt() {
    let server = hermes();
    let count = |body: &Value| {
        let response = post(server.address, COUNT, &body.to_string());
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()["input_tokens"].as_u64().unwrap()
    };
    let mut request = body("c", tools());
    request["system"] = json!("be brief");
    let before = ask(&server, &request)["usage"]["prompt"].as_u64().unwrap();
    request.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(count(&request), before);
    // Longer than the context, which is what a client wants to know.
    assert_eq!(count(&json!({"messages": [{"role": "user", "content": "~".repeat(1000)}]})), 1000);
    check_error(&get(server.address, COUNT), 405, "invalid_request_error");
}

#[test]
fn cached_tokens_are_told_apart_from_computed_ones() {
    let server = TestServer::start(Setup::default());
    let request = body(&"x".repeat(100), json!({"max_tokens": 1}));
    let usage = |_| answer(&server, &request)["usage"].clone();
    let [first, second] = [0, 1].map(usage);
    let count = |usage: &Value, field: &str| usage[field].as_u64().unwrap();
    assert_eq!(count(&first, "cache_read_input_tokens"), 0);
    assert!(count(&second, "cache_read_input_tokens") >= 96, "{second}");
    assert_eq!(
        count(&second, "cache_read_input_tokens") + count(&second, "input_tokens"),
        count(&first, "input_tokens")
    );
}
