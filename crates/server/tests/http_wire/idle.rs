//! What happens without work: memory is released, and the log falls silent.

use crate::client::{Connection, get, post};
use crate::harness::{PATIENCE, Setup, TestServer, wait_until};
use crate::script::Gate;
use mini_infer_engine::EngineConfig;
use mini_infer_server::EngineThreadConfig;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

const COMPLETIONS: &str = "/v1/completions";
const CACHED: &str = "mini_infer_kv_blocks{state=\"cached\"}";
const SOON: Option<Duration> = Some(Duration::from_millis(50));

fn fill(server: &TestServer, first: char, num_tokens: usize) {
    let prompt = format!("{first}{}", "x".repeat(num_tokens - 1));
    let body = json!({"prompt": prompt, "max_tokens": 2}).to_string();
    assert_eq!(post(server.address, COMPLETIONS, &body).status, 200);
}

fn releasing(idle_release: Option<Duration>, idle_keep_blocks: u32) -> Setup {
    let thread = EngineThreadConfig {
        idle_release,
        idle_keep_blocks,
        idle_slice_blocks: 1,
        ..EngineThreadConfig::default()
    };
    Setup { thread, ..Setup::default() }
}

#[test]
fn an_idle_server_gives_its_blocks_back_and_serves_on() {
    let server = TestServer::start(releasing(SOON, 0));
    for _ in 0..2 {
        fill(&server, 'a', 100);
        server.wait_for_metric(CACHED, 0);
        assert_eq!(server.metric("mini_infer_kv_blocks{state=\"free\"}"), 64);
    }
    assert_eq!(server.metric("mini_infer_prefix_cache_hit_tokens_total"), 0);
    assert!(server.num_discarded.load(Ordering::Relaxed) >= 2 * 7);
    server.check_alive();
}

#[test]
fn the_blocks_used_last_stay_if_told_to() {
    let server = TestServer::start(releasing(SOON, 3));
    fill(&server, 'a', 100);
    fill(&server, 'b', 100);
    server.wait_for_metric(CACHED, 3);
}

#[test]
fn looking_at_the_server_does_not_put_the_release_off() {
    let server = TestServer::start(releasing(SOON, 0));
    fill(&server, 'a', 100);
    wait_until("the blocks are released", || {
        get(server.address, "/v1/kv").json()["blocks"]["cached"] == 0
    });
}

#[test]
fn a_large_pool_is_released_whole_in_slices() {
    let engine = EngineConfig {
        num_blocks: 4096,
        max_model_len: 60_000,
        max_batched_tokens: 8192,
        ..Setup::default().engine
    };
    let server = TestServer::start(Setup { engine, ..releasing(SOON, 10) });
    fill(&server, 'a', 50_000);
    server.wait_for_metric(CACHED, 10);
    assert_eq!(server.metric("mini_infer_kv_blocks{state=\"free\"}"), 4086);
    server.check_alive();
}

#[test]
fn without_a_time_nothing_is_released() {
    let server = TestServer::start(releasing(None, 0));
    fill(&server, 'a', 100);
    assert!(server.metric(CACHED) >= 6);
    assert_eq!(server.num_discarded.load(Ordering::Relaxed), 0);
}

#[test]
fn the_log_has_a_line_when_work_ends_and_none_without_work() {
    let (sender, lines) = mpsc::channel();
    let server = TestServer::start(Setup { kv_log: Some(sender), ..Setup::default() });
    fill(&server, 'a', 100);
    fill(&server, 'a', 100);
    // Lines come a second apart as long as there are any.
    let mut last = lines.recv_timeout(PATIENCE).unwrap();
    while let Ok(line) = lines.recv_timeout(Duration::from_millis(2500)) {
        last = line;
    }
    let fields: Vec<(&str, &str)> =
        last.split(' ').skip(1).map(|field| field.split_once('=').unwrap()).collect();
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let expected = [
        "running",
        "waiting",
        "active",
        "cached",
        "free",
        "shared",
        "live_tokens",
        "waste",
        "reserved",
        "internal",
        "external",
        "hit_rate",
        "evicted",
        "preempted",
    ];
    assert_eq!(names, expected, "{last}");
    assert!(last.starts_with("kv running=0 waiting=0 active=0 cached="), "{last}");
    assert!(last.contains(" live_tokens=0 waste=0.0% "), "{last}");
    // The second of two equal prompts found all its full blocks at least.
    let hit_rate = fields[11].1.strip_suffix('%').unwrap().parse::<f64>().unwrap();
    assert!((48.0..50.0).contains(&hit_rate), "{last}");
}

#[test]
fn the_log_goes_on_while_there_is_work() {
    let (sender, lines) = mpsc::channel();
    let gate = Gate::new(3);
    let server = TestServer::start(Setup { kv_log: Some(sender), gate, ..Setup::default() });
    let next = || lines.recv_timeout(PATIENCE).unwrap();
    let body = json!({"prompt": "a", "max_tokens": 9}).to_string();
    let connection = Connection::post(server.address, COMPLETIONS, &body);
    // The prompt's token and two more are computed; the fourth step stands before the gate.
    let is_held = |line: &str| {
        line.starts_with("kv running=1 waiting=0 active=1 ")
            && line.contains(" live_tokens=3 waste=81.2% ")
    };
    wait_until("the line before the gate", || is_held(&next()));
    assert!(is_held(&next()));
    server.gate.open();
    assert_eq!(connection.finish().status, 200);
    wait_until("the last line", || next().starts_with("kv running=0 "));
}
