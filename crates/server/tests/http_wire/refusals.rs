//! Everything that is refused, and that the server is none the worse for it.

use crate::client::{Connection, Response, get, post};
use crate::harness::{Setup, TestServer, error_of, wait_until};
use crate::script::Gate;
use mini_infer_server::ServerConfig;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Bodies of both routes without their prompt, and the field that is refused.
const BAD_FIELDS: &[(&str, &str)] = &[
    (r#""temperature": NaN"#, "temperature"),
    (r#""temperature": 1e400"#, "temperature"),
    (r#""temperature": 1e39"#, "temperature"),
    (r#""temperature": "NaN""#, "temperature"),
    (r#""temperature": -1"#, "temperature"),
    (r#""temperature": 3"#, "temperature"),
    (r#""top_p": 0"#, "top_p"),
    (r#""top_p": 1.5"#, "top_p"),
    (r#""min_p": -0.1"#, "min_p"),
    (r#""top_k": -2"#, "top_k"),
    (r#""top_k": 99999999999"#, "top_k"),
    (r#""n": 0"#, "n"),
    (r#""n": 129"#, "n"),
    (r#""seed": 1.5"#, "seed"),
    (r#""seed": 99999999999999999999"#, "seed"),
    (r#""max_tokens": 0"#, "max_tokens"),
    (r#""max_tokens": -1"#, "max_tokens"),
    (r#""max_tokens": "5""#, "max_tokens"),
    (r#""max_completion_tokens": 0"#, "max_completion_tokens"),
    (r#""stop": """#, "stop"),
    (r#""stop": ["a", ""]"#, "stop"),
    (r#""stop": 5"#, "stop"),
    (r#""stream": "yes""#, "stream"),
    (r#""stream_options": {"include_usage": true}"#, "stream_options"),
    (r#""stream": true, "stream_options": {"x": 1}"#, "stream_options.x"),
    (r#""ignore_eos": 1"#, "ignore_eos"),
    (r#""frequency_penalty": 2.5"#, "frequency_penalty"),
    (r#""frequency_penalty": "NaN""#, "frequency_penalty"),
    (r#""presence_penalty": Infinity"#, "presence_penalty"),
    (r#""presence_penalty": -3"#, "presence_penalty"),
    (r#""repetition_penalty": 0"#, "repetition_penalty"),
    (r#""repetition_penalty": 1e400"#, "repetition_penalty"),
    (r#""logit_bias": {"191222": -100}"#, "logit_bias.191222"),
    (r#""logit_bias": {"abc": 1}"#, "logit_bias.abc"),
    (r#""logit_bias": {"5": 1000}"#, "logit_bias.5"),
    (r#""logit_bias": [5]"#, "logit_bias"),
    (r#""typical_p": 0"#, "typical_p"),
    (r#""typical_p": NaN"#, "typical_p"),
    (r#""xtc_probability": 2"#, "xtc_probability"),
    (r#""xtc_threshold": -1"#, "xtc_threshold"),
    (r#""dry_multiplier": -1"#, "dry_multiplier"),
    (r#""dry_multiplier": 1, "dry_base": 0"#, "dry_base"),
    (r#""dry_multiplier": 1, "dry_allowed_length": 0"#, "dry_allowed_length"),
    (r#""dry_penalty_last_n": -2"#, "dry_penalty_last_n"),
    (r#""dry_sequence_breakers": [""]"#, "dry_sequence_breakers"),
    (r#""min_tokens": -1"#, "min_tokens"),
    (r#""min_tokens": 9999"#, "min_tokens"),
    (r#""max_tokens": 2, "min_tokens": 3"#, "min_tokens"),
    (r#""stop_token_ids": [261]"#, "stop_token_ids"),
    (r#""stop_token_ids": [-1]"#, "stop_token_ids[0]"),
    (r#""include_stop_str_in_output": 1"#, "include_stop_str_in_output"),
    (r#""skip_special_tokens": "no""#, "skip_special_tokens"),
    (r#""truncate_prompt_tokens": 5"#, "truncate_prompt_tokens"),
    (r#""response_format": {"type": "xml"}"#, "response_format.type"),
    (r#""response_format": "json""#, "response_format"),
    (r#""structured_outputs": {}"#, "structured_outputs"),
    (r#""grammar": 5"#, "grammar"),
    (r#""options": {"num_ctx": 4096}"#, "options"),
    (r#""model": 5"#, "model"),
    (r#""cache_salt": """#, "cache_salt"),
    (r#""cache_salt": 5"#, "cache_salt"),
    (r#""cache_salt": ["a"]"#, "cache_salt"),
    (r#""cache_prompt": "no""#, "cache_prompt"),
    (r#""cache_prompt": 0"#, "cache_prompt"),
];

const BAD_CHATS: &[(&str, &str)] = &[
    (r#"{}"#, "messages"),
    (r#"{"messages": []}"#, "messages"),
    (r#"{"messages": null}"#, "messages"),
    (r#"{"messages": [{"role": "robot", "content": "x"}]}"#, "messages[0].role"),
    (r#"{"messages": [{"role": "user", "content": 5}]}"#, "messages[0].content"),
    (
        r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
        "messages[0].content[0]",
    ),
    (r#"{"messages": [{"role": "tool", "content": "x", "tool_call_id": null}]}"#, "messages"),
    (
        r#"{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}"#,
        "tools",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}"#,
        "tool_choice",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "x"}], "functions": [{"name": "f"}]}"#,
        "functions",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "x"}], "function_call": {"name": "f"}}"#,
        "function_call",
    ),
    (
        r#"{"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}"#,
        "messages[0].tool_calls[0].function",
    ),
    (r#"{"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}"#, "top_logprobs"),
    (r#"{"messages": [{"role": "user", "content": "x"}], "best_of": 1}"#, "best_of"),
    (
        r#"{"messages": [{"role": "user", "content": "x"}], "continue_final_message": true}"#,
        "continue_final_message",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "x"}],
            "chat_template_kwargs": {"messages": []}}"#,
        "chat_template_kwargs.messages",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "x"}], "use_beam_search": false}"#,
        "use_beam_search",
    ),
    (r#"{"messages": [{"role": "user", "content": "x"}], "length_penalty": 1}"#, "length_penalty"),
    (
        r#"{"messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 21}"#,
        "top_logprobs",
    ),
];

const BAD_COMPLETIONS: &[(&str, &str)] = &[
    (r#"{}"#, "prompt"),
    (r#"{"prompt": ""}"#, "prompt"),
    (r#"{"prompt": []}"#, "prompt"),
    (r#"{"prompt": ["a", ""]}"#, "prompt[1]"),
    (r#"{"prompt": [999999]}"#, "prompt"),
    (r#"{"prompt": [-1]}"#, "prompt"),
    (r#"{"prompt": [9223372036854775808]}"#, "prompt"),
    (r#"{"prompt": [1e400]}"#, "prompt"),
    (r#"{"prompt": {"a": 1}}"#, "prompt"),
    (r#"{"prompt": "a", "logprobs": 21}"#, "logprobs"),
    (r#"{"prompt": "a", "echo": 1}"#, "echo"),
    (r#"{"prompt": "a", "echo": true, "logprobs": 21}"#, "logprobs"),
    (r#"{"prompt": "a", "echo": true, "max_tokens": 0}"#, "max_tokens"),
    (r#"{"prompt": "a", "logprobs": 1, "max_tokens": 0}"#, "max_tokens"),
    (r#"{"prompt": "a", "echo": true, "logprobs": 1, "max_tokens": 0, "n": 2}"#, "n"),
    (r#"{"prompt": "a", "echo": true, "logprobs": 1, "max_tokens": 0, "best_of": 2}"#, "best_of"),
    (
        r#"{"prompt": "a", "echo": true, "logprobs": 1, "max_tokens": 0, "min_tokens": 1}"#,
        "min_tokens",
    ),
    (r#"{"prompt": "a", "echo": true, "logprobs": 1, "suffix": "b"}"#, "suffix"),
    (r#"{"prompt": "a", "echo": true, "logprobs": 1, "use_beam_search": true}"#, "use_beam_search"),
    (r#"{"prompt": "a", "suffix": 5}"#, "suffix"),
    (r#"{"prompt": [97], "suffix": "b"}"#, "suffix"),
    (r#"{"prompt": "a", "best_of": 0}"#, "best_of"),
    (r#"{"prompt": "a", "best_of": -1}"#, "best_of"),
    (r#"{"prompt": "a", "best_of": 1.5}"#, "best_of"),
    (r#"{"prompt": "a", "best_of": 129}"#, "best_of"),
    (r#"{"prompt": "a", "best_of": 2, "n": 3}"#, "best_of"),
    (r#"{"prompt": "a", "best_of": 2, "stream": true}"#, "stream"),
    (r#"{"prompt": "a", "length_penalty": 2}"#, "length_penalty"),
    (r#"{"prompt": "a", "use_beam_search": 1}"#, "use_beam_search"),
    (r#"{"prompt": "a", "use_beam_search": true, "best_of": 17}"#, "best_of"),
    (r#"{"prompt": "a", "use_beam_search": true, "n": 17}"#, "n"),
    // The server under test runs eight sequences at most.
    (r#"{"prompt": "a", "use_beam_search": true, "best_of": 9}"#, "best_of"),
    (r#"{"prompt": "a", "use_beam_search": true, "n": 3, "best_of": 2}"#, "best_of"),
    (r#"{"prompt": "a", "use_beam_search": true, "stream": true}"#, "stream"),
    (r#"{"prompt": "a", "use_beam_search": true, "temperature": 0.5}"#, "temperature"),
    (r#"{"prompt": "a", "use_beam_search": true, "top_p": 0.5}"#, "top_p"),
    (r#"{"prompt": "a", "use_beam_search": true, "top_k": 5}"#, "top_k"),
    (r#"{"prompt": "a", "use_beam_search": true, "min_p": 0.5}"#, "min_p"),
    (r#"{"prompt": "a", "use_beam_search": true, "stop": "x"}"#, "stop"),
    (r#"{"prompt": "a", "use_beam_search": true, "logit_bias": {"5": 1}}"#, "logit_bias"),
    (r#"{"prompt": "a", "use_beam_search": true, "presence_penalty": 1}"#, "presence_penalty"),
    (r#"{"prompt": "a", "use_beam_search": true, "min_tokens": 1}"#, "min_tokens"),
    (r#"{"prompt": "a", "use_beam_search": true, "dry_multiplier": 1}"#, "dry_multiplier"),
    (r#"{"prompt": "a", "use_beam_search": true, "length_penalty": 1e39}"#, "length_penalty"),
    (r#"{"prompt": "a", "use_beam_search": true, "length_penalty": NaN}"#, "length_penalty"),
    (r#"{"prompt": "a", "use_beam_search": true, "length_penalty": "1"}"#, "length_penalty"),
];

#[test]
fn bad_input_is_refused_by_field_and_harms_nothing() {
    let server = TestServer::start(Setup::default());
    let check = |path: &str, body: &str, expected: &str| {
        let response = post(server.address, path, body);
        let (param, _) = error_of(&response);
        // Some paths go deeper into the value, such as `prompt[0]`.
        let names_field = param == expected || param.starts_with(&format!("{expected}["));
        assert!(response.status == 400 && names_field, "{body}: {}", response.body);
    };
    for (fields, param) in BAD_FIELDS {
        let messages = r#""messages": [{"role": "user", "content": "x"}]"#;
        check(CHAT, &format!("{{{messages}, {fields}}}"), param);
        check(COMPLETIONS, &format!("{{\"prompt\": \"x\", {fields}}}"), param);
    }
    BAD_CHATS.iter().for_each(|(body, param)| check(CHAT, body, param));
    BAD_COMPLETIONS.iter().for_each(|(body, param)| check(COMPLETIONS, body, param));
    server.check_alive();
    server.wait_until_idle();
}

#[test]
fn refused_requests_leave_a_running_stream_as_it_is() {
    let server = TestServer::start(Setup { gate: Gate::new(1), ..Setup::default() });
    let body = json!({
        "prompt": "?", "max_tokens": 240, "ignore_eos": true, "seed": 3, "stream": true,
        "logprobs": 2,
    })
    .to_string();
    let send = || Connection::post(server.address, COMPLETIONS, &body);
    // Tokens that arrive together may share a chunk.
    let told = |response: &Response| -> (String, Vec<Value>) {
        let choices: Vec<Value> =
            response.chunks().iter().map(|chunk| chunk["choices"][0].clone()).collect();
        let logprobs = |choice: &Value| choice["logprobs"]["token_logprobs"].as_array().cloned();
        let text = choices.iter().filter_map(|choice| choice["text"].as_str()).collect();
        (text, choices.iter().filter_map(logprobs).flatten().collect())
    };
    let running = send();
    wait_until("it runs", || server.metric("mini_infer_running_sequences") == 1);
    // What the engine itself refuses waits for the end of a step.
    let engine_s = |body: &str| body.contains("\"best_of\": 9");
    for (body, _) in BAD_COMPLETIONS.iter().filter(|(body, _)| !engine_s(body)) {
        server.gate.pass(1);
        assert_eq!(post(server.address, COMPLETIONS, body).status, 400);
    }
    for (body, _) in BAD_CHATS {
        server.gate.pass(1);
        assert_eq!(post(server.address, CHAT, body).status, 400);
    }
    server.gate.open();
    let (text, logprobs) = told(&running.finish());
    assert_eq!(logprobs.len(), 240, "{text}");
    assert_eq!((text, logprobs), told(&send().finish()));
}

#[test]
fn what_a_template_refuses_is_told_in_its_words() {
    let server = TestServer::start(Setup::default());
    let body = r#"{"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}"#;
    for path in [CHAT, "/apply-template"] {
        let response = post(server.address, path, body);
        assert_eq!((response.status, error_of(&response).0.as_str()), (400, "messages"));
        assert!(response.body.contains("role tool is not supported"), "{}", response.body);
    }
}

#[test]
fn bodies_that_are_not_json_are_refused() {
    let server = TestServer::start(Setup::default());
    for body in ["", "{", "[1, 2", "\u{0}", "{\"prompt\": \"a\"} x"] {
        let response = post(server.address, COMPLETIONS, body);
        assert_eq!(
            (response.status, error_of(&response).1.as_str()),
            (400, "invalid_json"),
            "{body}"
        );
    }
    let deep = format!("{{\"prompt\": {}", "[".repeat(100_000));
    assert_eq!(post(server.address, COMPLETIONS, &deep).status, 400);
    server.check_alive();
}

#[test]
fn neutral_and_ignored_fields_are_accepted() {
    let server = TestServer::start(Setup::default());
    let body = json!({
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "me"},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": null,
             "annotations": [], "audio": null, "function_call": null},
            {"role": "user", "content": "so?"},
        ],
        "max_tokens": 1, "tools": [], "tool_choice": "none", "response_format": {"type": "text"},
        "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "me",
        "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "top_k": -1, "stop": null,
        "seed": null, "stream_options": null, "parallel_tool_calls": true, "model": null,
    });
    let response = post(server.address, CHAT, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
}

#[test]
fn what_exceeds_the_context_gets_the_same_answer_everywhere() {
    let server = TestServer::start(Setup::default());
    for stream in [false, true] {
        let long = "x".repeat(256);
        let body = json!({"prompt": long, "stream": stream});
        let response = post(server.address, COMPLETIONS, &body.to_string());
        assert_eq!(
            error_of(&response),
            ("prompt".to_owned(), "context_length_exceeded".to_owned())
        );
        let message = response.json()["error"]["message"].to_string();
        assert!(
            message.contains("context length is 256") && message.contains("has 256"),
            "{message}"
        );
        let body = json!({"messages": [{"role": "user", "content": long}], "stream": stream});
        let response = post(server.address, CHAT, &body.to_string());
        assert_eq!(
            (response.status, error_of(&response).1.as_str()),
            (400, "context_length_exceeded")
        );
        let body = json!({"prompt": "x".repeat(200), "max_tokens": 57, "stream": stream});
        let response = post(server.address, COMPLETIONS, &body.to_string());
        let message = response.json()["error"]["message"].to_string();
        assert!(message.contains("has 200 and max_tokens is 57"), "{message}");
    }
    let body = json!({"prompt": "x".repeat(200), "max_tokens": 56});
    assert_eq!(post(server.address, COMPLETIONS, &body.to_string()).status, 200);
}

#[test]
fn a_model_that_is_not_served_is_not_found() {
    let server = TestServer::start(Setup::default());
    let response = post(server.address, COMPLETIONS, r#"{"model": "gpt-4", "prompt": "a"}"#);
    assert_eq!(response.status, 404);
    assert_eq!(error_of(&response), ("model".to_owned(), "model_not_found".to_owned()));
}

#[test]
fn unknown_routes_and_methods_get_json_errors() {
    let server = TestServer::start(Setup::default());
    let response = get(server.address, "/v1/nothing");
    assert_eq!((response.status, error_of(&response).1.as_str()), (404, "unknown_url"));
    let response = get(server.address, COMPLETIONS);
    assert_eq!((response.status, error_of(&response).1.as_str()), (405, "method_not_allowed"));
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let config = ServerConfig { max_body_bytes: 1000, ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, ..Setup::default() });
    let body = json!({"prompt": "x".repeat(2000)}).to_string();
    let response = post(server.address, COMPLETIONS, &body);
    assert_eq!((response.status, error_of(&response).1.as_str()), (413, "body_too_large"));
    server.check_alive();
}
