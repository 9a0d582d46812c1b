//! `GET /v1/kv`, and what `/metrics` says about the same memory.

use crate::client::{Connection, get, post};
use crate::harness::{Setup, TestServer, error_of, wait_until};
use crate::script::Gate;
use mini_infer_engine::EngineConfig;
use mini_infer_server::{KvDetails, ServerConfig, TierReport};
use serde_json::{Value, json};
use std::sync::Arc;

const COMPLETIONS: &str = "/v1/completions";
const KV: &str = "/v1/kv";
const RUNNING: &str = "mini_infer_running_sequences";

fn kv_map(server: &TestServer) -> Value {
    let response = get(server.address, KV);
    assert_eq!(response.status, 200, "{}", response.body);
    assert_eq!(response.header("content-type"), Some("application/json"));
    response.json()
}

/// A request that no test waits for.
fn endless_body(prompt: &str, n: u32) -> String {
    json!({"prompt": prompt, "max_tokens": 19_000, "ignore_eos": true, "n": n}).to_string()
}

/// A server that holds every step but the first, with room for endless requests.
fn held() -> Setup {
    let engine =
        EngineConfig { max_model_len: 20_000, num_blocks: 5_200, ..Setup::default().engine };
    Setup { engine, gate: Gate::new(1), ..Setup::default() }
}

#[test]
fn an_idle_server_has_an_empty_map() {
    let details = KvDetails { block_bytes: Some(1000), tiers: None };
    let server = TestServer::start(Setup { details, ..Setup::default() });
    let map = kv_map(&server);
    assert_eq!(map["object"], "kv");
    assert_eq!((&map["block_size"], &map["block_bytes"]), (&json!(16), &json!(1000)));
    assert_eq!(map["capacity_bytes"], 64_000);
    let blocks = json!({
        "total": 64, "free": 64, "active": 0, "cached": 0, "shared": 0, "window_parts": 0,
    });
    assert_eq!(map["blocks"], blocks);
    assert_eq!((&map["sequences"], &map["shared_blocks"]), (&json!([]), &json!([])));
    assert_eq!(map["waste"]["total"], json!({"slots": 0, "share": 0.0}));
    assert_eq!(map["prefix_cache"]["hit_rate"], 0.0);
    assert_eq!(map["tiers"], json!([]));
}

#[test]
fn the_map_shows_each_sequence_with_its_blocks() {
    let server = TestServer::start(held());
    let running =
        Connection::post(server.address, COMPLETIONS, &endless_body("x".repeat(40).as_str(), 1));
    server.wait_for_metric(RUNNING, 1);
    server.gate.wait_for_step();
    // Asked for during a step, answered behind it.
    let asked = Connection::send(server.address, &format!("GET {KV}"), "", "");
    let map = wait_for_answer(&server, asked);
    let sequences = map["sequences"].as_array().unwrap();
    assert_eq!(sequences.len(), 1, "{map}");
    let sequence = &sequences[0];
    assert_eq!(sequence["state"], "running");
    assert!(sequence["id"].as_str().unwrap().starts_with("req-"), "{map}");
    let computed = sequence["computed_tokens"].as_u64().unwrap();
    assert!(computed >= 40, "{map}");
    assert_eq!(sequence["known_tokens"], computed + 1);
    assert_eq!(sequence["hit_tokens"], 0);
    let num_blocks = sequence["block_table"].as_array().unwrap().len() as u64;
    assert_eq!(num_blocks, computed.div_ceil(16), "{map}");
    assert_eq!(map["blocks"]["active"], num_blocks);
    assert_eq!(map["live_tokens"], computed);
    assert_eq!(map["allocated_slots"], num_blocks * 16);
    let wasted = num_blocks * 16 - computed;
    let share = wasted as f64 / (num_blocks * 16) as f64;
    assert_eq!(map["waste"]["internal"]["slots"], wasted);
    assert_near(&map["waste"]["internal"]["share"], share);
    assert_eq!(map["waste"]["total"]["slots"], wasted);
    drop(running);
    server.gate.open();
    server.wait_until_idle();
}

/// Checks a number that was rounded on its way through text.
fn assert_near(got: &Value, expected: f64) {
    assert!((got.as_f64().unwrap() - expected).abs() < 1e-12, "{got} is not {expected}");
}

/// Lets steps pass until the answer has come.
fn wait_for_answer(server: &TestServer, asked: Connection) -> Value {
    let reader = std::thread::spawn(move || asked.finish());
    wait_until("the map comes", || {
        server.gate.pass(1);
        reader.is_finished()
    });
    let response = reader.join().unwrap();
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

#[test]
fn blocks_of_a_common_prefix_are_held_once_and_counted() {
    let server = TestServer::start(held());
    // 48 tokens in three full blocks, shared by three choices and another request.
    let prompt = "abc".repeat(16);
    let choices = Connection::post(server.address, COMPLETIONS, &endless_body(&prompt, 3));
    let other = Connection::post(server.address, COMPLETIONS, &endless_body(&(prompt + "x"), 1));
    wait_until("all run", || {
        server.gate.pass(1);
        server.metric(RUNNING) == 4
    });
    let asked = Connection::send(server.address, &format!("GET {KV}"), "", "");
    let map = wait_for_answer(&server, asked);
    let shared = map["shared_blocks"].as_array().unwrap();
    let by_all: Vec<&Value> = shared.iter().filter(|block| block["ref_count"] == 4).collect();
    assert_eq!(by_all.len(), 3, "{map}");
    assert!(by_all.iter().all(|block| block["tokens"] == 16), "{map}");
    assert_eq!(map["blocks"]["shared"], shared.len() as u64);
    assert!(map["shared_tokens"].as_u64().unwrap() >= 3 * 48, "{map}");
    let ids: Vec<u64> = shared.iter().map(|block| block["block"].as_u64().unwrap()).collect();
    assert!(ids.is_sorted() && ids.windows(2).all(|pair| pair[0] != pair[1]), "{map}");
    for sequence in map["sequences"].as_array().unwrap() {
        let table = sequence["block_table"].as_array().unwrap();
        assert!(by_all.iter().all(|block| table.contains(&block["block"])), "{map}");
    }
    drop((choices, other));
    server.gate.open();
    server.wait_until_idle();
    assert_eq!(server.metric("mini_infer_kv_shared_blocks"), 0);
}

#[test]
fn the_map_and_the_metrics_agree() {
    let server = TestServer::start(Setup::default());
    for prompt in ["abc".repeat(20), "abc".repeat(15) + "x", "q".repeat(100)] {
        let body = json!({"prompt": prompt, "max_tokens": 9, "n": 2}).to_string();
        assert_eq!(post(server.address, COMPLETIONS, &body).status, 200);
    }
    server.wait_until_idle();
    let map = kv_map(&server);
    let pairs = [
        ("/blocks/total", "kv_pool_blocks"),
        ("/blocks/free", "kv_blocks{state=\"free\"}"),
        ("/blocks/cached", "kv_blocks{state=\"cached\"}"),
        ("/blocks/shared", "kv_shared_blocks"),
        ("/allocated_slots", "kv_allocated_slots"),
        ("/live_tokens", "kv_live_tokens"),
        ("/shared_tokens", "kv_shared_tokens"),
        ("/waste/reserved/slots", "kv_waste_slots{cause=\"reserved\"}"),
        ("/waste/internal/slots", "kv_waste_slots{cause=\"internal\"}"),
        ("/waste/external/slots", "kv_waste_slots{cause=\"external\"}"),
        ("/prefix_cache/queried_tokens", "prefix_cache_queried_tokens_total"),
        ("/prefix_cache/hit_tokens", "prefix_cache_hit_tokens_total"),
        ("/prefix_cache/restored_tokens", "kv_restored_tokens_total"),
        ("/prefix_cache/copied_blocks", "kv_copied_blocks_total"),
        ("/prefix_cache/evicted_blocks", "kv_evicted_blocks_total"),
        ("/forks", "forked_sequences_total"),
        ("/preemptions", "preemptions_total"),
    ];
    for (pointer, metric) in pairs {
        let value = map.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {map}"));
        assert_eq!(*value, server.metric(&format!("mini_infer_{metric}")), "{pointer}");
    }
    let cache = &map["prefix_cache"];
    let rate = cache["hit_tokens"].as_f64().unwrap() / cache["queried_tokens"].as_f64().unwrap();
    assert_near(&cache["hit_rate"], rate);
    assert!(map["forks"].as_u64().unwrap() > 0 && cache["copied_blocks"].as_u64().unwrap() > 0);
}

#[test]
fn the_map_waits_for_the_step_and_nothing_waits_for_the_map() {
    let server = TestServer::start(Setup { gate: Gate::new(0), ..held() });
    let running = Connection::post(server.address, COMPLETIONS, &endless_body("a", 1));
    server.gate.wait_for_step();
    let ask = || Connection::send(server.address, &format!("GET {KV}"), "", "");
    let (patient, gone) = ([ask(), ask(), ask()], [ask(), ask()]);
    drop(gone);
    assert_eq!(get(server.address, "/health").status, 200);
    assert_eq!(server.metric("mini_infer_kv_pool_blocks"), 5200);
    server.gate.open();
    for asked in patient {
        assert_eq!(asked.finish().json()["blocks"]["total"], 5200);
    }
    drop(running);
    server.wait_until_idle();
    server.check_alive();
}

#[test]
fn a_loading_server_has_no_map() {
    let server = TestServer::start_loading(ServerConfig::default());
    let response = get(server.address, KV);
    assert_eq!((response.status, error_of(&response).1.as_str()), (503, "loading"));
    assert_eq!(post(server.address, KV, "{}").status, 405);
}

#[test]
fn tiers_are_shown_as_they_report_themselves() {
    let report = || TierReport {
        name: "files",
        capacity_bytes: 1 << 33,
        held_bytes: 5000,
        num_held_blocks: 5,
        num_queued_blocks: 1,
        num_saved_blocks: 9,
        num_restored_blocks: 3,
        num_evicted_blocks: 4,
        dropped: vec![("queue_full", 2)],
        refused: vec![("damaged", 1), ("foreign", 0)],
        errors: vec![("write", 7)],
        is_paused: true,
    };
    let details = KvDetails { block_bytes: None, tiers: Some(Arc::new(move || vec![report()])) };
    let server = TestServer::start(Setup { details, ..Setup::default() });
    let map = kv_map(&server);
    let expected = json!([{
        "name": "files", "capacity_bytes": 8_589_934_592_u64, "held_bytes": 5000,
        "held_blocks": 5, "queued_blocks": 1, "saved_blocks": 9, "restored_blocks": 3,
        "evicted_blocks": 4, "dropped_blocks": {"queue_full": 2},
        "refused_blocks": {"damaged": 1, "foreign": 0}, "errors": {"write": 7},
        "is_paused": true,
    }]);
    assert_eq!(map["tiers"], expected);
    assert_eq!((&map["block_bytes"], &map["capacity_bytes"]), (&json!(null), &json!(null)));
    let metrics = [
        ("blocks{tier=\"files\"}", 5),
        ("used_bytes{tier=\"files\"}", 5000),
        ("capacity_bytes{tier=\"files\"}", 1 << 33),
        ("queued_blocks{tier=\"files\"}", 1),
        ("paused{tier=\"files\"}", 1),
        ("saved_blocks_total{tier=\"files\"}", 9),
        ("restored_blocks_total{tier=\"files\"}", 3),
        ("evicted_blocks_total{tier=\"files\"}", 4),
        ("dropped_blocks_total{tier=\"files\",cause=\"queue_full\"}", 2),
        ("refused_blocks_total{tier=\"files\",cause=\"damaged\"}", 1),
        ("errors_total{tier=\"files\",operation=\"write\"}", 7),
    ];
    for (metric, value) in metrics {
        assert_eq!(server.metric(&format!("mini_infer_kv_tier_{metric}")), value, "{metric}");
    }
}
