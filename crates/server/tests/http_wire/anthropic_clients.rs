//! What Anthropic's clients, and those built on them, send and look for beyond the messages.

use crate::anthropic::{MESSAGES, ask, body, check_error, error_of, send};
use crate::client::{Connection, Response, get};
use crate::harness::{Setup, TestServer};
use crate::tools::hermes;
use serde_json::{Value, json};

fn get_as_anthropic(server: &TestServer, path: &str) -> Response {
    let line = format!("GET {path}");
    Connection::send(server.address, &line, "anthropic-version: 2023-06-01\r\n", "").finish()
}

#[test]
fn models_are_listed_in_the_form_of_the_client_that_asks() {
    let server = TestServer::start(Setup::default());
    let list = get_as_anthropic(&server, "/v1/models").json();
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, ["script", "org/other-name"]);
    assert_eq!(
        (&list["first_id"], &list["last_id"], &list["has_more"]),
        (&json!("script"), &json!("org/other-name"), &json!(false))
    );
    let mut one = get_as_anthropic(&server, "/v1/models/org/other-name").json();
    assert_eq!(one, list["data"][1]);
    let created_at = one["created_at"].take();
    assert!(created_at.as_str().is_some_and(|at| at.len() == 20 && at.ends_with('Z')), "{list}");
    let expected = json!({
        "type": "model", "id": "org/other-name", "display_name": "org/other-name",
        "created_at": null, "lifecycle": "active", "max_input_tokens": 256, "max_tokens": 256,
    });
    assert_eq!(one, expected);
    check_error(&get_as_anthropic(&server, "/v1/models/claude"), 404, "not_found_error");
    let list = get(server.address, "/v1/models").json();
    assert_eq!((&list["object"], &list["data"][0]["object"]), (&json!("list"), &json!("model")));
    let unknown = get(server.address, "/v1/models/claude").json();
    assert_eq!(unknown["error"]["code"], "model_not_found");
}

#[test]
fn the_request_id_stands_where_the_client_looks_for_it() {
    let server = TestServer::start(Setup::default());
    for (ask, status) in [(body("hi", json!({})), 200), (json!({}), 400)] {
        let response = send(&server, &ask);
        assert_eq!(response.status, status);
        assert!(response.header("request-id").is_some_and(|id| id.starts_with("req-")));
        assert_eq!(response.header("request-id"), response.header("x-request-id"));
    }
    assert_eq!(get(server.address, "/version").header("request-id"), None);
}

#[test]
fn the_output_follows_the_schema_of_its_format() {
    let server = TestServer::start(Setup::default());
    let property = json!({"type": "integer", "minimum": 3, "maximum": 5});
    let schema = |property: &Value| {
        json!({"type": "object", "properties": {"a": property}, "required": ["a"],
               "additionalProperties": false})
    };
    let config = |property: &Value, effort: &str| {
        let format = json!({"type": "json_schema", "schema": schema(property)});
        json!({
            "output_config": {"format": format, "effort": effort}, "temperature": 0,
            "max_tokens": 150,
        })
    };
    let message = ask(&server, &body("hi", config(&property, "high")));
    let text = message["content"][0]["text"].as_str().unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    assert!((3..=5).contains(&value["a"].as_i64().unwrap()), "{text}");
    assert_eq!(message["stop_reason"], "end_turn");
    // Without a format, the output may be anything.
    let free = ask(&server, &body("hi", json!({"output_config": {"effort": "low"}})));
    assert!(free["content"][0]["text"].as_str().unwrap().starts_with("abc"));
    let refused = |config: Value, expected: &str| {
        let response = send(&server, &body("hi", config));
        check_error(&response, 400, "invalid_request_error");
        let message = error_of(&response).1;
        assert!(message.starts_with(expected), "{message}");
    };
    let not = "output_config.format.schema.properties.a.not: ";
    refused(config(&json!({"not": {}}), "max"), not);
    refused(config(&property, "most"), "output_config.effort: ");
    refused(json!({"output_config": "json"}), "output_config: ");
    refused(json!({"output_config": {"form": 1}}), "output_config.form: ");
    let format = |format: Value| json!({"output_config": {"format": format}});
    refused(format(json!({"type": "text"})), "output_config.format.type: ");
    refused(format(json!({"type": "json_schema"})), "output_config.format.schema: ");
    server.check_alive();
}

#[test]
fn tools_may_say_what_this_server_does_anyway() {
    let server = hermes();
    let tool = |member: &str, value: Value| {
        let mut tool = json!({"name": "get_weather", "input_schema": {"type": "object"}});
        tool[member] = value;
        send(&server, &body("c", json!({"tools": [tool]})))
    };
    for (member, value) in [
        ("strict", json!(true)),
        ("eager_input_streaming", json!(true)),
        ("input_examples", json!([{"city": "Rome"}])),
        ("defer_loading", json!(false)),
        ("allowed_callers", json!(["direct"])),
    ] {
        let response = tool(member, value);
        assert_eq!(response.json()["stop_reason"], "tool_use", "{member}: {}", response.body);
    }
    for (member, value) in [
        ("strict", json!("yes")),
        ("eager_input_streaming", json!(1)),
        ("defer_loading", json!(true)),
        ("allowed_callers", json!(["code_execution_20250825"])),
    ] {
        let response = tool(member, value);
        check_error(&response, 400, "invalid_request_error");
        let message = error_of(&response).1;
        assert!(message.starts_with(&format!("tools[0].{member}: ")), "{message}");
    }
    // Templates see what a tool says of itself.
    let example = json!({"name": "f", "input_schema": {}, "input_examples": [{"a": 1}]});
    let response = send(&server, &body("show", json!({"tools": [example]})));
    assert!(error_of(&response).1.contains(r#""input_examples": [{"a": 1}]"#), "{}", response.body);
}

#[test]
fn edits_that_keep_a_conversation_whole_are_taken() {
    let server = TestServer::start(Setup::default());
    let keep = |keep: &str| json!({"type": "clear_thinking_20251015", "keep": keep});
    let edits = |edits: Value| send(&server, &body("hi", json!({"context_management": edits})));
    assert_eq!(edits(json!({"edits": [keep("all")]})).status, 200);
    assert_eq!(edits(json!({"edits": []})).status, 200);
    let clear = json!({"type": "clear_tool_uses_20250919"});
    for edit in [keep("none"), clear] {
        let response = edits(json!({"edits": [edit]}));
        check_error(&response, 400, "invalid_request_error");
        assert!(error_of(&response).1.starts_with("context_management "), "{}", response.body);
    }
}

#[test]
fn a_client_that_keeps_threads_is_told_to_send_all_of_them() {
    let server = TestServer::start(Setup::default());
    let response = send(&server, &body("hi", json!({"thread": {"type": "create"}})));
    check_error(&response, 400, "invalid_request_error");
    let expected = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    assert_eq!(response.json()["error"]["details"], expected);
    let other = send(&server, &body("hi", json!({"speed": "fast"})));
    assert_eq!(other.json()["error"].get("details"), None);
    assert_eq!(send(&server, &body("hi", json!({"speed": "standard"}))).status, 200);
}

#[test]
fn clients_recognise_a_conversation_that_is_too_long() {
    let server = TestServer::start(Setup::default());
    let told = |ask: &str, max_tokens: u32| {
        let response = send(&server, &body(ask, json!({"max_tokens": max_tokens})));
        check_error(&response, 400, "invalid_request_error");
        error_of(&response).1
    };
    assert_eq!(told(&"x".repeat(300), 1), "prompt is too long: 319 tokens > 256 maximum");
    let expected = "input length and `max_tokens` exceed context limit: 21 + 236 > 256, \
                    decrease input length or `max_tokens` and try again";
    assert_eq!(told("hi", 236), expected);
    let counted = Connection::post(
        server.address,
        &format!("{MESSAGES}/count_tokens"),
        &body(&"x".repeat(300), json!({})).to_string(),
    );
    assert_eq!(counted.finish().json()["input_tokens"], 319);
}
