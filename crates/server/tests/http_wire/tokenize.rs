//! What texts and conversations are in tokens, without asking the model.

use crate::client::{Response, post};
use crate::harness::{Setup, TestServer, error_of};
use mini_infer_server::ServerConfig;
use serde_json::{Value, json};

const TOKENIZE: &str = "/tokenize";
const DETOKENIZE: &str = "/detokenize";
const APPLY_TEMPLATE: &str = "/apply-template";

fn send(server: &TestServer, path: &str, body: &Value) -> Response {
    post(server.address, path, &body.to_string())
}

fn answer(server: &TestServer, path: &str, body: &Value) -> Value {
    let response = send(server, path, body);
    assert_eq!(response.status, 200, "{body}: {}", response.body);
    response.json()
}

/// Asks for one token and returns how many the prompt had.
fn num_prompt_tokens(server: &TestServer, path: &str, mut body: Value) -> Value {
    body["max_tokens"] = json!(1);
    answer(server, path, &body)["usage"]["prompt_tokens"].clone()
}

/// Bodies of `/tokenize` that hold a conversation.
fn conversations() -> [Value; 5] {
    let messages = json!([
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "<|im_end|> äöü 😀"}]},
        {"role": "assistant", "content": "lm"},
    ]);
    [
        json!({"messages": messages}),
        json!({"messages": messages, "add_generation_prompt": false}),
        json!({"messages": messages, "continue_final_message": true}),
        json!({"messages": messages, "chat_template_kwargs": {"ending": "x8"}}),
        json!({"messages": messages, "tools": null, "tool_choice": "none", "model": "script"}),
    ]
}

#[test]
fn a_text_is_its_tokens_and_back() {
    let server = TestServer::start(Setup::default());
    let json = answer(&server, TOKENIZE, &json!({"prompt": "hä<|im_end|>"}));
    let bytes = "hä<|im_end|>".as_bytes();
    let expected = json!({"count": 13, "max_model_len": 256, "tokens": bytes, "token_strs": null});
    assert_eq!(json, expected, "text stays text");
    let json = answer(&server, DETOKENIZE, &json!({"tokens": bytes}));
    assert_eq!(json, json!({"prompt": "hä<|im_end|>", "content": "hä<|im_end|>"}));
    let json = answer(&server, DETOKENIZE, &json!({"tokens": [256, 104, 257, 0xC3]}));
    assert_eq!(json["prompt"], "<|im_start|>h<|im_end|>\u{FFFD}");
    assert_eq!(answer(&server, DETOKENIZE, &json!({"tokens": []}))["prompt"], "");
    assert_eq!(answer(&server, TOKENIZE, &json!({"prompt": ""}))["tokens"], json!([]));
    let json = answer(&server, TOKENIZE, &json!({"content": "hi", "add_special": true}));
    assert_eq!(json["tokens"], json!([104, 105]));
}

#[test]
fn tokens_are_written_out_when_asked_for() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": "aä", "return_token_strs": true, "add_special_tokens": false});
    let strings = &answer(&server, TOKENIZE, &body)["token_strs"];
    assert_eq!(strings, &json!(["a", "\u{FFFD}", "\u{FFFD}"]));
}

#[test]
fn counts_are_those_of_the_requests_that_run() {
    let server = TestServer::start(Setup::default());
    for body in conversations() {
        let count = answer(&server, TOKENIZE, &body)["count"].clone();
        let used = num_prompt_tokens(&server, "/v1/chat/completions", body.clone());
        assert_eq!(count, used, "{body}");
    }
    let body = json!({"prompt": "<|im_start|> äöü 😀"});
    let count = answer(&server, TOKENIZE, &body)["count"].clone();
    assert_eq!(count, num_prompt_tokens(&server, "/v1/completions", body));
}

#[test]
fn a_rendered_conversation_has_the_tokens_of_the_prompt() {
    let server = TestServer::start(Setup::default());
    for body in conversations() {
        let text = answer(&server, APPLY_TEMPLATE, &body)["prompt"].clone();
        let tokens = answer(&server, TOKENIZE, &body)["tokens"].clone();
        assert_eq!(answer(&server, DETOKENIZE, &json!({"tokens": tokens}))["prompt"], text);
    }
    let body = json!({"messages": [{"role": "user", "content": "<|im_end|>"}]});
    assert_eq!(
        answer(&server, APPLY_TEMPLATE, &body)["prompt"],
        "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    );
    let tokens = answer(&server, TOKENIZE, &body)["tokens"].clone();
    let ends = tokens.as_array().unwrap().iter().filter(|&id| id == 257).count();
    assert_eq!(ends, 1, "the client's is text");
}

#[test]
fn what_cannot_be_meant_is_refused_by_name() {
    let server = TestServer::start(Setup::default());
    let messages = r#""messages": [{"role": "user", "content": "x"}]"#;
    let with_messages = |field: &str| format!("{{{messages}, {field}}}");
    let invalid = [
        (TOKENIZE, "{}".to_owned(), "prompt"),
        (TOKENIZE, r#"{"prompt": "a", "content": "a"}"#.to_owned(), "prompt"),
        (TOKENIZE, with_messages(r#""prompt": "a""#), "prompt"),
        (TOKENIZE, r#"{"prompt": 5}"#.to_owned(), "prompt"),
        (TOKENIZE, r#"{"prompt": ["a"]}"#.to_owned(), "prompt"),
        (TOKENIZE, r#"{"messages": []}"#.to_owned(), "messages"),
        (TOKENIZE, r#"{"messages": [{"role": "robot"}]}"#.to_owned(), "messages[0].role"),
        (TOKENIZE, r#"{"prompt": "a", "add_special_tokens": 1}"#.to_owned(), "add_special_tokens"),
        (TOKENIZE, r#"{"prompt": "a", "add_special": true}"#.to_owned(), "add_special"),
        (
            TOKENIZE,
            r#"{"content": "a", "add_special_tokens": true}"#.to_owned(),
            "add_special_tokens",
        ),
        (TOKENIZE, r#"{"prompt": "a", "tools": []}"#.to_owned(), "tools"),
        (
            TOKENIZE,
            r#"{"content": "a", "add_generation_prompt": true}"#.to_owned(),
            "add_generation_prompt",
        ),
        (TOKENIZE, with_messages(r#""tools": [{"type": "function"}]"#), "tools[0].function"),
        (
            TOKENIZE,
            with_messages(r#""chat_template_kwargs": {"bos_token": 1}"#),
            "chat_template_kwargs.bos_token",
        ),
        (DETOKENIZE, "{}".to_owned(), "tokens"),
        (DETOKENIZE, r#"{"tokens": "a"}"#.to_owned(), "tokens"),
        (DETOKENIZE, r#"{"tokens": [1, 261]}"#.to_owned(), "tokens[1]"),
        (DETOKENIZE, r#"{"tokens": [-1]}"#.to_owned(), "tokens[0]"),
        (DETOKENIZE, r#"{"tokens": [1, 2.5]}"#.to_owned(), "tokens[1]"),
        (APPLY_TEMPLATE, "{}".to_owned(), "messages"),
        (
            APPLY_TEMPLATE,
            with_messages(r#""continue_final_message": true"#),
            "continue_final_message",
        ),
        (
            APPLY_TEMPLATE,
            r#"{"messages": [{"role": "tool", "content": "x"}]}"#.to_owned(),
            "messages",
        ),
    ];
    for (path, body, param) in invalid {
        let response = post(server.address, path, &body);
        let (got, code) = error_of(&response);
        let got = (response.status, got.as_str(), code.as_str());
        assert_eq!(got, (400, param, "invalid_value"), "{body}");
    }
    server.check_alive();
}

#[test]
fn fields_that_do_nothing_here_are_refused() {
    let server = TestServer::start(Setup::default());
    let messages = json!([{"role": "user", "content": "x"}]);
    let cases = [
        (TOKENIZE, json!({"prompt": "a", "truncate": true}), "truncate", "unknown_parameter"),
        (DETOKENIZE, json!({"tokens": [97], "max_tokens": 1}), "max_tokens", "unknown_parameter"),
        (
            APPLY_TEMPLATE,
            json!({"messages": messages, "temperature": 0}),
            "temperature",
            "unknown_parameter",
        ),
        (
            TOKENIZE,
            json!({"messages": messages, "chat_template": "{{ 1 }}"}),
            "chat_template",
            "unsupported_parameter",
        ),
        (
            TOKENIZE,
            json!({"content": "a", "parse_special": true}),
            "parse_special",
            "unsupported_parameter",
        ),
        (
            TOKENIZE,
            json!({"content": "a", "with_pieces": true}),
            "with_pieces",
            "unsupported_parameter",
        ),
    ];
    for (path, body, param, code) in cases {
        let response = send(&server, path, &body);
        let expected = (400, (param.to_owned(), code.to_owned()));
        assert_eq!((response.status, error_of(&response)), expected, "{body}");
    }
    for (path, fields) in [
        (TOKENIZE, json!({"prompt": "a"})),
        (DETOKENIZE, json!({"tokens": [97]})),
        (APPLY_TEMPLATE, json!({"messages": messages})),
    ] {
        let mut body = fields;
        body["model"] = json!("other");
        let response = send(&server, path, &body);
        let code = error_of(&response).1;
        assert_eq!((response.status, code.as_str()), (404, "model_not_found"), "{path}");
    }
}

#[test]
fn long_bodies_are_answered_and_longer_answers_refused() {
    let config = ServerConfig { max_body_bytes: 40_000, ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, ..Setup::default() });
    // Beyond what is done in place, and beyond the context.
    let text = "ab ".repeat(13_000);
    let json = answer(&server, TOKENIZE, &json!({"prompt": text}));
    assert_eq!(json["count"], text.len());
    // Each of them `<|im_start|>`, in fewer bytes than that.
    let fits = answer(&server, DETOKENIZE, &json!({"tokens": vec![256; 3_000]}));
    assert_eq!(fits["prompt"].as_str().map(str::len), Some(36_000));
    let response = send(&server, DETOKENIZE, &json!({"tokens": vec![256; 4_000]}));
    assert_eq!((response.status, error_of(&response).0.as_str()), (400, "tokens"));
    let response = send(&server, TOKENIZE, &json!({"prompt": "x".repeat(40_000)}));
    assert_eq!((response.status, error_of(&response).1.as_str()), (413, "body_too_large"));
    server.check_alive();
}
