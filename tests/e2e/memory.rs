//! KV memory as `/metrics` and `info` show it.

use crate::binary::{self, MODEL};
use crate::server_process::ServerProcess;
use crate::shared_server::{
    DEFAULT, INT8_POOL, INT8_POOL_FLAGS, NARROW, NARROW_FLAGS, TINY_POOL, TINY_POOL_TOKENS,
};
use libtest_mimic::Trial;
use serde_json::{Value, json};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        info_prints_the_plan_that_serve_allocates,
        the_pool_is_no_larger_than_its_limits_can_use,
        prompts_of_ten_pools_all_succeed_and_blocks_add_up,
        counters_equal_the_usage_that_clients_saw,
    ]
}

/// Tokens of a block unless `--block-size` says otherwise.
const BLOCK_SIZE: u64 = 16;

fn info_prints_the_plan_that_serve_allocates() {
    check_plan(&NARROW.get(), NARROW_FLAGS);
    check_plan(&INT8_POOL.get(), INT8_POOL_FLAGS);
}

/// Checks that `info` plans what a server with the same flags has.
fn check_plan(server: &ServerProcess, flags: &[&str]) {
    let info = binary::stdout_of(&[&["info", "--model", MODEL], flags].concat());
    for label in ["model ", "weights ", "KV per token ", "KV pool ", "tokens at once ", "longest "]
    {
        let planned = info.lines().find(|line| line.starts_with(label));
        assert!(planned.is_some(), "no {label}in\n{info}");
        let announced = server.announcement.iter().find(|line| line.starts_with(label));
        assert_eq!(planned, announced.map(String::as_str));
    }
    let num_blocks = server.metric("kv_pool_blocks");
    assert!(info.contains(&format!("= {num_blocks} blocks x {BLOCK_SIZE} tokens")), "{info}");
    for label in ["cores ", "instruction set ", "memory "] {
        assert!(info.lines().any(|line| line.starts_with(label)), "no {label}in\n{info}");
    }
}

fn the_pool_is_no_larger_than_its_limits_can_use() {
    let server = NARROW.get();
    let models = server.get("/v1/models").ok();
    let max_model_len = models["data"][0]["max_model_len"].as_u64().unwrap();
    assert_eq!(max_model_len, 4096);
    assert_eq!(server.metric("kv_pool_blocks") * BLOCK_SIZE, max_model_len);
}

fn prompts_of_ten_pools_all_succeed_and_blocks_add_up() {
    let server = TINY_POOL.get();
    let prompt_length = TINY_POOL_TOKENS / 3;
    for i in 0..10 * 3 {
        let prompt: Vec<u32> = (0..prompt_length).map(|k| 1000 + 400 * i + k).collect();
        let response = server.complete(&json!({"prompt": prompt, "max_tokens": 1}));
        assert_eq!(response["usage"]["prompt_tokens"], prompt_length);
        server.wait_until_idle();
    }
}

fn counters_equal_the_usage_that_clients_saw() {
    let server = DEFAULT.get();
    let read = |server: &ServerProcess| {
        let names = [
            "tokens_total{kind=\"prompt\"}",
            "tokens_total{kind=\"output\"}",
            "finished_sequences_total{reason=\"length\"}",
        ];
        server.wait_until_idle();
        names.map(|name| server.metric(name))
    };
    let before = read(&server);
    let requests = [
        json!({"prompt": "The sun rises in the east and", "max_tokens": 5, "ignore_eos": true}),
        json!({"prompt": vec![7; 40], "max_tokens": 7, "n": 3, "ignore_eos": true}),
        json!({"prompt": vec![7; 40], "max_tokens": 1, "ignore_eos": true}),
        json!({"prompt": ["One", "Two"], "max_tokens": 3, "ignore_eos": true}),
    ];
    let usages: Vec<Value> =
        requests.iter().map(|request| server.complete(request)["usage"].clone()).collect();
    let sum = |field: &str| usages.iter().map(|usage| usage[field].as_u64().unwrap()).sum::<u64>();
    let after = read(&server);
    let expected = [sum("prompt_tokens"), sum("completion_tokens"), 1 + 3 + 1 + 2];
    let counted: Vec<u64> =
        after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(counted, expected, "prompt tokens, output tokens, sequences");
}
