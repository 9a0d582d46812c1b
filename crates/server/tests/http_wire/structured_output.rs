//! Constrained outputs over HTTP: every field, streams, and what is refused.
//!
//! The scripted model finds one token certain; where the constraint rules it out, all others are
//! equally unlikely, so greedy choices are those with the lowest id.

use crate::client::post;
use crate::harness::{Setup, TestServer, error_of};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat(fields: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 150,
    });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn content(server: &TestServer, fields: Value) -> String {
    let response = post(server.address, CHAT, &chat(fields).to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    let choice = response.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    choice["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn every_field_constrains_the_output() {
    let server = TestServer::start(Setup::default());
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 5}},
        "required": ["a"],
        "additionalProperties": false,
    });
    let format = json!({"name": "x", "strict": true, "schema": schema});
    let json_fields = [
        json!({"response_format": {"type": "json_schema", "json_schema": format}}),
        json!({"response_format": {"type": "json_object", "schema": schema}}),
        json!({"guided_json": schema}),
        json!({"guided_json": schema.to_string()}),
        json!({"structured_outputs": {"json": schema}}),
    ];
    for fields in json_fields {
        let text = content(&server, fields);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!((3..=5).contains(&value["a"].as_i64().unwrap()), "{text}");
    }
    assert_eq!(content(&server, json!({"guided_regex": "[7-9]{2}x"})), "78x");
    assert_eq!(content(&server, json!({"structured_outputs": {"regex": "q+r"}})).pop(), Some('r'));
    assert_eq!(content(&server, json!({"guided_choice": ["no", "yes"]})), "no");
    assert_eq!(content(&server, json!({"structured_outputs": {"choice": ["é", "ü"]}})), "é");
    assert_eq!(content(&server, json!({"grammar": "root ::= \"<\" [5-6] \">\""})), "<5>");
    assert_eq!(content(&server, json!({"guided_grammar": "start: \"x\" /[0-9]/"})), "x0");
    assert_eq!(content(&server, json!({"structured_outputs": {"grammar": "start: \"k\""}})), "k");
    let free = json!({"response_format": {"type": "text"}, "max_tokens": 3});
    let response = post(server.address, CHAT, &chat(free).to_string());
    assert_eq!(response.json()["choices"][0]["message"]["content"], "abc");
    let body = json!({"prompt": "a", "guided_choice": ["zz"], "max_tokens": 9});
    let response = post(server.address, COMPLETIONS, &body.to_string());
    assert_eq!(response.json()["choices"][0]["text"], "zz");
    server.wait_until_idle();
}

#[test]
fn a_stream_and_every_choice_say_what_one_response_says() {
    let server = TestServer::start(Setup::default());
    let fields = json!({"guided_regex": "(ab|cd){3}[0-9]", "n": 3, "temperature": 1, "seed": 5});
    let whole = post(server.address, CHAT, &chat(fields.clone()).to_string()).json();
    let texts: Vec<&str> = (0..3)
        .map(|index| whole["choices"][index]["message"]["content"].as_str().unwrap())
        .collect();
    let mut streamed = vec![String::new(); 3];
    let mut body = chat(fields);
    body["stream"] = json!(true);
    for chunk in post(server.address, CHAT, &body.to_string()).chunks() {
        let choice = &chunk["choices"][0];
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        streamed[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
    }
    assert_eq!(streamed, texts);
    assert!(texts.iter().all(|text| text.len() == 7), "{texts:?}");
}

#[test]
fn log_probabilities_under_a_grammar_are_finite() {
    let server = TestServer::start(Setup::default());
    let body = chat(json!({
        "guided_regex": "[0-9]{4}", "logprobs": true, "top_logprobs": 20, "top_k": 1,
    }));
    let response = post(server.address, CHAT, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    let json = response.json();
    let tokens = json["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 4);
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 20);
        for logprob in top.iter().chain([token]) {
            assert!((-9999.0..=0.0).contains(&logprob["logprob"].as_f64().unwrap()), "{logprob}");
        }
    }
}

#[test]
fn json_that_is_cut_has_the_finish_reason_length() {
    let server = TestServer::start(Setup::default());
    let body = chat(json!({"guided_regex": "[0-9]{40}", "max_tokens": 7}));
    let json = post(server.address, CHAT, &body.to_string()).json();
    let choice = &json["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["content"], "0123456");
}

#[test]
fn ignored_end_tokens_do_not_outlast_the_grammar() {
    let server = TestServer::start(Setup::default());
    assert_eq!(content(&server, json!({"guided_choice": ["x"], "ignore_eos": true})), "x");
}

#[test]
fn what_cannot_be_compiled_is_refused_and_names_its_place() {
    let server = TestServer::start(Setup::default());
    let refused = |fields: Value, expected: &str| {
        let response = post(server.address, CHAT, &chat(fields.clone()).to_string());
        assert_eq!(response.status, 400, "{fields}: {}", response.body);
        let (param, code) = error_of(&response);
        assert_eq!((param.as_str(), code.as_str()), (expected, "invalid_value"), "{fields}");
    };
    let object = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
    let pattern = object(json!({"type": "string", "pattern": "(a"}));
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": pattern}});
    let param = "response_format.json_schema.schema.properties.a.pattern";
    refused(json!({"response_format": format}), param);
    let not = object(json!({"not": {}}));
    refused(json!({"guided_json": not}), "guided_json.properties.a.not");
    refused(
        json!({"structured_outputs": {"json": not}}),
        "structured_outputs.json.properties.a.not",
    );
    refused(json!({"guided_regex": "("}), "guided_regex");
    refused(json!({"guided_choice": ["a", ""]}), "guided_choice[1]");
    refused(json!({"guided_choice": []}), "guided_choice");
    refused(json!({"grammar": "root ::= missing"}), "grammar");
    refused(json!({"guided_grammar": "start: missing"}), "guided_grammar");
    refused(json!({"guided_regex": "a", "grammar": "root ::= \"a\""}), "grammar");
    let body = json!({"prompt": "a", "guided_regex": "a", "use_beam_search": true, "best_of": 2});
    let response = post(server.address, COMPLETIONS, &body.to_string());
    assert_eq!((response.status, error_of(&response).0.as_str()), (400, "guided_regex"));
    server.check_alive();
}

#[test]
fn unconstrained_neighbours_get_what_they_get_alone() {
    let server = TestServer::start(Setup::default());
    let free = json!({"prompt": "b?", "max_tokens": 40, "temperature": 1, "seed": 3, "n": 2});
    let alone = post(server.address, COMPLETIONS, &free.to_string()).json()["choices"].clone();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let body = chat(json!({"guided_regex": format!("[0-9]{{20}}{i}")}));
            let address = server.address;
            scope.spawn(move || post(address, CHAT, &body.to_string()).status);
        }
        let beside = post(server.address, COMPLETIONS, &free.to_string()).json();
        assert_eq!(beside["choices"], alone);
    });
}
