//! A model whose layers see only the last tokens: blocks that slid out of sight are reused, and no
//! answer shows it.
//!
//! The models are the seeded tiny Gemma 3 and Mistral of the forward pass's tests, with a window of
//! 24 tokens in five of six layers and in all, and a context of 256, so that windows slide in every
//! answer. Their answers are noise, but exact noise.

use crate::checkpoint_folders;
use crate::prefix_cache::cached_tokens;
use crate::server_process::ServerProcess;
use libtest_mimic::Trial;
use mini_infer_core::mix64;
use serde_json::{Value, json};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_prompt_longer_than_the_window_gets_one_answer_four_times,
        each_turn_of_a_conversation_computes_its_new_tokens_only,
        answers_do_not_show_that_blocks_slid_out_of_sight,
        the_map_counts_the_memory_that_was_announced,
        a_model_of_windows_alone_keeps_what_its_windows_see,
    ]
}

/// The model's file.
pub(crate) const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tiny-gemma3/q8_0.gguf");
/// Tokens that the model knows, but for the unknown one.
const NUM_IDS: u64 = 95;
/// Prompt lengths below, at and far beyond the window.
const LENGTHS: [usize; 8] = [10, 23, 24, 25, 40, 41, 120, 230];

/// Returns a server that computes every prompt in full, a few tokens at a time.
fn judge() -> ServerProcess {
    let flags = ["--no-prefix-caching", "--threads", "1", "--max-num-batched-tokens", "64"];
    ServerProcess::start_with_model(MODEL, &flags)
}

/// Returns tokens of this model that follow from `seed`; seeds that differ by less than the number
/// of ids give no common prefix.
pub(crate) fn tokens(seed: u64, length: usize) -> Vec<u64> {
    let random = |i| mix64(mix64(seed).wrapping_add(i));
    (0..length as u64).map(|i| 1 + if i == 0 { seed } else { random(i) } % NUM_IDS).collect()
}

/// Returns a greedy request whose answer tells all that the model computed.
pub(crate) fn request(prompt: &[u64], max_tokens: u64) -> Value {
    json!({"prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "logprobs": 5})
}

fn a_prompt_longer_than_the_window_gets_one_answer_four_times() {
    let (server, judge) = (ServerProcess::start_with_model(MODEL, &[]), judge());
    for (seed, length) in (0..).zip(LENGTHS) {
        let request = request(&tokens(seed, length), 20);
        let expected = judge.complete(&request);
        for time in 0..4 {
            let found = server.complete(&request);
            assert_eq!(found["choices"], expected["choices"], "{length} tokens, time {time}");
            let cached = if time == 0 { 0 } else { length as u64 - 1 };
            assert_eq!(cached_tokens(&found), cached, "{length} tokens, time {time}");
        }
    }
}

fn each_turn_of_a_conversation_computes_its_new_tokens_only() {
    const NUM_NEW: u8 = 14;
    let (server, judge) = (ServerProcess::start_with_model(MODEL, &[]), judge());
    let mut text = String::new();
    let mut computed = 0;
    for turn in 0..6 {
        let said: String =
            (0..NUM_NEW).map(|i| char::from(b'a' + (turn * 7 + i * 5) % 26)).collect();
        text.push_str(&said);
        let body = json!({"prompt": text, "temperature": 0, "max_tokens": 20, "logprobs": 5});
        let response = server.complete(&body);
        assert_eq!(response["choices"], judge.complete(&body)["choices"], "turn {turn}");
        assert_eq!(cached_tokens(&response), computed, "turn {turn}: {response}");
        // The last token of an answer was never an input.
        computed = response["usage"]["total_tokens"].as_u64().unwrap() - 1;
        text.push_str(response["choices"][0]["text"].as_str().unwrap());
    }
}

fn answers_do_not_show_that_blocks_slid_out_of_sight() {
    let judge = judge();
    let requests: Vec<Value> = (0..40)
        .map(|i| {
            let common = tokens(100 + i % 3, 60);
            let own = tokens(200 + i, LENGTHS[usize::try_from(i).unwrap() % 7]);
            request(&[common, own].concat(), 10 + i)
        })
        .collect();
    let expected: Vec<Value> = requests.iter().map(|request| judge.complete(request)).collect();
    let pools: [&[&str]; 3] = [
        &["--num-blocks", "16", "--max-num-batched-tokens", "64"],
        &["--num-blocks", "40", "--block-size", "8"],
        &["--num-blocks", "16", "--swap-space", "100KiB"],
    ];
    for flags in pools {
        let server = ServerProcess::start_with_model(MODEL, flags);
        for round in 0..2 {
            let found = server.complete_together(&requests);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let context = format!("{flags:?}, round {round}, request {i}");
                assert_eq!(found["choices"], expected["choices"], "{context}");
            }
        }
        assert!(server.metric("kv_evicted_blocks_total") > 0, "{flags:?}: the pool must run out");
        server.wait_until_idle();
    }
}

fn the_map_counts_the_memory_that_was_announced() {
    let server = ServerProcess::start_with_model(MODEL, &["--num-blocks", "16"]);
    let map = server.kv_map();
    let announced = server.announcement.iter().find(|line| line.starts_with("KV pool ")).unwrap();
    assert!(announced.contains("16 blocks x 16 tokens"), "{announced}");
    assert_eq!(map["capacity_bytes"].as_u64().unwrap(), 16 * map["block_bytes"].as_u64().unwrap());
}

fn a_model_of_windows_alone_keeps_what_its_windows_see() {
    const MISTRAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tiny-mistral");
    let folder = checkpoint_folders::folder_of(MISTRAL, "folder-of-mistral");
    let model = folder.to_str().unwrap();
    let judge = ServerProcess::start_with_model(model, &["--no-prefix-caching", "--threads", "1"]);
    let requests: Vec<Value> = (0..24)
        .map(|i| {
            let common = tokens(100 + i % 3, 60);
            let own = tokens(200 + i, LENGTHS[usize::try_from(i).unwrap() % 7]);
            request(&[common, own].concat(), 10 + 2 * i)
        })
        .collect();
    let expected: Vec<Value> = requests.iter().map(|request| judge.complete(request)).collect();
    // Memory of 96 tokens, where each of 256 tokens would take three times as much.
    for flags in [&["--num-blocks", "6"][..], &["--num-blocks", "9", "--swap-space", "100KiB"]] {
        let server = ServerProcess::start_with_model(model, flags);
        let longest = server.announcement.iter().find(|line| line.starts_with("longest")).unwrap();
        assert!(longest.contains(" 256 tokens"), "{longest}");
        for round in 0..2 {
            let found = server.complete_together(&requests);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let context = format!("{flags:?}, round {round}, request {i}");
                assert_eq!(found["choices"], expected["choices"], "{context}");
            }
        }
        let whole = request(&tokens(50, 200), 40);
        let answer = judge.complete(&whole);
        for cached in [0, 199] {
            let found = server.complete(&whole);
            assert_eq!(found["choices"], answer["choices"], "{flags:?}");
            assert_eq!(cached_tokens(&found), cached, "{flags:?}");
        }
        let blocks = &server.kv_map()["blocks"];
        assert!(blocks["window_parts"].as_u64() <= blocks["total"].as_u64(), "{blocks}");
        server.wait_until_idle();
    }
}
