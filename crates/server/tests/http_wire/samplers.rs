//! Fields that change how tokens are chosen and written.

use crate::client::post;
use crate::harness::{Setup, TestServer};
use crate::script::END;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

/// Returns the first choice of a text completion at temperature 0.
fn choice(server: &TestServer, prompt: &str, fields: Value) -> Value {
    let mut body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 4});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let response = post(server.address, COMPLETIONS, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["choices"][0].take()
}

fn check(server: &TestServer, prompt: &str, fields: Value, text: &str, finish_reason: &str) {
    let choice = choice(server, prompt, fields.clone());
    let got = (choice["text"].as_str().unwrap(), choice["finish_reason"].as_str().unwrap());
    assert_eq!(got, (text, finish_reason), "{prompt} with {fields}");
}

#[test]
fn biases_and_penalties_change_what_is_chosen() {
    let server = TestServer::start(Setup::default());
    check(&server, "?", json!({}), "AC", "stop");
    check(&server, "?", json!({"logit_bias": {"65": -1}}), "BG", "stop");
    check(&server, "?", json!({"logit_bias": {"66": 100}}), "BG", "stop");
    check(&server, "A?", json!({"repetition_penalty": 2}), "BG", "stop");
    check(&server, "A?", json!({"repetition_penalty": 1}), "AC", "stop");
    // Only what was generated counts.
    let penalties = json!({"presence_penalty": 2, "frequency_penalty": 2});
    check(&server, "A?", penalties, "AC", "stop");
    let neutral = json!({"logit_bias": {}, "min_tokens": 0, "stop_token_ids": []});
    check(&server, "?", neutral, "AC", "stop");
}

#[test]
fn repetitions_and_top_choices_can_be_excluded() {
    let server = TestServer::start(Setup::default());
    // `1?A` would be the second time.
    let prompt = "1?A,1?";
    check(&server, prompt, json!({}), "AC", "stop");
    check(&server, prompt, json!({"dry_multiplier": 1}), "BG", "stop");
    let breaker = json!({"dry_multiplier": 1, "dry_sequence_breakers": ["?"]});
    check(&server, prompt, breaker, "AC", "stop");
    let near = json!({"dry_multiplier": 1, "dry_penalty_last_n": 3});
    check(&server, prompt, near, "AC", "stop");
    let sampled = |fields: Value| {
        let texts = (0..20).map(|seed| {
            let mut fields = fields.clone();
            (fields["seed"], fields["temperature"]) = (json!(seed), json!(1));
            choice(&server, "?", fields)["text"].as_str().unwrap()[..1].to_owned()
        });
        texts.collect::<String>()
    };
    let plain = sampled(json!({}));
    assert!(plain.contains('A') && plain.contains('B'), "{plain}");
    assert_eq!(sampled(json!({"xtc_probability": 1})), "B".repeat(20));
    assert_eq!(sampled(json!({"typical_p": 0.1})), "A".repeat(20));
    assert_eq!(sampled(json!({"xtc_probability": 0, "typical_p": 1, "dry_base": 2})), plain);
    let half = sampled(json!({"xtc_probability": 0.5}));
    assert_eq!(half, sampled(json!({"xtc_probability": 0.5})), "equal seeds, equal tokens");
    assert!(half.contains('A') && half != plain, "{half}");
}

#[test]
fn a_higher_temperature_spreads_the_choices() {
    let server = TestServer::start(Setup::default());
    let num_likelier = |temperature: f64| {
        let body = json!({
            "prompt": "?", "n": 128, "max_tokens": 1, "seed": 1, "temperature": temperature,
        });
        let json = post(server.address, "/v1/completions", &body.to_string()).json();
        let choices = json["choices"].as_array().unwrap().iter();
        choices.filter(|choice| choice["text"] == "A").count()
    };
    // `A` has 0.6 at 1, 0.88 at 0.2 and 0.55 at 2: three standard deviations on each side.
    assert_eq!(num_likelier(0.0), 128);
    assert!((103..=123).contains(&num_likelier(0.2)));
    assert!((53..=87).contains(&num_likelier(2.0)));
}

#[test]
fn chat_takes_the_same_fields() {
    let server = TestServer::start(Setup::default());
    // What follows the end of a turn's markup is certain, so a bias on all else changes nothing.
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3,
        "logit_bias": {"98": 100}, "presence_penalty": 0.5, "frequency_penalty": 0.5,
        "repetition_penalty": 1.1, "min_tokens": 2, "stop_token_ids": [99],
        "include_stop_str_in_output": true, "skip_special_tokens": false,
    });
    let response = post(server.address, "/v1/chat/completions", &body.to_string());
    let json = response.json();
    assert_eq!(response.status, 200, "{json}");
    assert_eq!(json["choices"][0]["message"]["content"], "abc");
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
}

#[test]
fn log_probabilities_are_those_of_the_model_and_finite() {
    let server = TestServer::start(Setup::default());
    let plain = choice(&server, "?", json!({"logprobs": 2}));
    let biased = choice(&server, "?", json!({"logprobs": 2, "logit_bias": {"65": -100}}));
    let first = |choice: &Value| {
        let logprobs = &choice["logprobs"];
        (logprobs["token_logprobs"][0].as_f64().unwrap(), logprobs["top_logprobs"][0].clone())
    };
    let (plain, biased) = (first(&plain), first(&biased));
    assert!((plain.0 - 0.6_f64.ln()).abs() < 1e-5);
    assert!((biased.0 - 0.4_f64.ln()).abs() < 1e-5);
    assert_eq!(plain.1, biased.1);
    let forbidden = json!({"logprobs": 2, "min_tokens": 3, "max_tokens": 3});
    let forbidden = choice(&server, "x8", forbidden);
    assert_eq!(forbidden["logprobs"]["token_logprobs"][1], -9999.0);
}

#[test]
fn nothing_ends_an_output_before_its_least_number_of_tokens() {
    let server = TestServer::start(Setup::default());
    check(&server, "x8", json!({}), "9", "stop");
    // Without the end, all other tokens are equally unlikely after `9`.
    check(&server, "x8", json!({"min_tokens": 3}), "9\0ab", "length");
    check(&server, "x8", json!({"min_tokens": 1}), "9", "stop");
    check(&server, "x", json!({"stop": "z"}), "y", "stop");
    check(&server, "x", json!({"stop": "z", "min_tokens": 2}), "yzab", "length");
    check(&server, "x", json!({"stop": "z", "min_tokens": 1}), "y", "stop");
}

#[test]
fn stop_tokens_end_an_output_and_are_written_where_that_is_wanted() {
    let server = TestServer::start(Setup::default());
    let stop = json!({"stop_token_ids": [i32::from(b'd'), 3]});
    check(&server, "a", stop, "bc", "stop");
    let kept = |fields: Value| {
        let mut all = json!({"include_stop_str_in_output": true});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        all
    };
    check(&server, "a", kept(json!({"stop_token_ids": [i32::from(b'd')]})), "bcd", "stop");
    check(&server, "a", kept(json!({"stop": "cd"})), "bcd", "stop");
    check(&server, "a", kept(json!({"stop": "c"})), "bc", "stop");
    check(&server, "x8", kept(json!({})), "9", "stop");
    check(&server, "x8", kept(json!({"skip_special_tokens": false})), "9<|im_end|>", "stop");
    let all = json!({"skip_special_tokens": false, "ignore_eos": true});
    check(&server, "x8", all, "9<|im_end|>ab", "length");
    check(&server, "x8", json!({"skip_special_tokens": true}), "9", "stop");
    // `ignore_eos` is about the model's own ends.
    let own = json!({"ignore_eos": true, "stop_token_ids": [END]});
    check(&server, "x8", own, "9", "stop");
}
