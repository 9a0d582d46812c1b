//! Fields that say what the prompt is, and whether it is part of the answer.

use crate::client::post;
use crate::harness::{Setup, TestServer};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn answer(server: &TestServer, path: &str, body: &Value) -> Value {
    let response = post(server.address, path, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// Asks for three tokens and returns them with the number of tokens before.
fn chat(server: &TestServer, fields: Value) -> (String, u64) {
    let messages = json!([
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "lm"},
    ]);
    let mut body = json!({"messages": messages, "max_tokens": 3});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let json = answer(server, CHAT, &body);
    let text = json["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    (text, json["usage"]["prompt_tokens"].as_u64().unwrap())
}

#[test]
fn a_chat_goes_on_where_it_is_told_to() {
    let server = TestServer::start(Setup::default());
    let (text, with_turn) = chat(&server, json!({}));
    assert_eq!(text, "abc");
    let (text, without_turn) = chat(&server, json!({"add_generation_prompt": false}));
    assert_eq!(text, "abc");
    // `<im_start>assistant\n`
    assert_eq!(with_turn - without_turn, 11);
    let (text, unfinished) = chat(&server, json!({"continue_final_message": true}));
    assert_eq!(text, "nop", "what follows `m`");
    // `<im_end>\n`
    assert_eq!(without_turn - unfinished, 2);
}

#[test]
fn variables_reach_the_template() {
    let server = TestServer::start(Setup::default());
    let (text, _) = chat(&server, json!({"chat_template_kwargs": {"ending": "x8"}}));
    assert_eq!(text, "9");
    let (text, _) = chat(&server, json!({"chat_template_kwargs": {"unknown": ["x8"]}}));
    assert_eq!(text, "abc");
}

#[test]
fn an_echo_comes_before_the_output_of_every_choice() {
    let server = TestServer::start(Setup::default());
    let texts = |fields: Value| -> Vec<String> {
        let mut body = json!({"echo": true, "max_tokens": 2});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let json = answer(&server, COMPLETIONS, &body);
        let choices = json["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts(json!({"prompt": "xyz"})), ["xyzab"]);
    assert_eq!(texts(json!({"prompt": [120, 121]})), ["xyza"]);
    assert_eq!(texts(json!({"prompt": ["a", "m"], "n": 2})), ["abc", "abc", "mno", "mno"]);
    let best = json!({"prompt": ["a", "m"], "n": 1, "best_of": 3});
    assert_eq!(texts(best), ["abc", "mno"]);
    assert_eq!(texts(json!({"prompt": "abc", "stop": "b"})), ["abcde"], "only the output ends");
    assert_eq!(texts(json!({"prompt": "a", "echo": false})), ["bc"]);
}

#[test]
fn a_suffix_makes_the_model_fill_the_middle() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": ["xy", "z"], "suffix": "8", "max_tokens": 2});
    let json = answer(&server, COMPLETIONS, &body);
    // What follows the mark of the middle, of which the script knows nothing.
    assert_eq!(
        (&json["choices"][0]["text"], &json["choices"][1]["text"]),
        (&json!("ab"), &json!("ab"))
    );
    // Three marks in each prompt.
    assert_eq!(json["usage"]["prompt_tokens"], (3 + 2 + 1) + (3 + 1 + 1));
    let body = json!({"prompt": "x8", "suffix": "", "max_tokens": 2});
    assert_eq!(answer(&server, COMPLETIONS, &body)["choices"][0]["text"], "9");
}

#[test]
fn a_stream_begins_with_the_echo() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": ["a", "m"], "echo": true, "max_tokens": 2, "stream": true});
    let response = post(server.address, COMPLETIONS, &body.to_string());
    let mut texts = [String::new(), String::new()];
    for chunk in response.chunks() {
        let choice = &chunk["choices"][0];
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        texts[index].push_str(choice["text"].as_str().unwrap());
    }
    assert_eq!(texts, ["abc", "mno"]);
}
