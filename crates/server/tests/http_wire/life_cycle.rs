//! Loading, overload, disconnects and shutdown.

use crate::client::{Connection, get, post};
use crate::harness::{PATIENCE, Setup, TestServer, error_of, wait_until};
use crate::script::Gate;
use mini_infer_engine::EngineConfig;
use mini_infer_server::ServerConfig;
use serde_json::json;
use std::iter;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";
const RUNNING: &str = "mini_infer_running_sequences";
const WAITING: &str = "mini_infer_waiting_sequences";
const ABORTED: &str = "mini_infer_finished_sequences_total{reason=\"abort\"}";

/// A request that runs until the end of the context.
fn long_body(n: u32, stream: bool) -> String {
    json!({"prompt": "a", "max_tokens": 255, "ignore_eos": true, "n": n, "stream": stream})
        .to_string()
}

/// Room for a request that no test waits for.
fn endless() -> EngineConfig {
    EngineConfig { max_model_len: 200_000, num_blocks: 13_000, ..Setup::default().engine }
}

fn endless_body() -> String {
    json!({"prompt": "a", "max_tokens": 199_999, "ignore_eos": true, "stream": true}).to_string()
}

fn closed() -> Setup {
    Setup { gate: Gate::new(0), ..Setup::default() }
}

#[test]
fn a_loading_server_says_so_on_every_route_that_needs_the_model() {
    let server = TestServer::start_loading(ServerConfig::default());
    let health = get(server.address, "/health");
    assert_eq!((health.status, health.header("retry-after")), (503, Some("1")));
    assert_eq!(health.json()["status"], "loading");
    assert_eq!(get(server.address, "/health/live").status, 200);
    assert_eq!(get(server.address, "/metrics").status, 200);
    let models = get(server.address, "/v1/models");
    assert_eq!((models.status, error_of(&models).1.as_str()), (503, "loading"));
    let response = post(server.address, COMPLETIONS, r#"{"prompt": "a"}"#);
    assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
}

#[test]
fn health_and_metrics_answer_while_a_step_runs() {
    let server = TestServer::start(closed());
    let connection = Connection::post(server.address, COMPLETIONS, &long_body(1, false));
    server.gate.wait_for_step();
    let started = Instant::now();
    assert_eq!(get(server.address, "/health").status, 200);
    assert_eq!(server.metric("mini_infer_kv_pool_blocks"), 64);
    assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
    server.gate.open();
    assert_eq!(connection.finish().status, 200);
}

#[test]
fn an_engine_stuck_in_a_step_fails_health_but_not_liveness() {
    let config = ServerConfig { stall_timeout: Duration::ZERO, ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, ..closed() });
    assert_eq!(get(server.address, "/health").status, 200);
    let connection = Connection::post(server.address, COMPLETIONS, &long_body(1, false));
    server.gate.wait_for_step();
    assert_eq!(get(server.address, "/health").json()["status"], "stalled");
    assert_eq!(get(server.address, "/health/live").status, 200);
    server.gate.open();
    assert_eq!(connection.finish().status, 200);
}

#[test]
fn a_full_queue_is_refused_at_once_and_runs_on() {
    let engine = EngineConfig { max_num_seqs: 1, max_queue_len: 2, ..Setup::default().engine };
    let server = TestServer::start(Setup { engine, gate: Gate::new(1), ..Setup::default() });
    let send = || Connection::post(server.address, COMPLETIONS, &long_body(1, false));
    let running = send();
    // The first request is inside its second step; the engine takes commands between steps.
    server.gate.wait_for_step();
    server.wait_for_metric(RUNNING, 1);
    let waiting = [send(), send()];
    server.gate.pass(1);
    wait_until("two requests wait", || {
        server.gate.pass(1);
        server.metric(WAITING) == 2
    });
    let refused = send();
    wait_until("one request is refused", || {
        server.gate.pass(1);
        server.metric("mini_infer_refused_requests_total") == 1
    });
    let refused = refused.finish();
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(error_of(&refused).1, "queue_full");
    server.gate.open();
    for connection in waiting.into_iter().chain([running]) {
        assert_eq!(connection.finish().json()["usage"]["completion_tokens"], 255);
    }
}

#[test]
fn a_client_that_leaves_frees_its_blocks_whatever_stands_around() {
    let engine = EngineConfig { max_num_seqs: 4, ..Setup::default().engine };
    for stream in [false, true] {
        let server = TestServer::start(Setup { engine, gate: Gate::new(3), ..Setup::default() });
        let running = Connection::post(server.address, COMPLETIONS, &long_body(3, stream));
        server.wait_for_metric(RUNNING, 3);
        let queued = Connection::post(server.address, COMPLETIONS, &long_body(2, stream));
        wait_until("one sequence waits", || {
            server.gate.pass(1);
            server.metric(WAITING) == 1
        });
        drop(queued);
        drop(running);
        wait_until("all are aborted", || {
            server.gate.pass(1);
            server.metric(ABORTED) == 5
        });
        server.gate.open();
        server.wait_until_idle();
        assert_eq!(server.metric("mini_infer_finished_sequences_total{reason=\"length\"}"), 0);
        server.check_alive();
    }
}

#[test]
fn a_client_that_leaves_while_its_prompt_is_computed_frees_its_blocks() {
    let (log, lines) = mpsc::channel();
    let setup = Setup { access_log: Some(log), gate: Gate::new(1), ..Setup::default() };
    let server = TestServer::start(setup);
    // Four steps of 64 tokens, of which one passes.
    let body = json!({"prompt": "x".repeat(250), "max_tokens": 6, "n": 2, "stream": true});
    let connection = Connection::post(server.address, COMPLETIONS, &body.to_string());
    wait_until("the prompt is begun", || server.metric(RUNNING) > 0);
    drop(connection);
    let mut told = iter::from_fn(|| lines.recv_timeout(PATIENCE).ok());
    assert!(told.any(|line| line.contains("route=/v1/completions") && line.contains("end=cut")));
    server.gate.open();
    server.wait_for_metric(ABORTED, 2);
    server.wait_until_idle();
    assert_eq!(server.metric("mini_infer_tokens_total{kind=\"output\"}"), 0);
    server.check_alive();
}

#[test]
fn a_client_that_does_not_read_is_aborted_and_holds_up_nobody() {
    let server = TestServer::start(Setup { engine: endless(), ..Setup::default() });
    let lazy = Connection::post(server.address, COMPLETIONS, &endless_body());
    server.wait_for_metric(ABORTED, 1);
    server.check_alive();
    server.wait_until_idle();
    let response = lazy.finish();
    assert!(response.body.contains("event: error\n"), "the client learns of it");
}

#[test]
fn a_shutdown_finishes_what_runs_and_refuses_what_comes() {
    let mut server = TestServer::start(Setup { gate: Gate::new(2), ..Setup::default() });
    let mut stream = Connection::post(server.address, COMPLETIONS, &long_body(1, true));
    stream.read_until("\"text\":\"b\"");
    server.ask_to_stop();
    let is_refused = || get(server.address, "/health").status == 503;
    wait_until("the shutdown begins", is_refused);
    let refused = post(server.address, COMPLETIONS, r#"{"prompt": "a"}"#);
    assert_eq!((refused.status, error_of(&refused).1.as_str()), (503, "shutting_down"));
    server.gate.open();
    let response = stream.finish();
    assert_eq!(response.chunks().len(), 256);
    assert!(response.body.ends_with("data: [DONE]\n\n"));
    server.join();
}

#[test]
fn a_shutdown_aborts_what_runs_longer_than_its_timeout() {
    let config = ServerConfig { shutdown_timeout: Duration::ZERO, ..ServerConfig::default() };
    // Step by step, the scripted model cannot outrun the reader, who would be cut off for it.
    let gate = Gate::new(2);
    let mut server =
        TestServer::start(Setup { config, gate, engine: endless(), ..Setup::default() });
    let mut stream = Connection::post(server.address, COMPLETIONS, &endless_body());
    stream.read_until("\"text\":\"b\"");
    server.ask_to_stop();
    let reader = std::thread::spawn(move || stream.finish());
    wait_until("the stream ends", || {
        server.gate.pass(1);
        reader.is_finished()
    });
    let response = reader.join().unwrap();
    server.gate.open();
    assert!(response.body.contains("the server is shutting down"));
    assert!(!response.body.contains("[DONE]"));
    server.join();
}

#[test]
fn without_a_seed_requests_and_prompts_differ_and_equal_seeds_agree() {
    // The server's seed makes this test repeatable; it does not make requests equal.
    let config = ServerConfig { seed: Some(1), ..ServerConfig::default() };
    let engine = EngineConfig { max_queue_len: 16, ..Setup::default().engine };
    let server = TestServer::start(Setup { config, engine, ..Setup::default() });
    let texts = |prompts: usize, seed: Option<u64>| -> Vec<String> {
        let body = json!({"prompt": vec!["?"; prompts], "max_tokens": 2, "seed": seed});
        let json = post(server.address, COMPLETIONS, &body.to_string()).json();
        let choices = json["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let differ = |texts: &[String]| texts.iter().any(|text| *text != texts[0]);
    assert!(differ(&texts(16, None)));
    assert!(differ(&(0..16).flat_map(|_| texts(1, None)).collect::<Vec<_>>()));
    assert_eq!(texts(16, Some(7)), texts(16, Some(7)));
}
