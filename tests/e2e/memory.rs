//! KV memory as `/metrics` and `info` show it.

use crate::binary::{self, MODEL};
use crate::server_process::ServerProcess;
use crate::shared_server::{DEFAULT, NARROW, NARROW_FLAGS, TINY_POOL, TINY_POOL_TOKENS};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::fs;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = trials![
        info_prints_the_plan_that_serve_allocates,
        the_pool_is_no_larger_than_its_limits_can_use,
        prompts_of_ten_pools_all_succeed_and_blocks_add_up,
        counters_equal_the_usage_that_clients_saw,
    ];
    if cfg!(target_os = "linux") {
        trials.extend(trials![resident_memory_follows_use_and_not_the_pool]);
    }
    trials
}

/// Tokens of a block unless `--block-size` says otherwise.
const BLOCK_SIZE: u64 = 16;

fn info_prints_the_plan_that_serve_allocates() {
    let server = NARROW.get();
    let info = binary::stdout_of(&[&["info", "--model", MODEL], NARROW_FLAGS].concat());
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

/// Returns the bytes of a process that lie in memory, as Linux tells; without mapped files, which
/// take memory only as long as nobody needs it.
fn resident_bytes(server: &ServerProcess) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

fn resident_memory_follows_use_and_not_the_pool() {
    const MIB: u64 = 1 << 20;
    // 2 x 30 layers x 3 heads x 64 dimensions x 2 bytes.
    const TOKEN_BYTES: u64 = 2 * 30 * 3 * 64 * 2;
    const NUM_TOKENS: u64 = 2000;
    let server = ServerProcess::start(&["--kv-cache-memory", "2GiB"]);
    let pool_bytes = server.metric("kv_pool_blocks") * BLOCK_SIZE * TOKEN_BYTES;
    assert!(pool_bytes > 2000 * MIB, "{pool_bytes}");
    let before = resident_bytes(&server);
    assert!(before < 600 * MIB, "{before} bytes before the first request");
    let prompt: Vec<u64> = (0..NUM_TOKENS).map(|i| 1000 + i).collect();
    server.complete(&json!({"prompt": prompt, "max_tokens": 1}));
    let grown = resident_bytes(&server).saturating_sub(before);
    let used = NUM_TOKENS * TOKEN_BYTES;
    assert!((used..used + 200 * MIB).contains(&grown), "{grown} bytes for {used} of KV");
}
