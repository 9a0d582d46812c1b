//! Log probabilities of prompts, which come with their echo.

use crate::client::post;
use crate::harness::{Setup, TestServer, error_of};
use mini_infer_engine::EngineConfig;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

fn ask(server: &TestServer, fields: Value) -> Value {
    let mut body = json!({"echo": true, "logprobs": 1});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let response = post(server.address, COMPLETIONS, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// In thousandths.
fn rounded(logprob: &Value) -> Option<f64> {
    logprob.as_f64().map(|logprob| (logprob * 1e3).round())
}

#[test]
fn a_prompt_comes_with_the_log_probabilities_of_its_tokens() {
    let server = TestServer::start(Setup::default());
    let json = ask(&server, json!({"prompt": "yz?Bx", "max_tokens": 1}));
    let choice = &json["choices"][0];
    assert_eq!(choice["text"], "yz?Bxy");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["y", "z", "?", "B", "x", "y"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3, 4, 5]));
    let values: Vec<_> =
        logprobs["token_logprobs"].as_array().unwrap().iter().map(rounded).collect();
    // `z` is certain after `y`, `?` is impossible after `z`, `B` follows `?` in 4 of 10 cases.
    let floor = Some(-9_999_000.0);
    assert_eq!(values, [None, Some(0.0), floor, Some(-916.0), floor, Some(0.0)]);
    let top = &logprobs["top_logprobs"];
    assert_eq!(top[0], Value::Null);
    assert_eq!(rounded(&top[3]["A"]), Some(-511.0));
    assert_eq!(top[1], json!({"z": 0.0}));
}

#[test]
fn a_prompt_without_output_is_scored_and_ends_with_length() {
    let server = TestServer::start(Setup::default());
    for max_tokens in ["max_tokens", "max_completion_tokens"] {
        let json = ask(&server, json!({"prompt": [120, 121, 122], max_tokens: 0}));
        let choice = &json["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("xyz"), &json!("length")));
        assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, 0.0, 0.0]));
        assert_eq!(json["usage"]["prompt_tokens"], 3);
        assert_eq!(json["usage"]["completion_tokens"], 0);
    }
    let one = ask(&server, json!({"prompt": "x", "max_tokens": 0, "logprobs": 0}));
    let logprobs = &one["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["x"]));
    assert_eq!(logprobs["top_logprobs"], json!([null]));
    // The whole context of the server under test.
    let full = ask(&server, json!({"prompt": "a".repeat(256), "max_tokens": 0}));
    assert_eq!(full["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 256);
    let body = json!({"prompt": "a".repeat(257), "max_tokens": 0, "echo": true, "logprobs": 1});
    let response = post(server.address, COMPLETIONS, &body.to_string());
    assert_eq!(response.status, 400);
    assert_eq!(error_of(&response), ("prompt".to_owned(), "context_length_exceeded".to_owned()));
    server.wait_until_idle();
}

#[test]
fn every_choice_of_every_prompt_has_the_echo_s_log_probabilities() {
    let server = TestServer::start(Setup::default());
    let json = ask(&server, json!({"prompt": ["ab", "yz"], "n": 2, "max_tokens": 1}));
    for (i, [first, second, third]) in
        [["a", "b", "c"], ["a", "b", "c"], ["y", "z", "a"], ["y", "z", "a"]].iter().enumerate()
    {
        let logprobs = &json["choices"][i]["logprobs"];
        assert_eq!(logprobs["tokens"], json!([first, second, third]), "choice {i}");
        assert_eq!(logprobs["token_logprobs"], json!([null, 0.0, 0.0]));
    }
    let best = ask(&server, json!({"prompt": ["ab", "yz"], "best_of": 3, "max_tokens": 1}));
    assert_eq!(best["choices"][1]["logprobs"]["tokens"], json!(["y", "z", "a"]));
}

#[test]
fn a_stream_tells_them_with_the_echo_and_joins_to_the_same() {
    let server = TestServer::start(Setup::default());
    let fields = json!({"prompt": ["ab?", "yz"], "max_tokens": 3, "temperature": 0});
    let whole = ask(&server, fields.clone());
    let mut body = fields;
    body.as_object_mut().unwrap().extend([
        ("echo".to_owned(), json!(true)),
        ("logprobs".to_owned(), json!(1)),
        ("stream".to_owned(), json!(true)),
    ]);
    let response = post(server.address, COMPLETIONS, &body.to_string());
    let mut joined = [json!({}), json!({})];
    for chunk in response.chunks() {
        let choice = &chunk["choices"][0];
        let joined = &mut joined[usize::try_from(choice["index"].as_u64().unwrap()).unwrap()];
        let text = joined["text"].as_str().unwrap_or_default().to_owned();
        joined["text"] = json!(text + choice["text"].as_str().unwrap());
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let mut all = joined[list].as_array().cloned().unwrap_or_default();
            all.extend(choice["logprobs"][list].as_array().cloned().unwrap_or_default());
            joined[list] = json!(all);
        }
    }
    for (i, joined) in joined.iter().enumerate() {
        let choice = &whole["choices"][i];
        assert_eq!(joined["text"], choice["text"]);
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(joined[list], choice["logprobs"][list], "{list} of choice {i}");
        }
    }
}

#[test]
fn characters_of_several_tokens_count_once_in_offsets() {
    let server = TestServer::start(Setup::default());
    let json = ask(&server, json!({"prompt": "é!", "max_tokens": 5}));
    let choice = &json["choices"][0];
    assert_eq!(choice["text"], "é!😀.");
    // Two bytes, one, four, one; a token counts from where the character it begins will stand.
    let offsets = &choice["logprobs"]["text_offset"];
    assert_eq!(*offsets, json!([0, 0, 1, 2, 2, 2, 2, 3]));
}

#[test]
fn a_cached_prompt_is_scored_all_the_same_and_in_any_chunks() {
    let scores = |max_batched_tokens: u32, times: usize| {
        let engine = EngineConfig { max_batched_tokens, ..Setup::default().engine };
        let server = TestServer::start(Setup { engine, ..Setup::default() });
        let fields = json!({"prompt": "?A?B".repeat(20), "max_tokens": 1});
        let answers: Vec<Value> = (0..times).map(|_| ask(&server, fields.clone())).collect();
        for answer in &answers {
            assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
            assert_eq!(answer["choices"][0]["logprobs"], answers[0]["choices"][0]["logprobs"]);
        }
        answers[0]["choices"][0]["logprobs"].clone()
    };
    assert_eq!(scores(64, 2), scores(9, 1));
}
