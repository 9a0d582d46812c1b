//! vLLM's `prompt_logprobs`: which tokens were likely in each place of a prompt.

use crate::client::post;
use crate::harness::{Setup, TestServer, error_of};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn ask(server: &TestServer, path: &str, body: &Value) -> Value {
    let response = post(server.address, path, &body.to_string());
    assert_eq!(response.status, 200, "{body}: {}", response.body);
    response.json()
}

/// Returns the log probability in thousandths, the rank and the text of a token.
fn told(place: &Value, token: u8) -> (f64, u64, String) {
    let found = &place[token.to_string()];
    let logprob = (found["logprob"].as_f64().unwrap() * 1e3).round();
    let text = found["decoded_token"].as_str().unwrap().to_owned();
    (logprob, found["rank"].as_u64().unwrap(), text)
}

#[test]
fn each_place_tells_of_likely_tokens_and_of_the_prompt_s_own() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": "yz?Bx", "max_tokens": 1, "prompt_logprobs": 1});
    let answer = ask(&server, COMPLETIONS, &body);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["logprobs"]), (&json!("y"), &Value::Null));
    let places = choice["prompt_logprobs"].as_array().unwrap();
    assert_eq!((places.len(), &places[0]), (5, &Value::Null));
    let nums_told: Vec<usize> =
        places[1..].iter().map(|place| place.as_object().unwrap().len()).collect();
    // What is certain is the prompt's own token.
    assert_eq!(nums_told, [1, 2, 2, 2]);
    assert_eq!(told(&places[1], b'z'), (0.0, 1, "z".to_owned()));
    assert_eq!(told(&places[3], b'A'), (-511.0, 1, "A".to_owned()));
    assert_eq!(told(&places[3], b'B'), (-916.0, 2, "B".to_owned()));
    let (logprob, rank, _) = told(&places[2], b'?');
    assert!(logprob == -9_999_000.0 && rank > 1, "{logprob} {rank}");
    let none = json!({"prompt": "yz?Bx", "max_tokens": 1, "prompt_logprobs": 0});
    let none = ask(&server, COMPLETIONS, &none);
    let place = &none["choices"][0]["prompt_logprobs"][3];
    assert_eq!(place.as_object().unwrap().len(), 1);
    assert_eq!(told(place, b'B'), (-916.0, 2, "B".to_owned()));
    server.wait_until_idle();
}

#[test]
fn every_choice_has_its_prompt_s_and_the_echo_its_own_count() {
    let server = TestServer::start(Setup::default());
    let body = json!({
        "prompt": ["?B", [121, 122]], "n": 2, "max_tokens": 1, "prompt_logprobs": 3, "echo": true,
        "logprobs": 1,
    });
    let answer = ask(&server, COMPLETIONS, &body);
    for (choice, token) in (0..4).zip([b'B', b'B', b'z', b'z']) {
        let choice = &answer["choices"][choice];
        assert!(choice["prompt_logprobs"][1].get(token.to_string()).is_some(), "{choice}");
        assert!((3..=4).contains(&choice["prompt_logprobs"][1].as_object().unwrap().len()));
        assert_eq!(choice["logprobs"]["top_logprobs"][1].as_object().unwrap().len(), 1);
    }
    let best = json!({"prompt": ["ab", "yz"], "best_of": 2, "max_tokens": 1, "prompt_logprobs": 0});
    let answer = ask(&server, COMPLETIONS, &best);
    assert!(answer["choices"][1]["prompt_logprobs"][1].get("122").is_some(), "{answer}");
}

#[test]
fn a_chat_tells_of_its_prompt_once() {
    let server = TestServer::start(Setup::default());
    let messages = json!([{"role": "user", "content": "ab"}]);
    let body = json!({"messages": messages, "max_tokens": 1, "n": 2, "prompt_logprobs": 2});
    let answer = ask(&server, CHAT, &body);
    let places = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!(Value::from(places.len()), answer["usage"]["prompt_tokens"]);
    assert!(places[0].is_null() && places[1..].iter().all(Value::is_object), "{answer}");
    let plain = ask(&server, CHAT, &json!({"messages": messages, "max_tokens": 1}));
    assert!(plain.get("prompt_logprobs").is_none());
    server.wait_until_idle();
}

#[test]
fn what_cannot_be_told_is_refused_by_name() {
    let server = TestServer::start(Setup::default());
    let refused = |path: &str, mut body: Value, fields: Value, param: &str| {
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let response = post(server.address, path, &body.to_string());
        assert_eq!(response.status, 400, "{}", response.body);
        assert_eq!(error_of(&response).0, param, "{body}");
    };
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    let text = json!({"prompt": "ab", "max_tokens": 1});
    for (path, body) in [(CHAT, &chat), (COMPLETIONS, &text)] {
        for value in [json!(-1), json!(21), json!("1"), json!(0.5), json!(true)] {
            refused(path, body.clone(), json!({"prompt_logprobs": value}), "prompt_logprobs");
        }
        let streamed = json!({"prompt_logprobs": 0, "stream": true});
        refused(path, body.clone(), streamed, "prompt_logprobs");
    }
    let searched = json!({"prompt_logprobs": 1, "use_beam_search": true});
    refused(COMPLETIONS, text.clone(), searched, "use_beam_search");
    refused(COMPLETIONS, text, json!({"prompt_logprobs": 1, "max_tokens": 0}), "max_tokens");
    server.wait_until_idle();
}
