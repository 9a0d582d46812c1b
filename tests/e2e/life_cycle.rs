//! A server's life: loading, ready, asked to stop, gone.

use crate::binary;
use crate::http::{Exchange, Response};
use crate::patience::{assert_within, wait_for};
use crate::server_process::{ServerProcess, StopSignal};
use libtest_mimic::Trial;
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = trials![
        a_taken_port_is_known_before_the_model_loads,
        health_is_503_while_loading_and_200_when_requests_are_served,
        the_first_token_comes_within_two_seconds_of_the_start,
    ];
    if cfg!(unix) {
        trials.extend(trials![
            a_running_stream_finishes_after_sigterm_and_new_requests_are_refused,
            a_running_stream_finishes_after_ctrl_c,
            streams_beyond_the_shutdown_timeout_are_cut,
        ]);
    }
    trials
}

fn a_taken_port_is_known_before_the_model_loads() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    // The model does not exist, so whoever looks for it first says something else.
    let output = binary::run(&["serve", "--port", &port, "--model", "./no-such-model.gguf"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(stderr.contains("--port") && stderr.contains(&port), "{stderr}");
}

/// A server that is seen from its first moment on; dropping it kills the process.
struct LoadingServer {
    child: Child,
    address: SocketAddr,
}

impl LoadingServer {
    fn start() -> Self {
        binary::model_path();
        // The address must be known before the server prints it.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let child = binary::command(&["serve", "--port", &address.port().to_string()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("listening", || TcpStream::connect(address).ok());
        Self { child, address }
    }

    fn get(&self, path: &str) -> Response {
        Exchange::send(self.address, &format!("GET {path}"), "", "").response()
    }

    fn complete(&self) -> Response {
        let body = json!({"prompt": "Hi", "max_tokens": 1}).to_string();
        Exchange::post(self.address, "/v1/completions", &body).response()
    }
}

impl Drop for LoadingServer {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn health_is_503_while_loading_and_200_when_requests_are_served() {
    // A model may load faster than a busy machine lets four requests pass.
    let (server, [health, live, completion, models]) = wait_for("a look while loading", || {
        let server = LoadingServer::start();
        let [health, live] = ["/health", "/health/live"].map(|path| server.get(path));
        let (completion, models) = (server.complete(), server.get("/v1/models"));
        let is_loading = server.get("/health").status == 503;
        is_loading.then_some((server, [health, live, completion, models]))
    });
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("loading")));
    assert_eq!((completion.status, completion.error().1.as_str()), (503, "loading"));
    assert_eq!(models.status, 503);
    for refused in [health, completion, models] {
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
    }
    assert_eq!(live.status, 200);
    let look = || Some(server.get("/health")).filter(|found| found.status == 200);
    assert_eq!(wait_for("ready", look).json(), json!({"status": "ok", "engine": "mini-infer"}));
    assert_eq!(server.get("/health/live").status, 200);
    assert_eq!(server.complete().status, 200);
}

fn the_first_token_comes_within_two_seconds_of_the_start() {
    binary::model_path();
    assert_within("start to first token", Duration::from_secs(2), || {
        let started_at = Instant::now();
        let server = ServerProcess::start(&[]);
        let mut stream = server.stream(&json!({"prompt": "Once upon a time"}));
        stream.next_chunk().unwrap();
        started_at.elapsed()
    });
}

/// Checks that after `signal` a stream runs to its end, others are refused, and the exit is 0.
fn check_graceful_stop(signal: StopSignal) {
    const NUM_TOKENS: usize = 200;
    let mut server = ServerProcess::start(&[]);
    let request = json!({
        "prompt": "Once upon a time", "max_tokens": NUM_TOKENS, "ignore_eos": true,
        "stream_options": {"include_usage": true},
    });
    let mut stream = server.stream(&request);
    stream.next_chunk().unwrap();
    server.signal(signal);
    let health =
        wait_for("the signal", || Some(server.get("/health")).filter(|found| found.status == 503));
    assert_eq!(health.json()["status"], "shutting_down");
    let refused = server.post("/v1/completions", &json!({"prompt": "Hi"}));
    assert_eq!((refused.status, refused.error().1.as_str()), (503, "shutting_down"));
    assert!(refused.header("retry-after").is_some());
    let chunks = stream.chunks();
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], NUM_TOKENS);
    assert_eq!(server.wait().code(), Some(0));
}

fn a_running_stream_finishes_after_sigterm_and_new_requests_are_refused() {
    check_graceful_stop(StopSignal::Terminate);
}

fn a_running_stream_finishes_after_ctrl_c() {
    check_graceful_stop(StopSignal::Interrupt);
}

fn streams_beyond_the_shutdown_timeout_are_cut() {
    let mut server = ServerProcess::start(&["--shutdown-timeout", "1"]);
    let request = json!({"prompt": "Once upon a time", "max_tokens": 8000, "ignore_eos": true});
    let mut stream = server.stream(&request);
    stream.next_chunk().unwrap();
    server.signal(StopSignal::Terminate);
    assert_eq!(server.wait().code(), Some(0));
    let events = stream.raw_events();
    let last = events.last().unwrap();
    assert!(last.starts_with("event: error"), "{last}");
    assert!(!events.iter().any(|event| event.contains("\"finish_reason\":\"")));
}
