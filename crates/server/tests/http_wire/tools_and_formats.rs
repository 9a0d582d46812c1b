//! Tools beside a field about the output: the model writes at random, so whatever it writes is what the
//! constraint makes of it, calls or text.

use crate::client::post;
use crate::harness::{TestServer, error_of};
use crate::required_calls::{TEMPLATE, body, check_calls, function, start, start_liking};
use crate::tools::ask;
use mini_infer_text::{ReasoningFormat, ToolFormat};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// How often each kind of answer came.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    num_texts: usize,
    num_calls: usize,
    num_reasoned: usize,
}

/// A body whose tools the model may call.
fn free_body(format: &Value, seed: u64) -> Value {
    let mut body = body(json!("auto"), seed);
    body.as_object_mut().unwrap().extend(format.as_object().unwrap().clone());
    body
}

/// Asks with some seeds, and checks that every answer is calls or text that `is_text` accepts.
fn seen(server: &TestServer, format: &Value, is_text: impl Fn(&str) -> bool) -> Seen {
    let mut seen = Seen::default();
    for seed in 0..12 {
        let body = free_body(format, seed);
        let (message, reason, _) = ask(server, &body);
        let is_reasoned = !message["reasoning_content"].is_null();
        match reason.as_str().unwrap() {
            // What was cut off is a beginning of either.
            "length" => continue,
            "stop" => {
                let text = message["content"].as_str().unwrap_or_else(|| panic!("{message}"));
                assert!(message["tool_calls"].is_null() && is_text(text), "{seed}: {message}");
                seen.num_texts += 1;
            }
            _ => {
                assert!(message["content"].is_null(), "{message}");
                for call in message["tool_calls"].as_array().unwrap() {
                    let name = call["function"]["name"].as_str().unwrap();
                    assert!(["add", "now", "stop-all"].contains(&name), "{message}");
                    let arguments = call["function"]["arguments"].as_str().unwrap();
                    let arguments: Value = serde_json::from_str(arguments).unwrap();
                    assert!(arguments.is_object(), "{message}");
                }
                seen.num_calls += 1;
            }
        }
        seen.num_reasoned += usize::from(is_reasoned);
    }
    server.wait_until_idle();
    seen
}

fn schema_format(schema: &Value) -> Value {
    let named = json!({"name": "x", "schema": schema});
    json!({"response_format": {"type": "json_schema", "json_schema": named}})
}

/// Checks a server's answers under a schema, and returns how often each kind came.
fn seen_with_schema(server: &TestServer, schema: &Value) -> Seen {
    let is_text = |text: &str| {
        serde_json::from_str(text).is_ok_and(|value| jsonschema::is_valid(schema, &value))
    };
    seen(server, &schema_format(schema), is_text)
}

/// Objects that begin as calls of `add` do.
fn scores() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"enum": ["add", "odd"]}, "score": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["name", "score"],
        "additionalProperties": false,
    })
}

#[track_caller]
fn assert_both(seen: &Seen) {
    assert!(seen.num_texts > 0 && seen.num_calls > 0, "{seen:?}");
}

#[test]
fn answers_are_calls_or_follow_the_format() {
    let markers = ["<tool_call>", "</tool_call>"];
    for format in [ToolFormat::Hermes, ToolFormat::Qwen3Coder] {
        let server = start_liking(format, None, TEMPLATE, &markers, &["<tool_call>"]);
        assert_both(&seen_with_schema(&server, &scores()));
    }
    assert_both(&seen_with_schema(&start(ToolFormat::Hermes, None, TEMPLATE, &[]), &scores()));
    let markers = ["[TOOL_CALLS]", "[ARGS]"];
    let server = start_liking(ToolFormat::Mistral, None, TEMPLATE, &markers, &["[TOOL_CALLS]"]);
    assert_both(&seen_with_schema(&server, &scores()));
    assert_both(&seen_with_schema(&start(ToolFormat::Mistral, None, TEMPLATE, &[]), &scores()));
    assert_both(&seen_with_schema(&start(ToolFormat::Gemma, None, TEMPLATE, &[]), &scores()));
}

#[test]
fn calls_without_markers_are_told_from_objects_that_begin_alike() {
    for format in [ToolFormat::Llama3Json, ToolFormat::Json, ToolFormat::Pythonic] {
        let server = start(format, None, TEMPLATE, &[]);
        assert!(seen_with_schema(&server, &scores()).num_texts > 0);
        // Written with the spaces that calls have, so that only the second key tells them apart.
        let spaced = json!({"guided_regex": r#"\{"name": "(add|now)", "score": [0-9]\}"#});
        assert_both(&seen(&server, &spaced, |text| text.contains("\"score\": ")));
        // The same keys in the other order are no call: the format asked for them.
        let reversed = json!({
            "type": "object",
            "properties": {
                "parameters": {"type": "object", "maxProperties": 0}, "arguments": {"const": {}},
                "name": {"const": "add"},
            },
            "required": ["parameters", "arguments", "name"],
            "additionalProperties": false,
        });
        assert!(seen_with_schema(&server, &reversed).num_texts > 0);
    }
}

#[test]
fn text_that_holds_a_call_is_text() {
    let text = "say: <tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>";
    for markers in [&[][..], &["<tool_call>", "</tool_call>"]] {
        let server =
            start_liking(ToolFormat::Hermes, None, TEMPLATE, markers, &["s", "<tool_call>"]);
        let seen = seen(&server, &json!({"guided_choice": [text]}), |found| found == text);
        assert!(seen.num_texts > 0, "{seen:?}");
    }
}

#[test]
fn reasoning_comes_before_either() {
    let marked = ["<tool_call>", "</tool_call>", "<think>", "</think>"];
    let liked = ["<think>", "</think>", "<tool_call>"];
    let start = |template: &str, reasoning| {
        start_liking(ToolFormat::Hermes, Some(reasoning), template, &marked, &liked)
    };
    let open = seen_with_schema(&start(TEMPLATE, ReasoningFormat::Qwen3), &scores());
    assert_both(&open);
    assert!(open.num_reasoned > 0, "{open:?}");
    let begun = seen_with_schema(
        &start(&format!("{TEMPLATE}<think>\n"), ReasoningFormat::Qwen3),
        &scores(),
    );
    assert_both(&begun);
    let inside = seen_with_schema(&start(TEMPLATE, ReasoningFormat::DeepseekR1), &scores());
    assert_both(&inside);
    // Line breaks behind the reasoning that belong to the answer stay in it.
    let server = start(TEMPLATE, ReasoningFormat::DeepseekR1);
    let spaced = json!({"guided_choice": ["\n\n x\n"]});
    assert!(seen(&server, &spaced, |text| text == "\n\n x\n").num_texts > 0);
}

#[test]
fn a_choice_about_tools_decides_which_of_both_holds() {
    let server = start(ToolFormat::Json, None, TEMPLATE, &[]);
    for seed in 0..6 {
        let mut body = free_body(&schema_format(&scores()), seed);
        body["tool_choice"] = json!("none");
        let (message, _, _) = ask(&server, &body);
        assert!(message["tool_calls"].is_null(), "{message}");
        let value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
        assert!(jsonschema::is_valid(&scores(), &value), "{message}");
        body["tool_choice"] = json!("required");
        assert!(!check_calls(&server, &body).is_empty());
        body["tool_choice"] = function("now");
        assert_eq!(check_calls(&server, &body), ["now"]);
    }
    server.wait_until_idle();
}

#[test]
fn a_format_that_cannot_be_followed_is_refused_whatever_becomes_of_it() {
    let server = start(ToolFormat::Hermes, None, TEMPLATE, &[]);
    let format = schema_format(&json!({"type": "object", "not": {}}));
    for choice in [json!("none"), json!("auto"), json!("required"), function("add")] {
        let mut body = free_body(&format, 0);
        body["tool_choice"] = choice;
        let response = post(server.address, CHAT, &body.to_string());
        assert_eq!(response.status, 400, "{}", response.body);
        assert_eq!(error_of(&response).0, "response_format.json_schema.schema.not");
    }
    server.wait_until_idle();
}
