//! The prefix cache: how much of a prompt is found, by whom, and that it changes no answer.

use crate::prompts;
use crate::server_process::ServerProcess;
use crate::shared_server::{DEFAULT, PLAIN};
use libtest_mimic::Trial;
use serde_json::{Value, json};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        an_edited_prompt_is_found_up_to_the_edited_token,
        a_longer_prompt_is_found_with_the_answer_that_it_continues,
        a_chat_finds_all_earlier_turns_and_a_regenerated_answer_the_whole_prompt,
        prompts_in_turn_get_their_own_answers_every_round,
        equal_salts_share_and_a_salt_that_is_a_models_name_does_not,
        a_server_or_a_request_without_prefix_caching_finds_nothing,
    ]
}

/// Returns how many prompt tokens were found.
pub(crate) fn cached_tokens(response: &Value) -> u64 {
    let details = &response["usage"]["prompt_tokens_details"];
    details["cached_tokens"].as_u64().unwrap_or_else(|| panic!("{response}"))
}

/// Completes a prompt of token ids with few tokens and their log probabilities.
pub(crate) fn short_answer(server: &ServerProcess, prompt: &[u32]) -> Value {
    server.complete(&json!({
        "prompt": prompt, "temperature": 0, "max_tokens": 4, "logprobs": 2, "ignore_eos": true,
    }))
}

fn an_edited_prompt_is_found_up_to_the_edited_token() {
    const LENGTH: u64 = 100;
    let (server, judge) = (DEFAULT.get(), PLAIN.get());
    let original = prompts::tokens(1, LENGTH);
    assert_eq!(cached_tokens(&short_answer(&server, &original)), 0);
    assert_eq!(cached_tokens(&short_answer(&server, &original)), LENGTH - 1);
    // Beside the borders of blocks of 16, and inside blocks.
    for edited in [1, 15, 16, 17, 40, 63, 64, 98, 99] {
        let mut prompt = original.clone();
        prompt[edited] = 999;
        let response = short_answer(&server, &prompt);
        assert_eq!(cached_tokens(&response), edited as u64, "token {edited} was edited");
        assert_eq!(response["choices"], short_answer(&judge, &prompt)["choices"], "{edited}");
    }
    let again = short_answer(&server, &original);
    assert_eq!(cached_tokens(&again), LENGTH - 1, "no edit has spoilt the original");
    assert_eq!(again["choices"], short_answer(&judge, &original)["choices"]);
}

fn a_longer_prompt_is_found_with_the_answer_that_it_continues() {
    let (server, judge) = (DEFAULT.get(), PLAIN.get());
    let text = "The gardener counted the seeds: one, two, three,";
    let asked = json!({"prompt": text, "temperature": 0, "max_tokens": 12, "logprobs": 0});
    let first = server.complete(&asked);
    let answer = first["choices"][0]["text"].as_str().unwrap();
    let longer = json!({
        "prompt": format!("{text}{answer} and then he"), "temperature": 0, "max_tokens": 4,
        "logprobs": 2,
    });
    let second = server.complete(&longer);
    // The answer's last token was never an input, so its KV does not exist.
    let known = first["usage"]["total_tokens"].as_u64().unwrap() - 1;
    assert_eq!(cached_tokens(&second), known, "{first} {second}");
    assert_eq!(second["choices"], judge.complete(&longer)["choices"]);
}

fn a_chat_finds_all_earlier_turns_and_a_regenerated_answer_the_whole_prompt() {
    let server = DEFAULT.get();
    let mut messages = vec![json!({"role": "system", "content": "You answer in one sentence."})];
    let mut computed = 0;
    for question in ["What is a lighthouse?", "Who works in it?", "Is it tall?"] {
        messages.push(json!({"role": "user", "content": question}));
        let body = json!({"messages": messages, "temperature": 0, "max_tokens": 40});
        let [answered, regenerated] =
            [(); 2].map(|()| server.post("/v1/chat/completions", &body).ok());
        let prompt_tokens = answered["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(cached_tokens(&answered) >= computed, "{computed} were computed: {answered}");
        assert_eq!(cached_tokens(&regenerated), prompt_tokens - 1);
        assert_eq!(answered["choices"], regenerated["choices"]);
        // What an answer's text becomes in the next prompt is the tokenizer's business, the
        // prompt before it is the same tokens again.
        computed = prompt_tokens;
        messages.push(answered["choices"][0]["message"].clone());
    }
}

fn prompts_in_turn_get_their_own_answers_every_round() {
    const NUM_ROUNDS: usize = 5;
    let (server, judge) = (DEFAULT.get(), PLAIN.get());
    let places = ["harbour", "mill", "forest", "station", "market"];
    let prompts: Vec<Value> = (0..20)
        .map(|i| {
            let prompt = format!("Letter {}. Today I went to the {}", i / 5, places[i % 5]);
            json!({"prompt": prompt, "temperature": 0, "max_tokens": 4, "logprobs": 1})
        })
        .collect();
    let expected: Vec<Value> = prompts.iter().map(|prompt| judge.complete(prompt)).collect();
    for round in 0..NUM_ROUNDS {
        for (prompt, expected) in prompts.iter().zip(&expected) {
            let found = server.complete(prompt);
            assert_eq!(found["choices"], expected["choices"], "round {round}: {prompt}");
        }
    }
}

fn equal_salts_share_and_a_salt_that_is_a_models_name_does_not() {
    const LENGTH: u64 = 50;
    let server = DEFAULT.get();
    let prompt = prompts::tokens(2, LENGTH);
    let found = |salt: Value| {
        let body = json!({
            "model": "smollm2-135m", "prompt": prompt, "max_tokens": 1, "cache_salt": salt,
        });
        cached_tokens(&server.complete(&body))
    };
    let whole = LENGTH - 1;
    assert_eq!(found(Value::Null), 0);
    for salt in ["smollm2-135m", "q4_1", "another", "ANOTHER"] {
        assert_eq!(found(json!(salt)), 0, "{salt} meets no other");
        assert_eq!(found(json!(salt)), whole, "{salt} meets itself");
    }
    assert_eq!(found(Value::Null), whole);
}

fn a_server_or_a_request_without_prefix_caching_finds_nothing() {
    let prompt = prompts::tokens(3, 50);
    let body = json!({"prompt": prompt, "max_tokens": 1});
    let plain = PLAIN.get();
    let server = DEFAULT.get();
    let mut uncached = body.clone();
    uncached["cache_prompt"] = json!(false);
    for _ in 0..2 {
        assert_eq!(cached_tokens(&plain.complete(&body)), 0);
        assert_eq!(cached_tokens(&server.complete(&uncached)), 0);
    }
    assert_eq!(cached_tokens(&server.complete(&body)), 0, "nothing was left behind");
    assert_eq!(cached_tokens(&server.complete(&uncached)), 0, "nothing is looked up");
}
