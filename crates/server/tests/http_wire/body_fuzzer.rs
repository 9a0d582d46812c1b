//! Random bodies on every route that takes one, held against the API's document.
//!
//! Whatever comes, the answer is one that the document names for the route, never a failure of the
//! server; a body that is taken is one that the document allows; and a stream beside it is told what
//! it is told alone. Bodies are made of the document itself, so a route's are as soon as it is in it.
//!
//! `MINI_INFER_FUZZ_SEED=7` starts from another seed, `MINI_INFER_FUZZ_BODIES=100000` goes on longer.

use crate::client::{Connection, Response};
use crate::document::{Document, Operation};
use crate::harness::{Setup, TestServer};
use crate::random::Random;
use crate::random_body;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bodies of a run that is part of all tests.
const NUM_BODIES: u64 = 1500;

/// What the stream beside asks for.
const BESIDE: &str = r#"{"prompt": "b?", "seed": 5, "max_tokens": 60, "ignore_eos": true,
    "logprobs": 2, "stream": true, "stream_options": {"include_usage": true}}"#;

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[test]
fn no_body_breaks_the_server_or_a_stream_beside_it() {
    let mut setup = Setup::default();
    // Room for the stream beside a body of many prompts.
    setup.engine.max_queue_len = 64;
    let server = TestServer::start(setup);
    let document = Document::of(server.address);
    let first_seed = from_env("MINI_INFER_FUZZ_SEED", 0);
    let num_bodies = from_env("MINI_INFER_FUZZ_BODIES", NUM_BODIES);
    let operations: Vec<&Operation> = document.with_bodies().collect();
    let alone = stream_beside(server.address);
    let is_over = AtomicBool::new(false);
    let num_taken = std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut num_streams = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(stream_beside(server.address), alone);
                num_streams += 1;
            }
            num_streams
        });
        let _over = Over(&is_over);
        let mut num_taken = 0;
        for seed in first_seed..first_seed + num_bodies {
            let _seed = Seed(seed);
            let mut random = Random::new(seed);
            let operation = random.pick(&operations);
            num_taken += u64::from(try_one(server.address, &document, operation, &mut random));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(beside.join().unwrap() > 0);
        num_taken
    });
    // A fuzzer that only knocks at the door finds nothing inside.
    assert!(num_taken * 10 > num_bodies, "only {num_taken} of {num_bodies} bodies were taken");
    server.wait_until_idle();
    server.check_alive();
}

/// Sends one random body and tells whether it was taken.
fn try_one(
    address: SocketAddr,
    document: &Document,
    operation: &Operation,
    random: &mut Random,
) -> bool {
    let (schema, validator) = operation.request.as_ref().unwrap();
    let mut body = random_body::of_schema(document, schema, "", random, 0);
    if random.one_in(2) {
        random_body::mutate(&mut body, random);
    }
    let bytes = random_body::written(&body, random);
    let response = send(address, &operation.path, &bytes);
    let text = String::from_utf8_lossy(&bytes);
    let context: String = text.chars().take(2000).collect();
    assert!(response.status < 500, "{}: {response:?} to {context}", operation.path);
    operation.check_answer(&response, &context);
    if response.status != 200 {
        return false;
    }
    let taken: Value = serde_json::from_slice(&bytes).unwrap();
    if let Err(error) = validator.validate(&taken) {
        let place = &error.instance_path;
        panic!(
            "{} took what the document forbids: {error} at {place} in {context}",
            operation.path
        );
    }
    true
}

fn send(address: SocketAddr, path: &str, body: &[u8]) -> Response {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Connection::send_raw(address, &[head.as_bytes(), body].concat()).finish()
}

/// Returns what a stream is told, but for what names it.
fn stream_beside(address: SocketAddr) -> Vec<Value> {
    let mut chunks = Connection::post(address, "/v1/completions", BESIDE).finish().chunks();
    for chunk in &mut chunks {
        for name in ["id", "created", "usage"] {
            chunk.as_object_mut().unwrap().remove(name);
        }
    }
    chunks
}

/// Ends the stream beside, also when a body has failed.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Tells how to replay a seed that fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with MINI_INFER_FUZZ_SEED={} MINI_INFER_FUZZ_BODIES=1", self.0);
        }
    }
}
