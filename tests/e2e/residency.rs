//! Resident memory: it grows with use, never past the cap, and comes back when a server is idle.
//!
//! Only Linux tells what of a process lies in memory.

use crate::patience::wait_for;
use crate::prompts;
use crate::server_process::ServerProcess;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::thread;

pub(crate) fn trials() -> Vec<Trial> {
    if !cfg!(target_os = "linux") {
        return Vec::new();
    }
    trials![
        loading_takes_little_more_than_what_stays,
        memory_follows_use_and_comes_back_when_idle,
        a_full_pool_takes_its_cap_and_no_more,
        requests_leave_no_memory_behind,
    ]
}

const MIB: u64 = 1 << 20;
/// 2 x 30 layers x 3 heads x 64 dimensions x 2 bytes.
const TOKEN_BYTES: u64 = 2 * 30 * 3 * 64 * 2;
const BLOCK_BYTES: u64 = 16 * TOKEN_BYTES;
/// What a server takes besides KV once it has computed a full chunk: activations and queues.
const WORKING_BYTES: u64 = 48 * MIB;

fn request(seed: u64, length: u64) -> Value {
    json!({"prompt": prompts::tokens(seed, length), "max_tokens": 2, "ignore_eos": true})
}

/// The checkpoint is given back while it is packed.
fn loading_takes_little_more_than_what_stays() {
    let server = ServerProcess::start(&[]);
    let (peak, stays) = (server.memory_bytes("VmHWM"), server.memory_bytes("VmRSS"));
    assert!(peak * 100 < stays * 115, "{peak} bytes at the peak, {stays} when ready");
    let mapped = server.memory_bytes("RssFile");
    assert!(mapped < 32 * MIB, "{mapped} bytes of files when ready");
}

fn memory_follows_use_and_comes_back_when_idle() {
    const NUM_TOKENS: u64 = 3 * 1000;
    let server = ServerProcess::start(&["--kv-cache-memory", "4GiB", "--kv-idle-release", "3s"]);
    let cap = server.kv_map()["capacity_bytes"].as_u64().unwrap();
    assert!((4090 * MIB..=4096 * MIB).contains(&cap), "{cap}");
    let little = cap / 100;
    let at_start = server.resident_bytes();
    assert!(at_start < 600 * MIB, "{at_start} bytes before the first request");
    server.complete(&request(300, 20));
    let grown = server.resident_bytes().saturating_sub(at_start);
    assert!(grown < little, "{grown} bytes for a short request");
    let requests: Vec<Value> = (301..304).map(|seed| request(seed, 1000)).collect();
    server.complete_together(&requests);
    let grown = server.resident_bytes().saturating_sub(at_start);
    let used = NUM_TOKENS * TOKEN_BYTES;
    assert!((used..used + WORKING_BYTES).contains(&grown), "{grown} bytes for {used} of KV");
    // The blocks used last stay, half a percent of the pool; what the model works with is no KV.
    let peak = server.resident_bytes();
    let kept = cap / 200;
    let lowest = peak - (used - kept) * 9 / 10;
    wait_for("the return of the memory", || {
        let cached = server.kv_map()["blocks"]["cached"].as_u64().unwrap();
        (cached * BLOCK_BYTES <= kept && server.resident_bytes() <= lowest).then_some(())
    });
    assert_eq!(server.complete(&request(300, 20))["usage"]["completion_tokens"], 2);
}

fn a_full_pool_takes_its_cap_and_no_more() {
    const NUM_BLOCKS: u64 = 32;
    let server = ServerProcess::start(&["--num-blocks", "32", "--max-model-len", "512"]);
    let at_start = server.resident_bytes();
    let cap = server.kv_map()["capacity_bytes"].as_u64().unwrap();
    assert_eq!(cap, NUM_BLOCKS * BLOCK_BYTES);
    // Four times what the pool holds.
    let requests: Vec<Value> = (310..316).map(|seed| request(seed, 340)).collect();
    server.complete_together(&requests);
    let grown = server.resident_bytes().saturating_sub(at_start);
    assert!(grown < cap + WORKING_BYTES, "{grown} bytes, the cap is {cap}");
    server.wait_until_idle();
}

/// Sends requests of all kinds, some of them bad, from several clients at once.
fn send_many(server: &ServerProcess, first: u64, num_requests: u64) {
    const NUM_CLIENTS: usize = 4;
    let send = move |i: u64| {
        let mut body = request(first + i, 8);
        let expected = if i % 5 == 4 { 400 } else { 200 };
        if expected == 400 {
            body["temperature"] = json!(9);
        }
        body["stream"] = json!(i.is_multiple_of(2));
        assert_eq!(server.post("/v1/completions", &body).status, expected);
    };
    thread::scope(|scope| {
        for client in 0..NUM_CLIENTS {
            let own = (0..num_requests).skip(client).step_by(NUM_CLIENTS);
            scope.spawn(move || own.for_each(send));
        }
    });
}

/// What a leak takes it takes in every round; a larger batch than any before, which chance brings,
/// takes some memory once.
fn requests_leave_no_memory_behind() {
    const NUM_REQUESTS: u64 = 200;
    const NUM_ROUNDS: u64 = 5;
    // A kilobyte each; the pool is all in use from the start.
    const SLACK_BYTES: u64 = NUM_REQUESTS * 1024;
    let server = ServerProcess::start(&["--num-blocks", "32", "--max-model-len", "128"]);
    let held = || server.memory_bytes("RssAnon") + server.memory_bytes("VmSwap");
    send_many(&server, 10_000, NUM_REQUESTS);
    let grown: Vec<u64> = (2..2 + NUM_ROUNDS)
        .map(|round| {
            let before = held();
            send_many(&server, round * 10_000, NUM_REQUESTS);
            held().saturating_sub(before)
        })
        .collect();
    let least = *grown.iter().min().expect("there are rounds");
    assert!(least < SLACK_BYTES, "{grown:?} bytes more after {NUM_REQUESTS} requests each");
}
