//! Output limits and the context: what ends a sequence, and what is refused instead of cut.

use crate::shared_server::{DEFAULT, TINY_POOL, TINY_POOL_TOKENS};
use libtest_mimic::Trial;
use serde_json::{Value, json};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_reached_cap_is_length_and_an_end_token_at_the_cap_is_stop,
        either_name_caps_the_output_and_the_smaller_one_counts,
        text_completions_end_after_16_tokens_by_default,
        without_a_cap_a_chat_ends_with_the_context,
        what_does_not_fit_the_context_is_refused_alike_on_every_route,
        a_refused_prompt_leaves_the_server_as_it_was,
    ]
}

fn a_reached_cap_is_length_and_an_end_token_at_the_cap_is_stop() {
    let server = DEFAULT.get();
    let question = "Name three colors.";
    let whole = server.ask(question, 60);
    assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{whole}");
    let num_tokens = u32::try_from(whole["usage"]["completion_tokens"].as_u64().unwrap()).unwrap();
    let reason =
        |max_tokens| server.ask(question, max_tokens)["choices"][0]["finish_reason"].clone();
    assert_eq!(reason(1), "length");
    assert_eq!(reason(num_tokens - 1), "length");
    assert_eq!(reason(num_tokens), "stop");
}

fn either_name_caps_the_output_and_the_smaller_one_counts() {
    let server = DEFAULT.get();
    let checks = [
        (json!({"max_tokens": 5}), 5),
        (json!({"max_completion_tokens": 6}), 6),
        (json!({"max_tokens": 9, "max_completion_tokens": 4}), 4),
        (json!({"max_tokens": 3, "max_completion_tokens": 9}), 3),
        (json!({"max_tokens": null, "max_completion_tokens": 2}), 2),
    ];
    for (caps, expected) in checks {
        let mut body = json!({
            "messages": [{"role": "user", "content": "Count to one hundred."}],
            "ignore_eos": true,
        });
        body.as_object_mut().unwrap().extend(caps.as_object().unwrap().clone());
        let response = server.post("/v1/chat/completions", &body).ok();
        assert_eq!(response["usage"]["completion_tokens"], expected, "{caps}");
        assert_eq!(response["choices"][0]["finish_reason"], "length");
    }
}

fn text_completions_end_after_16_tokens_by_default() {
    let server = DEFAULT.get();
    for max_tokens in [Value::Null, json!(16)] {
        let body = json!({"prompt": "Once", "ignore_eos": true, "max_tokens": max_tokens});
        assert_eq!(server.complete(&body)["usage"]["completion_tokens"], 16);
    }
}

fn without_a_cap_a_chat_ends_with_the_context() {
    let server = TINY_POOL.get();
    let body = json!({
        "messages": [{"role": "user", "content": "lighthouse ".repeat(270)}],
        "ignore_eos": true, "temperature": 0,
    });
    let response = server.post("/v1/chat/completions", &body).ok();
    assert_eq!(response["usage"]["total_tokens"], TINY_POOL_TOKENS);
    assert_eq!(response["choices"][0]["finish_reason"], "length");
    server.wait_until_idle();
}

fn what_does_not_fit_the_context_is_refused_alike_on_every_route() {
    let server = TINY_POOL.get();
    let limit = TINY_POOL_TOKENS as usize;
    let text = "word ".repeat(limit);
    let too_long = [
        ("/v1/completions", json!({"prompt": vec![5; limit]}), "prompt"),
        ("/v1/completions", json!({"prompt": vec![5; limit + 1], "max_tokens": 1}), "prompt"),
        ("/v1/completions", json!({"prompt": vec![5; limit - 8], "max_tokens": 9}), "prompt"),
        ("/v1/completions", json!({"prompt": "Hi", "max_tokens": limit}), "prompt"),
        ("/v1/completions", json!({"prompt": text.clone()}), "prompt"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
            "messages",
        ),
    ];
    for (path, mut body, param) in too_long {
        let whole = server.post(path, &body);
        body["stream"] = json!(true);
        let streamed = server.post(path, &body);
        assert_eq!(whole.status, streamed.status);
        assert_eq!(whole.json()["error"], streamed.json()["error"]);
        let expected = (400, "context_length_exceeded".to_owned(), param.to_owned());
        assert_eq!(whole.error(), expected);
        let message = whole.json()["error"]["message"].to_string();
        assert!(message.contains(&format!("{limit} tokens")), "{message}");
        if let Some(max_tokens) = body.get("max_tokens") {
            assert!(message.contains(&format!("max_tokens is {max_tokens}")), "{message}");
        }
        if let Some(prompt) = body["prompt"].as_array() {
            assert!(message.contains(&format!("the prompt has {}", prompt.len())), "{message}");
        }
    }
    let just_fits = json!({"prompt": vec![5; limit - 1], "max_tokens": 1});
    assert_eq!(server.complete(&just_fits)["usage"]["total_tokens"], limit);
}

fn a_refused_prompt_leaves_the_server_as_it_was() {
    let server = TINY_POOL.get();
    let huge = json!({"prompt": vec![5; 100_000]});
    let error = server.post("/v1/completions", &huge).error();
    assert_eq!(error, (400, "context_length_exceeded".to_owned(), "prompt".to_owned()));
    server.complete(&json!({"prompt": "Hi", "max_tokens": 2}));
    server.wait_until_idle();
}
