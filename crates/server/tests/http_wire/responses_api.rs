//! OpenAI's Responses API: whole, streamed and refused.

use crate::client::{Connection, Response, get, post};
use crate::harness::{Setup, TestServer, error_of};
use crate::script::Gate;
use crate::tools::{hermes, start};
use mini_infer_server::ServerConfig;
use mini_infer_text::ReasoningFormat;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const RESPONSES: &str = "/v1/responses";

pub(crate) fn send(server: &TestServer, body: &Value) -> Response {
    post(server.address, RESPONSES, &body.to_string())
}

pub(crate) fn answer(server: &TestServer, body: &Value) -> Value {
    let response = send(server, body);
    assert_eq!(response.status, 200, "{}", response.body);
    assert_eq!(response.header("content-type"), Some("application/json"));
    response.json()
}

/// Returns a body that asks one thing, with further fields.
pub(crate) fn body(ask: &str, fields: Value) -> Value {
    let mut body = json!({"input": ask});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Returns the events of a stream, whose names must be their types and whose numbers follow.
fn events(response: &Response) -> Vec<Value> {
    let read = |(i, event): (usize, &&str)| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(
            (data["type"].as_str(), data["sequence_number"].as_u64()),
            (Some(name), Some(i as u64))
        );
        data
    };
    let events = response.events();
    events.iter().filter(|event| !event.starts_with(':')).enumerate().map(read).collect()
}

fn stream(server: &TestServer, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let response = send(server, &body);
    assert_eq!(response.header("content-type"), Some("text/event-stream"), "{}", response.body);
    events(&response)
}

/// Checks the events that begin a stream.
fn check_beginning(events: &[Value]) {
    let names: Vec<_> = events[..2].iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(names, ["response.created", "response.in_progress"]);
    for event in &events[..2] {
        let response = &event["response"];
        assert_eq!(response["status"], "in_progress");
        assert_eq!((&response["output"], &response["usage"]), (&json!([]), &Value::Null));
    }
}

/// Adds what an event tells to a text of an item.
fn add_delta(text: &mut Value, event: &Value) {
    *text = json!(format!("{}{}", text.as_str().unwrap(), event["delta"].as_str().unwrap()));
}

/// Puts the items of a stream together as a client does, and checks the order of its events.
fn joined(events: &[Value]) -> Value {
    check_beginning(events);
    let (mut output, mut is_open, mut has_part) = (Vec::<Value>::new(), false, false);
    for event in &events[2..events.len() - 1] {
        let kind = event["type"].as_str().unwrap();
        if kind == "response.output_item.added" {
            assert_eq!((is_open, &event["output_index"]), (false, &json!(output.len())));
            assert_eq!(event["item"]["status"], "in_progress");
            output.push(event["item"].clone());
            (is_open, has_part) = (true, false);
            continue;
        }
        assert!(is_open, "{event}");
        assert_eq!(event["output_index"], output.len() - 1);
        let item = output.last_mut().unwrap();
        match kind {
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                assert!(has_part && event["content_index"] == 0);
                add_delta(&mut item["content"][0]["text"], event);
                if let Some(logprobs) = event["logprobs"].as_array() {
                    let all = item["content"][0]["logprobs"].as_array_mut().unwrap();
                    all.extend(logprobs.iter().cloned());
                }
            }
            "response.function_call_arguments.delta" => add_delta(&mut item["arguments"], event),
            "response.content_part.added" => {
                assert!(!std::mem::replace(&mut has_part, true));
                item["content"].as_array_mut().unwrap().push(event["part"].clone());
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(item["content"][0]["text"], event["text"]);
            }
            "response.function_call_arguments.done" => {
                assert_eq!(
                    [&item["arguments"], &item["name"]],
                    [&event["arguments"], &event["name"]]
                );
            }
            "response.content_part.done" => {
                assert!(std::mem::replace(&mut has_part, false));
                assert_eq!(item["content"][0], event["part"]);
            }
            "response.output_item.done" => {
                assert!(!has_part);
                item["status"] = event["item"]["status"].clone();
                assert_eq!(*item, event["item"]);
                is_open = false;
                continue;
            }
            other => panic!("{other}"),
        }
        assert_eq!(item["id"], event["item_id"]);
    }
    assert!(!is_open);
    check_end(events, &Value::from(output))
}

/// Checks the event that ends a stream, and returns the response.
fn check_end(events: &[Value], output: &Value) -> Value {
    let last = events.last().unwrap();
    let response = &last["response"];
    assert_eq!(last["type"], format!("response.{}", response["status"].as_str().unwrap()));
    assert_eq!(&response["output"], output);
    assert_eq!(response["id"], events[0]["response"]["id"]);
    response.clone()
}

/// Checks that ids begin as they do at OpenAI, and takes out what differs from answer to answer.
fn without_ids(mut response: Value) -> Value {
    let take = |value: &mut Value, prefix: &str| {
        assert!(value.as_str().is_some_and(|id| id.starts_with(prefix)), "{value} {prefix}");
        *value = Value::Null;
    };
    take(&mut response["id"], "resp_");
    for item in response["output"].as_array_mut().unwrap() {
        let prefix = match item["type"].as_str().unwrap() {
            "message" => "msg_",
            "reasoning" => "rs_",
            _ => "fc_",
        };
        take(&mut item["id"], prefix);
        if prefix == "fc_" {
            take(&mut item["call_id"], "call_");
        }
    }
    assert_eq!(response["completed_at"].is_null(), response["status"] != "completed");
    assert!(response["created_at"].is_u64());
    (response["created_at"], response["completed_at"]) = (Value::Null, Value::Null);
    response["usage"]["input_tokens_details"] = Value::Null;
    response
}

/// Asks whole and streamed, and checks that both say the same.
fn ask(server: &TestServer, body: &Value) -> Value {
    let whole = without_ids(answer(server, body));
    assert_eq!(whole, without_ids(joined(&stream(server, body))));
    whole
}

fn message(text: &str, status: &str) -> Value {
    let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
    json!({"type": "message", "id": null, "status": status, "role": "assistant", "content": [part]})
}

fn reasoning(text: &str) -> Value {
    let part = json!({"type": "reasoning_text", "text": text});
    json!({"type": "reasoning", "id": null, "status": "completed", "summary": [], "content": [part]})
}

fn call(arguments: &str, status: &str) -> Value {
    json!({"type": "function_call", "id": null, "status": status, "call_id": null,
           "name": "get_weather", "arguments": arguments})
}

fn koeln() -> Value {
    call("{\"city\": \"Köln\"}", "completed")
}

fn tools() -> Value {
    let parameters = json!({"type": "object"});
    json!({"tools": [{"type": "function", "name": "get_weather", "parameters": parameters}]})
}

#[test]
fn a_response_has_every_field_that_clients_require() {
    let server = TestServer::start(Setup::default());
    let asked = json!({
        "max_output_tokens": 3, "model": "script", "instructions": "be", "metadata": {"a": "b"},
        "user": "me", "safety_identifier": "s", "prompt_cache_key": "k", "max_tool_calls": 2,
        "temperature": 0.5, "top_p": 0.9, "include": ["reasoning.encrypted_content"],
        "truncation": "disabled", "service_tier": "auto", "reasoning": {"summary": "auto"},
        "stream_options": null, "prompt_cache_retention": "24h",
    });
    let mut whole = answer(&server, &body("hi", asked));
    assert!(whole["created_at"].as_u64().is_some_and(|time| time > 1_700_000_000));
    whole = without_ids(whole);
    let expected = json!({
        "id": null, "object": "response", "created_at": null, "status": "incomplete",
        "completed_at": null, "error": null, "incomplete_details": {"reason": "max_output_tokens"},
        "model": "script", "output": [message("abc", "incomplete")],
        "usage": {
            "input_tokens": 33, "input_tokens_details": null, "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 36,
        },
        "background": false, "instructions": "be", "max_output_tokens": 3, "max_tool_calls": 2,
        "metadata": {"a": "b"}, "parallel_tool_calls": true, "previous_response_id": null,
        "prompt_cache_key": "k", "reasoning": {"effort": null, "summary": "auto"},
        "safety_identifier": "s", "service_tier": "default", "store": true, "temperature": 0.5,
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto",
        "tools": [], "top_logprobs": 0, "top_p": 0.9, "truncation": "disabled", "user": "me",
    });
    assert_eq!(whole, expected);
}

#[test]
fn a_stream_is_these_events() {
    let server = TestServer::start(Setup::default());
    let request = body("hi", json!({"max_output_tokens": 2, "stream": true}));
    let response = send(&server, &request);
    assert!(!response.body.contains("[DONE]"));
    let seen = events(&response);
    let id = seen[2]["item"]["id"].as_str().unwrap();
    let told: Vec<String> = response.events()[2..8].iter().map(|e| e.replace(id, "ID")).collect();
    let event = |name: &str, rest: &str| {
        format!(
            "event: response.{name}\ndata: {{\"type\":\"response.{name}\",\"sequence_number\":{rest}}}"
        )
    };
    let place = r#""item_id":"ID","output_index":0,"content_index":0"#;
    let part = |text: &str| {
        format!(r#"{{"type":"output_text","text":"{text}","annotations":[],"logprobs":[]}}"#)
    };
    let item = |status: &str, content: &str| {
        format!(
            r#""output_index":0,"item":{{"type":"message","id":"ID","status":"{status}","role":"assistant","content":[{content}]}}"#
        )
    };
    let expected = [
        event("output_item.added", &format!("2,{}", item("in_progress", ""))),
        event("content_part.added", &format!("3,{place},\"part\":{}", part(""))),
        event("output_text.delta", &format!("4,{place},\"delta\":\"a\",\"logprobs\":[]")),
        event("output_text.delta", &format!("5,{place},\"delta\":\"b\",\"logprobs\":[]")),
        event("output_text.done", &format!("6,{place},\"text\":\"ab\",\"logprobs\":[]")),
        event("content_part.done", &format!("7,{place},\"part\":{}", part("ab"))),
    ];
    assert_eq!(told, expected);
    let done = event("output_item.done", &format!("8,{}", item("incomplete", &part("ab"))));
    assert_eq!(response.events()[8].replace(id, "ID"), done);
    assert_eq!((seen.len(), &seen[9]["type"]), (10, &json!("response.incomplete")));
}

#[test]
fn why_a_response_ended_is_told() {
    let server = TestServer::start(Setup::default());
    let stopped = ask(&server, &body("hi", json!({"stop": ["cd"]})));
    assert_eq!(stopped["output"], json!([message("ab", "completed")]));
    assert_eq!(
        (&stopped["status"], &stopped["incomplete_details"]),
        (&json!("completed"), &Value::Null)
    );
    let cut = ask(&server, &body("hi", json!({"max_output_tokens": 1})));
    assert_eq!(cut["status"], "incomplete");
    // Clients look for a message, also where the model says nothing.
    let silent = ask(&hermes(), &body("~", json!({})));
    assert_eq!(
        (&silent["output"], &silent["status"]),
        (&json!([message("", "completed")]), &json!("completed"))
    );
    server.wait_until_idle();
}

#[test]
fn calls_and_reasoning_are_items() {
    let server = hermes();
    assert_eq!(ask(&server, &body("c", tools()))["output"], json!([koeln()]));
    let two = ask(&server, &body("d", tools()));
    assert_eq!(two["output"], json!([message("Two:", "completed"), koeln(), koeln()]));
    assert_eq!(two["status"], "completed");
    let both = ask(&server, &body("b", tools()));
    assert_eq!(both["output"], json!([reasoning("Hm"), koeln()]));
    assert_eq!(both["usage"]["output_tokens_details"], json!({"reasoning_tokens": 2}));
    let reasoned = ask(&server, &body("r", json!({})));
    assert_eq!(reasoned["output"], json!([reasoning("Why not?"), message("Yes.", "completed")]));
    let mut cut = body("c", tools());
    cut["max_output_tokens"] = json!(4);
    let cut = ask(&server, &cut);
    assert_eq!(cut["output"], json!([call("{\"city\": \"K", "incomplete")]));
    assert_eq!(cut["status"], "incomplete");
    server.wait_until_idle();
}

#[test]
fn choices_of_tools_bound_the_calls() {
    let server = hermes();
    let mut one = body("d", tools());
    one["parallel_tool_calls"] = json!(false);
    assert_eq!(ask(&server, &one)["output"].as_array().unwrap()[1..], [koeln()]);
    let mut none = body("c", tools());
    none["tool_choice"] = json!("none");
    assert_eq!(ask(&server, &none)["output"][0]["type"], "message");
    let nothing = json!({"type": "object", "additionalProperties": false});
    let function = json!({"type": "function", "name": "get_weather"});
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [function]});
    for choice in [json!("required"), function, allowed] {
        // Alone, the model would answer this with text; tokens of several lengths make one.
        let fields = json!({"tool_choice": choice, "parallel_tool_calls": false,
                            "max_output_tokens": 120, "temperature": 0});
        let mut forced = body("c", fields);
        forced["tools"] =
            json!([{"type": "function", "name": "get_weather", "parameters": nothing}]);
        let response = ask(&server, &forced);
        let forced_call = &response["output"][0];
        let arguments = forced_call["arguments"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({}));
        assert_eq!(response["output"], json!([call(arguments, "completed")]));
        assert_eq!((&response["tool_choice"], &response["tools"]), (&choice, &forced["tools"]));
    }
}

#[test]
fn templates_see_items_as_messages() {
    let server = hermes();
    let text = |kind: &str, text: &str| json!({"type": kind, "text": text});
    let request = json!({
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [text("input_text", "a"), text("input_text", "b")]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [text("reasoning_text", "hm")],
             "encrypted_content": null, "status": "completed"},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "so", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "f",
             "arguments": "{\"a\": 1}", "status": "completed"},
            {"type": "function_call_output", "call_id": "t1", "output": "5"},
            {"role": "developer", "content": "show"},
        ],
        "tools": [{"type": "function", "name": "g", "description": "d", "strict": true,
                   "parameters": {"type": "object"}}],
    });
    let response = send(&server, &request);
    assert_eq!((response.status, error_of(&response).0.as_str()), (400, "input"));
    let whole = response.json();
    let (_, seen) = whole["error"]["message"].as_str().unwrap().split_once("input: ").unwrap();
    let expected = concat!(
        r#"[{"role": "system", "content": "be brief"}, {"role": "user", "content": "ab"}, "#,
        r#"{"role": "assistant", "content": "so", "tool_calls": ["#,
        r#"{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}], "#,
        r#""reasoning_content": "hm"}, "#,
        r#"{"role": "tool", "content": "5", "tool_call_id": "t1"}]"#,
        r#"[{"type": "function", "function": {"name": "g", "description": "d", "#,
        r#""parameters": {"type": "object"}, "strict": true}}]"#,
    );
    assert_eq!(seen, expected);
}

#[test]
fn efforts_are_variables_of_the_template() {
    let template = "{{ messages[-1].content }}{% if enable_thinking is defined %}\
                    {{ 'r' if enable_thinking and reasoning_effort == 'low' else 'a' }}{% endif %}";
    let server = start(None, Some(ReasoningFormat::Qwen3), template);
    let first = |fields: Value| ask(&server, &body("~", fields))["output"][0]["type"].clone();
    assert_eq!(first(json!({"reasoning": {"effort": "low", "summary": "auto"}})), "reasoning");
    assert_eq!(first(json!({"reasoning": {"effort": "none"}})), "message");
    let own = json!({"enable_thinking": true, "reasoning_effort": "low"});
    assert_eq!(first(json!({"chat_template_kwargs": own})), "reasoning");
    let response = answer(&server, &body("~", json!({"reasoning": {"effort": "high"}})));
    assert_eq!(response["reasoning"], json!({"effort": "high", "summary": null}));
}

#[test]
fn a_format_constrains_the_output() {
    let server = TestServer::start(Setup::default());
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1]}},
                        "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "x", "strict": true, "schema": schema});
    let fields = json!({"text": {"format": format}, "temperature": 0, "max_output_tokens": 200});
    let response = ask(&server, &body("hi", fields));
    let text = response["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({"a": 1}));
    assert_eq!((&response["status"], &response["text"]["format"]), (&json!("completed"), &format));
}

#[test]
fn log_probabilities_come_with_the_text() {
    let server = TestServer::start(Setup::default());
    let fields = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 1,
                        "max_output_tokens": 2});
    let response = ask(&server, &body("hi", fields));
    let logprobs = response["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    let token = |text: &str| json!({"token": text, "logprob": 0.0, "bytes": text.as_bytes()});
    assert_eq!(logprobs.len(), 2);
    assert_eq!(
        (&logprobs[1]["token"], &logprobs[1]["top_logprobs"]),
        (&json!("b"), &json!([token("b")]))
    );
    let without = answer(&server, &body("hi", json!({"max_output_tokens": 2})));
    assert_eq!(without["output"][0]["content"][0]["logprobs"], json!([]));
}

/// Fields beside a good input that are refused, and the field at fault.
const BAD_FIELDS: &[(&str, &str)] = &[
    (r#""input": 5"#, "input"),
    (r#""input": []"#, "input"),
    (r#""input": ["x"]"#, "input[0]"),
    (r#""input": [{"content": "x"}]"#, "input[0].role"),
    (r#""input": [{"role": "tool", "content": "x"}]"#, "input[0].role"),
    (r#""input": [{"role": "user"}]"#, "input[0].content"),
    (r#""input": [{"role": "user", "content": "x", "name": "y"}]"#, "input[0].name"),
    (
        r#""input": [{"role": "user", "content": [{"type": "input_image"}]}]"#,
        "input[0].content[0].type",
    ),
    (
        r#""input": [{"role": "user", "content": [{"type": "input_text"}]}]"#,
        "input[0].content[0].text",
    ),
    (
        r#""input": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]"#,
        "input[0].content[0].type",
    ),
    (r#""input": [{"type": "item_reference", "id": "x"}]"#, "input[0].type"),
    (r#""input": [{"type": "web_search_call", "id": "x"}]"#, "input[0].type"),
    (r#""input": [{"type": "function_call", "name": "f", "arguments": "{}"}]"#, "input[0].call_id"),
    (
        r#""input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": {}}]"#,
        "input[0].arguments",
    ),
    (r#""input": [{"type": "function_call_output", "call_id": "1"}]"#, "input[0].output"),
    (r#""input": [{"type": "reasoning", "id": 5, "summary": []}]"#, "input[0].id"),
    (r#""instructions": 5"#, "instructions"),
    (r#""max_output_tokens": 0"#, "max_output_tokens"),
    (r#""max_output_tokens": 1000"#, "input"),
    (r#""temperature": 3"#, "temperature"),
    (r#""top_p": 0"#, "top_p"),
    (r#""top_logprobs": 21"#, "top_logprobs"),
    (r#""include": ["everything"]"#, "include[0]"),
    (r#""metadata": {"a": 1}"#, "metadata.a"),
    (r#""metadata": 5"#, "metadata"),
    (r#""reasoning": {"effort": "most"}"#, "reasoning.effort"),
    (r#""reasoning": {"mode": "pro"}"#, "reasoning.mode"),
    (r#""reasoning": {"budget": 5}"#, "reasoning.budget"),
    (r#""text": {"format": {"type": "xml"}}"#, "text.format.type"),
    (r#""text": {"format": {"type": "json_schema", "name": "x"}}"#, "text.format.schema"),
    (
        r#""text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}"#,
        "text.format.schema.not",
    ),
    (r#""text": {"format": {"type": "text", "x": 1}}"#, "text.format.x"),
    (r#""text": {"verbosity": "high"}"#, "text.verbosity"),
    (r#""tools": [{"type": "web_search"}]"#, "tools[0].type"),
    (r#""tools": [{"type": "function", "name": "a b"}]"#, "tools[0].name"),
    (r#""tools": [{"type": "function", "function": {"name": "f"}}]"#, "tools[0].function"),
    (r#""tool_choice": "required""#, "tool_choice"),
    (r#""tool_choice": {"type": "file_search"}"#, "tool_choice.type"),
    (r#""tool_choice": {"type": "function", "name": "f"}"#, "tool_choice"),
    (
        r#""tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}"#,
        "tool_choice.tools[0]",
    ),
    (r#""truncation": "auto""#, "truncation"),
    (r#""conversation": "conv_1""#, "conversation"),
    (r#""prompt": {"id": "x"}"#, "prompt"),
    (r#""context_management": [{"type": "compaction"}]"#, "context_management"),
    (r#""moderation": {"model": "x"}"#, "moderation"),
    (r#""prompt_cache_options": {"prewarm": true}"#, "prompt_cache_options"),
    (r#""service_tier": "flex""#, "service_tier"),
    (r#""background": true, "store": false"#, "background"),
    (r#""stream_options": {"include_obfuscation": false}"#, "stream_options"),
    (r#""previous_response_id": "resp_0""#, "previous_response_id"),
    (r#""messages": []"#, "messages"),
    (r#""n": 2"#, "n"),
    (r#""response_format": {"type": "json_object"}"#, "response_format"),
    (r#""logit_bias": {"x": 1}"#, "logit_bias"),
];

#[test]
fn bad_input_is_refused_by_field() {
    let server = TestServer::start(Setup::default());
    for (field, expected) in BAD_FIELDS {
        let input = if field.starts_with("\"input\"") { "" } else { "\"input\": \"x\"," };
        let response = post(server.address, RESPONSES, &format!("{{{input} {field}}}"));
        assert_eq!(response.status, 400, "{field}: {}", response.body);
        let param = error_of(&response).0;
        assert!(param.starts_with(expected), "{field}: {}", response.body);
    }
    let none = post(server.address, RESPONSES, "{}");
    assert_eq!(error_of(&none), ("input".to_owned(), "invalid_value".to_owned()));
    let other = send(&server, &body("x", json!({"model": "gpt"})));
    assert_eq!((other.status, error_of(&other).1.as_str()), (404, "model_not_found"));
    assert_eq!(get(server.address, RESPONSES).status, 405);
    server.check_alive();
}

#[test]
fn what_asks_for_nothing_is_accepted() {
    let server = TestServer::start(Setup::default());
    let fields = json!({
        "max_output_tokens": 1, "background": false, "background_options": {"completion_window": "soonest"},
        "context_management": [], "conversation": null, "prompt": null, "moderation": null,
        "prompt_cache_options": {"mode": "implicit", "ttl": "30m"}, "text": {"verbosity": "medium"},
        "tools": [], "tool_choice": "none", "top_logprobs": 0, "metadata": null, "reasoning": null,
        "include": [], "truncation": null, "stream": false, "previous_response_id": null,
        "top_k": 1, "min_p": 0, "seed": 1, "presence_penalty": 0, "cache_prompt": false,
    });
    let plain = answer(&server, &body("hi", json!({"max_output_tokens": 1})));
    let output = without_ids(answer(&server, &body("hi", fields)))["output"].clone();
    assert_eq!(output, without_ids(plain)["output"]);
}

#[test]
fn a_failure_ends_a_stream_with_a_failed_response() {
    let server = TestServer::start(Setup { num_good_steps: 2, ..Setup::default() });
    let events = stream(&server, &body("hi", json!({})));
    let last = events.last().unwrap();
    let response = &last["response"];
    assert_eq!((&last["type"], &response["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(response["error"]["code"], "server_error");
    assert!(response["error"]["message"].as_str().unwrap().contains("the script says so"));
    assert_eq!(response["output"][0]["status"], "incomplete");
    let whole = send(&server, &body("hi", json!({})));
    assert_eq!((whole.status, error_of(&whole).1.as_str()), (500, "engine_error"));
}

#[test]
fn a_silent_stream_has_comments() {
    let config =
        ServerConfig { ping_interval: Duration::from_millis(10), ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, gate: Gate::new(0), ..Setup::default() });
    let request = body("hi", json!({"stream": true, "max_output_tokens": 2})).to_string();
    let mut connection = Connection::post(server.address, RESPONSES, &request);
    connection.read_until(": ping\n\n");
    server.gate.open();
    let response = connection.finish();
    assert_eq!(joined(&events(&response))["status"], "incomplete");
}

#[test]
fn counted_tokens_are_those_of_the_prompt() {
    let server = hermes();
    let count = |body: &Value| {
        let path = format!("{RESPONSES}/input_tokens");
        let response = post(server.address, &path, &body.to_string());
        assert_eq!(response.status, 200, "{}", response.body);
        let json = response.json();
        assert_eq!(json["object"], "response.input_tokens");
        json["input_tokens"].as_u64().unwrap()
    };
    let mut request = body("c", tools());
    request["instructions"] = json!("be brief");
    let first = answer(&server, &request);
    assert_eq!(count(&request), first["usage"]["input_tokens"]);
    request["previous_response_id"] = first["id"].clone();
    assert_eq!(count(&request), answer(&server, &request)["usage"]["input_tokens"]);
    // Longer than the context, which is what a client wants to know.
    assert_eq!(count(&json!({"input": "~".repeat(1000)})), 1000);
    let refused = post(server.address, &format!("{RESPONSES}/input_tokens"), "{\"input\": 5}");
    assert_eq!((refused.status, error_of(&refused).0.as_str()), (400, "input"));
}

#[test]
fn cached_tokens_are_told() {
    let server = TestServer::start(Setup::default());
    let request = body(&"x".repeat(100), json!({"max_output_tokens": 1}));
    let details = |_| answer(&server, &request)["usage"]["input_tokens_details"].clone();
    let [first, second] = [0, 1].map(details);
    assert_eq!(first, json!({"cached_tokens": 0, "cache_write_tokens": 0}));
    assert!(second["cached_tokens"].as_u64().is_some_and(|count| count >= 96), "{second}");
}
