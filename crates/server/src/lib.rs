//! The OpenAI-compatible HTTP server.
//!
//! Reading order of one request: `routes` (what is served where) → `json_body` and `validation`
//! (every 4xx) → [`ServedModel`] (text to tokens) → `submission` and `engine_thread` (into the
//! engine) → `generation`, `choice_text` and `choice_output` (the engine's events as text, and what
//! the text holds) → `sse` or one JSON
//! body. This is the only crate that knows JSON on the wire (`wire`), and the only one that maps
//! errors to status codes (`wire::error`).
//!
//! Start with [`Server::bind`]; [`EngineHandle::spawn`] and [`ServerHandle::set_ready`] attach the
//! model. Deliberately absent: loading models, printing, reading the environment.
#![forbid(unsafe_code)]

mod adapters;
mod auth;
mod choice_output;
mod choice_search;
mod choice_text;
mod clock;
mod engine_collector;
mod engine_monitor;
mod engine_thread;
mod generation;
mod idle_release;
mod json_body;
mod kv_log;
mod metric_writer;
mod metrics;
mod prefix_sharing;
mod ratio;
mod routes;
mod seeds;
mod served_model;
mod server;
mod shutdown;
mod sse;
mod state;
mod submission;
mod tiers;
mod token_text;
mod validation;
mod wire;

pub use adapters::{AdapterSource, Adapters, LoadedAdapter};
pub use clock::SystemClock;
pub use engine_thread::{EngineHandle, EngineThreadConfig};
pub use served_model::ServedModel;
pub use server::{Server, ServerConfig, ServerHandle};
pub use shutdown::StopSignals;
pub use tiers::{KvDetails, TierReport, TierSource};
