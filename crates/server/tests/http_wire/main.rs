//! The HTTP interface over real sockets: bytes in, bytes out.
//!
//! The engine is the real one; its executor is a script that continues `a` with `b`, so that
//! every transcript is known in advance.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod access;
mod adapters;
mod anthropic;
mod body_fuzzer;
mod client;
mod connections;
mod document;
mod harness;
mod idle;
mod kv_map;
mod life_cycle;
mod metrics;
mod open_connections;
mod openapi;
mod prefix_sharing;
mod prompts;
#[path = "../structured_output/random.rs"]
mod random;
mod random_body;
mod refusals;
mod requests;
mod required_calls;
mod responses;
mod samplers;
mod script;
mod searches;
mod streams;
mod structured_output;
mod tls;
mod tokenize;
mod tools;
mod traces;
