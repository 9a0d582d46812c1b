//! Choices that are picked out of more, and beam search.

use crate::client::{Connection, post};
use crate::harness::{Setup, TestServer, error_of, wait_until};
use crate::script::Gate;
use mini_infer_engine::EngineConfig;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

fn answer(server: &TestServer, body: &Value) -> Value {
    let response = post(server.address, COMPLETIONS, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn texts(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().unwrap();
    let indexes = choices.iter().map(|choice| choice["index"].as_u64().unwrap());
    assert!(indexes.eq(0..choices.len() as u64), "{answer}");
    choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect()
}

/// Returns the body of a search for the likeliest continuation.
fn beams(prompt: &str, n: u32, best_of: u32) -> Value {
    json!({
        "prompt": prompt, "max_tokens": 9, "n": n, "best_of": best_of, "use_beam_search": true,
    })
}

#[test]
fn best_of_returns_the_samples_with_the_highest_log_probability_per_token() {
    let server = TestServer::start(Setup::default());
    let sampled = |n: u32, best_of: u32, seed: u32| {
        let body = json!({
            "prompt": "?", "max_tokens": 9, "n": n, "best_of": best_of, "seed": seed,
        });
        answer(&server, &body)
    };
    // Of 8 samples, `BG` at 0.4 is hardly ever absent, and likelier than each of 0.6 * 0.25.
    let all = sampled(8, 8, 3);
    let num_likely = texts(&all).iter().filter(|text| **text == "BG").count();
    assert!((1..8).contains(&num_likely), "{all}");
    let best = sampled(3, 8, 3);
    assert_eq!(texts(&best).iter().filter(|text| **text == "BG").count(), num_likely.min(3));
    assert_eq!(texts(&best)[0], "BG");
    assert!(best["choices"][0]["logprobs"].is_null(), "nobody asked for them");
    server.wait_until_idle();
}

#[test]
fn hidden_samples_are_counted_as_output() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": ["?", "x7"], "max_tokens": 9, "best_of": 5, "n": 2, "logprobs": 1});
    let json = answer(&server, &body);
    assert_eq!(texts(&json).len(), 4);
    assert_eq!(&texts(&json)[2..], ["89", "89"]);
    assert_eq!(json["choices"][2]["logprobs"]["tokens"], json!(["8", "9"]));
    // Each sample has three tokens, the end among them.
    assert_eq!(json["usage"]["completion_tokens"], 5 * 3 + 5 * 3);
    assert_eq!(json["usage"]["prompt_tokens"], 1 + 2);
    assert_eq!(server.metric("mini_infer_tokens_total{kind=\"output\"}"), 30);
}

#[test]
fn samples_are_ranked_up_to_their_stop_string() {
    let server = TestServer::start(Setup::default());
    let body = json!({
        "prompt": "%", "max_tokens": 9, "best_of": 12, "n": 12, "stop": "L", "seed": 5,
    });
    let all = answer(&server, &body);
    assert!(texts(&all).contains(&"J") && texts(&all).contains(&"K"), "{all}");
    // `J` and the end, or `K` and `L`: two tokens each, of which the first decides.
    let best = answer(
        &server,
        &json!({
            "prompt": "%", "max_tokens": 9, "best_of": 12, "n": 1, "stop": "L", "seed": 5,
        }),
    );
    assert_eq!(texts(&best), ["J"]);
}

#[test]
fn a_beam_search_finds_what_the_greedy_choice_misses() {
    let server = TestServer::start(Setup::default());
    let greedy = json!({"prompt": "?", "max_tokens": 9, "temperature": 0});
    assert_eq!(texts(&answer(&server, &greedy)), ["AC"]);
    let json = answer(&server, &beams("?", 1, 2));
    assert_eq!(texts(&json), ["BG"]);
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    let json = answer(&server, &beams("?", 3, 4));
    assert_eq!(texts(&json), ["BG", "AC", "AD"]);
    let one_beam = answer(&server, &beams("?", 1, 1));
    assert_eq!(texts(&one_beam), ["AC"]);
    server.wait_until_idle();
}

#[test]
fn the_length_penalty_decides_between_short_and_long() {
    let server = TestServer::start(Setup::default());
    let likeliest = |length_penalty: f64| {
        let mut body = beams("%", 1, 2);
        body["length_penalty"] = json!(length_penalty);
        texts(&answer(&server, &body))[0].to_owned()
    };
    assert_eq!(likeliest(0.0), "J");
    assert_eq!(likeliest(1.0), "KLMN");
}

#[test]
fn beams_are_counted_by_what_is_returned() {
    let server = TestServer::start(Setup::default());
    let mut body = beams("?", 2, 3);
    body["logprobs"] = json!(1);
    body["temperature"] = json!(0);
    let json = answer(&server, &body);
    assert_eq!(json["usage"]["completion_tokens"], 3 + 3);
    assert_eq!(json["usage"]["prompt_tokens"], 1);
    let logprobs = &json["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["B", "G"]));
    let first = logprobs["token_logprobs"][0].as_f64().unwrap();
    assert!((first - 0.4_f64.ln()).abs() < 1e-6, "{logprobs}");
    assert_eq!(server.metric("mini_infer_tokens_total{kind=\"output\"}"), 6);
}

#[test]
fn beams_of_several_prompts_keep_their_order() {
    let server = TestServer::start(Setup::default());
    let mut body = beams("", 2, 4);
    body["prompt"] = json!(["?", "x7", "%"]);
    let json = answer(&server, &body);
    assert_eq!(texts(&json)[0], "BG");
    assert_eq!(texts(&json)[2], "89");
    assert_eq!(texts(&json)[4], "KLMN");
    assert_eq!(texts(&json).len(), 6);
}

#[test]
fn a_beam_search_may_end_with_more_tokens_than_a_client_may_fall_behind() {
    let engine = EngineConfig { max_model_len: 8192, num_blocks: 2048, ..Setup::default().engine };
    let server = TestServer::start(Setup { engine, ..Setup::default() });
    let mut body = beams("a", 2, 2);
    body["max_tokens"] = json!(3000);
    body["ignore_eos"] = json!(true);
    let json = answer(&server, &body);
    assert_eq!(json["usage"]["completion_tokens"], 6000);
    assert_eq!(json["choices"][1]["finish_reason"], "length");
    server.wait_until_idle();
}

#[test]
fn a_client_that_leaves_a_search_frees_its_blocks() {
    for extra in [json!({"use_beam_search": true}), json!({"best_of": 4})] {
        let server = TestServer::start(Setup { gate: Gate::new(3), ..Setup::default() });
        let mut body = json!({"prompt": "?", "max_tokens": 200, "ignore_eos": true, "n": 3});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let connection = Connection::post(server.address, COMPLETIONS, &body.to_string());
        wait_until("the search runs", || server.metric("mini_infer_running_sequences") >= 3);
        drop(connection);
        wait_until("it is aborted", || {
            server.gate.pass(1);
            server.metric("mini_infer_finished_sequences_total{reason=\"abort\"}") > 0
        });
        server.gate.open();
        server.wait_until_idle();
        server.check_alive();
    }
}

#[test]
fn an_engine_failure_in_a_search_is_an_error_and_not_a_choice() {
    let server = TestServer::start(Setup { num_good_steps: 2, ..Setup::default() });
    let response = post(server.address, COMPLETIONS, &beams("?", 2, 2).to_string());
    assert_eq!(response.status, 500, "{}", response.body);
    assert!(response.body.contains("the script says so"), "{}", response.body);
}

#[test]
fn a_search_that_is_wider_than_what_runs_side_by_side_is_refused_by_the_field_that_makes_it_so() {
    let server = TestServer::start(Setup::default());
    let refused = |fields: Value, param: &str| {
        let mut body = json!({"prompt": "?", "use_beam_search": true, "max_tokens": 1});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let response = post(server.address, COMPLETIONS, &body.to_string());
        assert_eq!(response.status, 400, "{}", response.body);
        assert_eq!(error_of(&response).0, param);
        assert!(response.body.contains("at most 8 beams"), "{}", response.body);
    };
    refused(json!({"n": 9}), "n");
    refused(json!({"n": 2, "best_of": 9}), "best_of");
    // More samples than run side by side wait for their turn.
    for fields in [json!({"n": 20}), json!({"n": 2, "best_of": 20})] {
        let mut body = json!({"prompt": "?", "max_tokens": 1});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(json!(texts(&answer(&server, &body)).len()), fields["n"]);
    }
    server.wait_until_idle();
}
