//! Whole responses.

use crate::client::{get, post};
use crate::harness::{Setup, TestServer};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn answer(server: &TestServer, path: &str, body: Value) -> Value {
    let response = post(server.address, path, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

#[test]
fn a_chat_answer_has_every_field_that_strict_clients_require() {
    let server = TestServer::start(Setup::default());
    let messages = json!([{"role": "user", "content": "hi"}]);
    let mut json = answer(&server, CHAT, json!({"messages": messages, "max_tokens": 3}));
    assert!(json["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(json["created"].as_u64().unwrap() > 1_700_000_000);
    (json["id"], json["created"]) = (Value::Null, Value::Null);
    // Markup is one token each: `<im_start>user\nhi<im_end>\n<im_start>assistant\n`.
    let num_prompt_tokens = 1 + 5 + 2 + 1 + 1 + 1 + 10;
    let expected = json!({
        "id": null,
        "object": "chat.completion",
        "created": null,
        "model": "script",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": "abc", "refusal": null},
            "logprobs": null,
            "finish_reason": "length",
        }],
        "usage": {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": 3,
            "total_tokens": num_prompt_tokens + 3,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    });
    assert_eq!(json, expected);
}

#[test]
fn an_end_token_exactly_at_the_cap_is_a_stop() {
    let server = TestServer::start(Setup::default());
    let finish = |max_tokens: u32| {
        let json = answer(&server, COMPLETIONS, json!({"prompt": "x8", "max_tokens": max_tokens}));
        let choice = &json["choices"][0];
        let usage = json["usage"]["completion_tokens"].as_u64().unwrap();
        (choice["text"].to_string(), choice["finish_reason"].to_string(), usage)
    };
    assert_eq!(finish(1), ("\"9\"".to_owned(), "\"length\"".to_owned(), 1));
    assert_eq!(finish(2), ("\"9\"".to_owned(), "\"stop\"".to_owned(), 2));
    assert_eq!(finish(9), ("\"9\"".to_owned(), "\"stop\"".to_owned(), 2));
}

#[test]
fn ignored_end_tokens_have_no_text_and_do_not_stop() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": "x8", "max_tokens": 4, "ignore_eos": true});
    let choice = &answer(&server, COMPLETIONS, body)["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("9ab"), &json!("length")));
}

#[test]
fn stop_strings_cut_across_tokens() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": "a", "max_tokens": 200, "stop": ["xyz", "def"]});
    let json = answer(&server, COMPLETIONS, body);
    let choice = &json["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("bc"), &json!("stop")));
    assert_eq!(json["usage"]["completion_tokens"], 5);
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "stop": "c"});
    assert_eq!(answer(&server, CHAT, chat)["choices"][0]["message"]["content"], "ab");
}

#[test]
fn every_prompt_gets_n_choices_and_is_counted_once() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": ["aa", "pp"], "n": 3, "max_tokens": 2, "temperature": 0});
    let json = answer(&server, COMPLETIONS, body);
    let choices = json["choices"].as_array().unwrap();
    let texts: Vec<_> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["bc", "bc", "bc", "qr", "qr", "qr"]);
    let indexes: Vec<_> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
    assert_eq!(json["usage"]["prompt_tokens"], 4);
    assert_eq!(json["usage"]["completion_tokens"], 12);
    server.wait_until_idle();
    server.wait_for_metric("mini_infer_tokens_total{kind=\"prompt\"}", 4);
    server.wait_for_metric("mini_infer_tokens_total{kind=\"output\"}", 12);
}

#[test]
fn all_choices_come_back_every_time() {
    let server = TestServer::start(Setup::default());
    for _ in 0..20 {
        let json = answer(&server, COMPLETIONS, json!({"prompt": "?", "n": 8, "max_tokens": 3}));
        let choices = json["choices"].as_array().unwrap().iter();
        let indexes: Vec<_> = choices.map(|choice| choice["index"].as_u64().unwrap()).collect();
        assert_eq!(indexes, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(json["usage"]["prompt_tokens"], 1);
        assert_eq!(json["usage"]["completion_tokens"], 24);
    }
}

#[test]
fn prompts_may_be_token_ids() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": [[97, 98], [102]], "max_tokens": 1});
    let json = answer(&server, COMPLETIONS, body);
    assert_eq!(json["choices"][0]["text"], "c");
    assert_eq!(json["choices"][1]["text"], "g");
}

#[test]
fn without_a_cap_text_gets_16_tokens_and_chat_the_rest_of_the_context() {
    let server = TestServer::start(Setup::default());
    let json = answer(&server, COMPLETIONS, json!({"prompt": "a", "max_tokens": null}));
    assert_eq!(json["usage"]["completion_tokens"], 16);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let json = answer(&server, CHAT, json!({"messages": messages}));
    assert_eq!(json["usage"]["total_tokens"], 256);
    assert_eq!(json["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_repeated_prompt_reports_its_cached_tokens_and_the_same_text() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": "abc".repeat(20), "max_tokens": 8});
    let first = answer(&server, COMPLETIONS, body.clone());
    let second = answer(&server, COMPLETIONS, body);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 59);
    assert_eq!(first["choices"], second["choices"]);
    assert_eq!(server.metric("mini_infer_prefix_cache_hit_tokens_total"), 59);
}

#[test]
fn log_probabilities_have_bytes_and_no_infinities() {
    let server = TestServer::start(Setup::default());
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({
        "messages": messages, "max_tokens": 2, "logprobs": true, "top_logprobs": 2,
        "temperature": 0,
    });
    let json = answer(&server, CHAT, body);
    let tokens = json["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 2);
    assert_eq!(tokens[0]["token"], "a");
    assert_eq!(tokens[0]["bytes"], json!([97]));
    assert_eq!(tokens[0]["logprob"], 0.0);
    assert_eq!(tokens[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(tokens[0]["top_logprobs"][1]["logprob"], -9999.0);
    let body = json!({"prompt": "é", "max_tokens": 3, "logprobs": 1, "temperature": 0});
    let json = answer(&server, COMPLETIONS, body);
    let logprobs = &json["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "c"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2]));
    assert_eq!(logprobs["top_logprobs"][1], json!({"b": 0.0}));
}

#[test]
fn stopped_text_takes_the_log_probabilities_of_the_stop_string_away() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": "a", "max_tokens": 20, "stop": "de", "logprobs": 0});
    let logprobs = &answer(&server, COMPLETIONS, body)["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["b", "c"]));
}

#[test]
fn special_tokens_in_a_client_s_text_stay_text() {
    let server = TestServer::start(Setup::default());
    let prompt_tokens = |content: &str| {
        let messages = json!([{"role": "user", "content": content}]);
        let json = answer(&server, CHAT, json!({"messages": messages, "max_tokens": 1}));
        json["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let markup = "<|im_end|>";
    assert_eq!(prompt_tokens(markup) - prompt_tokens(""), markup.len() as u64);
}

#[test]
fn models_are_listed_and_shown_under_every_name() {
    let server = TestServer::start(Setup::default());
    let list = get(server.address, "/v1/models").json();
    assert_eq!(list["data"][0]["id"], "script");
    assert_eq!(list["data"][1]["id"], "org/other-name");
    assert_eq!(get(server.address, "/v1/models/org/other-name").json()["max_model_len"], 256);
    assert_eq!(get(server.address, "/v1/models/nope").status, 404);
    let body = json!({"model": "org/other-name", "prompt": "a"});
    assert_eq!(answer(&server, COMPLETIONS, body)["model"], "org/other-name");
}

#[test]
fn health_and_version_name_the_engine() {
    let server = TestServer::start(Setup::default());
    for path in ["/health", "/health/live", "/health/ready"] {
        let response = get(server.address, path);
        assert_eq!(response.json(), json!({"status": "ok", "engine": "mini-infer"}), "{path}");
    }
    assert!(get(server.address, "/version").json()["version"].is_string());
}
