//! Several sequences of one prompt, sampled or searched: they share its memory, and each is what
//! it would be without.

use crate::patience::wait_for;
use crate::prompts;
use crate::server_process::ServerProcess;
use crate::shared_server::{DEFAULT, PLAIN, TINY_POOL, TINY_POOL_TOKENS};
use libtest_mimic::Trial;
use serde_json::{Value, json};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        sampled_choices_are_the_same_with_and_without_sharing_and_memory,
        the_first_choice_is_the_one_that_a_request_for_one_gets,
        choices_share_the_full_blocks_of_their_prompt_and_copy_its_tail,
        beams_come_best_first_and_are_the_same_alone_and_in_company,
        choices_and_beams_that_do_not_fit_the_context_are_refused_like_others,
        choices_and_beams_end_with_the_context,
    ]
}

/// A prompt that ends inside a block of 16.
const PROMPT_LENGTH: u64 = 90;

fn sampled(seed: u64, n: u32) -> Value {
    json!({
        "prompt": prompts::tokens(30 + seed, PROMPT_LENGTH), "n": n, "temperature": 0.8,
        "seed": seed, "max_tokens": 20, "logprobs": 1, "ignore_eos": true,
    })
}

fn searched(prompt: &str) -> Value {
    json!({
        "prompt": prompt, "use_beam_search": true, "n": 3, "best_of": 4, "temperature": 0,
        "max_tokens": 10, "logprobs": 0,
    })
}

/// Keeps a server busy while `measure` runs, and short of memory where the pool is tiny: others
/// that came first grow from three blocks each to seven.
fn in_company<T>(server: &ServerProcess, measure: impl FnOnce() -> T) -> T {
    let others: Vec<_> = (0..3)
        .map(|seed| {
            server.stream(&json!({
                "prompt": prompts::tokens(40 + seed, 40), "seed": seed, "ignore_eos": true,
                "max_tokens": 70,
            }))
        })
        .collect();
    let measured = measure();
    drop(others);
    measured
}

fn sampled_choices_are_the_same_with_and_without_sharing_and_memory() {
    let request = sampled(1, 4);
    let expected = PLAIN.get().complete(&request)["choices"].clone();
    let texts: Vec<_> = (0..4).map(|i| &expected[i]["text"]).collect();
    assert!((1..4).all(|i| !texts[..i].contains(&texts[i])), "{texts:?} must differ");
    let server = DEFAULT.get();
    let num_forks = server.metric("forked_sequences_total");
    assert_eq!(server.complete(&request)["choices"], expected);
    assert_eq!(server.metric("forked_sequences_total"), num_forks + 3);
    assert_eq!(server.complete(&request)["choices"], expected, "from a cached prompt");
    let tiny = TINY_POOL.get();
    let crowded = in_company(&tiny, || tiny.complete(&request));
    assert_eq!(crowded["choices"], expected, "in a pool that runs out");
    tiny.wait_until_idle();
}

fn the_first_choice_is_the_one_that_a_request_for_one_gets() {
    let server = DEFAULT.get();
    let several = server.complete(&sampled(2, 4));
    assert_eq!(several["choices"][0], server.complete(&sampled(2, 1))["choices"][0]);
}

fn choices_share_the_full_blocks_of_their_prompt_and_copy_its_tail() {
    const NUM_CHOICES: u32 = 4;
    let server = DEFAULT.get();
    let before = server.kv_map();
    let mut request = sampled(3, NUM_CHOICES);
    request["max_tokens"] = json!(400);
    let stream = server.stream(&request);
    let map = wait_for("all choices run", || {
        let map = server.kv_map();
        let sequences = map["sequences"].as_array().unwrap();
        let have_begun =
            sequences.iter().filter(|it| it["computed_tokens"].as_u64() > Some(PROMPT_LENGTH));
        (have_begun.count() == NUM_CHOICES as usize).then_some(map)
    });
    let shared = map["shared_blocks"].as_array().unwrap();
    assert_eq!(shared.len() as u64, PROMPT_LENGTH / 16, "{map}");
    assert!(shared.iter().all(|block| block["ref_count"] == NUM_CHOICES), "{shared:?}");
    let copied = |map: &Value| map["prefix_cache"]["copied_blocks"].as_u64().unwrap();
    // The last one to write has the original for itself.
    assert_eq!(copied(&map) - copied(&before), u64::from(NUM_CHOICES) - 1);
    drop(stream);
    server.wait_until_idle();
}

/// Returns the score that ranks a choice: the mean log probability of its tokens.
fn score(choice: &Value) -> f64 {
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    logprobs.iter().map(|it| it.as_f64().unwrap()).sum::<f64>() / logprobs.len() as f64
}

fn beams_come_best_first_and_are_the_same_alone_and_in_company() {
    let requests: Vec<Value> =
        ["The old sailor looked at the", "In the morning the baker", "My sister's garden is"]
            .map(searched)
            .into();
    let judge = PLAIN.get();
    let expected: Vec<Value> =
        requests.iter().map(|request| judge.complete(request)["choices"].clone()).collect();
    for choices in &expected {
        let choices = choices.as_array().unwrap();
        let indices: Vec<_> = choices.iter().map(|choice| choice["index"].as_u64()).collect();
        assert_eq!(indices, [Some(0), Some(1), Some(2)]);
        let scores: Vec<f64> = choices.iter().map(score).collect();
        // Log probabilities come rounded.
        assert!(scores.is_sorted_by(|better, worse| better + 1e-4 >= *worse), "{scores:?}");
        let texts: Vec<_> = choices.iter().map(|choice| &choice["text"]).collect();
        assert!((1..3).all(|i| !texts[..i].contains(&texts[i])), "{texts:?} must differ");
    }
    let (server, tiny) = (DEFAULT.get(), TINY_POOL.get());
    for (name, server) in [("default", &server), ("tiny pool", &tiny)] {
        let found = in_company(server, || server.complete_together(&requests));
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(&found["choices"], expected, "{name}");
        }
        server.wait_until_idle();
    }
}

fn choices_and_beams_that_do_not_fit_the_context_are_refused_like_others() {
    let server = TINY_POOL.get();
    let limit = TINY_POOL_TOKENS as usize;
    let kinds = [
        json!({}),
        json!({"n": 3}),
        json!({"best_of": 3}),
        json!({"use_beam_search": true, "best_of": 3}),
        json!({"n": 3, "cache_prompt": false, "cache_salt": "a"}),
        json!({"n": 2, "stream": true}),
    ];
    for (length, max_tokens) in [(limit, 1), (limit - 8, 9)] {
        let refuse = |kind: &Value| {
            let mut body = json!({"prompt": vec![5; length], "max_tokens": max_tokens});
            body.as_object_mut().unwrap().extend(kind.as_object().unwrap().clone());
            let response = server.post("/v1/completions", &body);
            let expected = (400, "context_length_exceeded".to_owned(), "prompt".to_owned());
            assert_eq!(response.error(), expected, "{kind}");
            response.json()["error"].clone()
        };
        let errors: Vec<Value> = kinds.iter().map(refuse).collect();
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    }
    server.wait_until_idle();
}

fn choices_and_beams_end_with_the_context() {
    let server = TINY_POOL.get();
    let num_output = 12;
    let length = u64::from(TINY_POOL_TOKENS) - num_output;
    let kinds = [
        json!({"n": 2, "temperature": 1, "seed": 5}),
        json!({"n": 2, "use_beam_search": true}),
        json!({"n": 1, "use_beam_search": true, "best_of": 3}),
    ];
    for kind in kinds {
        let mut body = json!({
            "prompt": prompts::tokens(50, length), "max_tokens": num_output, "ignore_eos": true,
        });
        body.as_object_mut().unwrap().extend(kind.as_object().unwrap().clone());
        let response = server.complete(&body);
        let choices = response["choices"].as_array().unwrap();
        assert!(choices.iter().all(|choice| choice["finish_reason"] == "length"), "{response}");
        let usage = &response["usage"];
        assert_eq!(usage["prompt_tokens"], length, "nothing is cut");
        assert_eq!(usage["completion_tokens"], choices.len() as u64 * num_output);
        server.wait_until_idle();
    }
}
