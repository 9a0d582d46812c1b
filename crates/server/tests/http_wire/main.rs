//! The HTTP interface over real sockets: bytes in, bytes out.
//!
//! The engine is the real one; its executor is a script that continues `a` with `b`, so that
//! every transcript is known in advance.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod access;
mod adapters;
mod anthropic;
mod anthropic_clients;
mod background_streams;
mod body_fuzzer;
#[path = "../byte_level/mod.rs"]
mod byte_level;
mod client;
mod connections;
mod document;
mod echoed_logprobs;
mod embeddings;
mod fair_shares;
mod harness;
mod idle;
mod kv_map;
mod life_cycle;
mod metrics;
mod ollama;
mod open_connections;
mod openapi;
mod prefix_sharing;
mod prompt_logprobs;
mod prompts;
#[path = "../structured_output/random.rs"]
mod random;
mod random_body;
#[path = "../random_model/mod.rs"]
mod random_model;
mod refusals;
mod requests;
mod required_calls;
mod responses;
mod responses_api;
mod samplers;
mod script;
mod searches;
mod stored_responses;
mod streams;
mod structured_output;
mod tls;
mod tokenize;
mod tools;
mod tools_and_formats;
mod traces;
