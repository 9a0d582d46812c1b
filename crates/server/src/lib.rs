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

mod access;
mod access_log;
mod adapters;
mod answer_rule;
mod api_keys;
mod auth;
mod body_read;
mod chat_rendering;
mod choice_output;
mod choice_search;
mod choice_text;
mod client;
mod client_limits;
mod clock;
mod connections;
mod cors;
mod dry_options;
mod echo;
mod embedding_run;
mod engine_collector;
mod engine_monitor;
mod engine_thread;
mod generation;
mod host_check;
mod idle_release;
mod json_body;
mod kv_log;
mod latencies;
mod metric_writer;
mod metrics;
mod model_details;
mod ndjson;
mod openapi;
mod output_rule;
mod patient_stream;
mod prefix_sharing;
mod process_collector;
mod prompt_logprobs;
mod ratio;
mod request_layer;
mod request_record;
mod request_trace;
mod required_calls;
mod response_events;
mod response_shelves;
mod response_store;
mod routes;
mod sampler_options;
mod seeds;
mod served_model;
mod server;
mod shutdown;
mod sse;
mod state;
mod step_phases;
mod submission;
mod tiers;
mod tls;
mod token_text;
mod trace_context;
mod trace_exporter;
mod unit_vector;
mod utc_time;
mod validation;
mod vllm_collector;
mod wire;

pub use access::AccessConfig;
pub use adapters::{AdapterSource, Adapters, LoadedAdapter};
pub use api_keys::{ApiKeyError, ApiKeys, KeyScope};
pub use clock::SystemClock;
pub use cors::{CorsOrigin, CorsOriginError};
pub use engine_thread::{EngineHandle, EngineThreadConfig};
pub use model_details::ModelDetails;
pub use response_store::ResponseStoreLimits;
pub use served_model::{EmbeddingShape, ServedModel};
pub use server::{Server, ServerConfig, ServerHandle};
pub use shutdown::StopSignals;
pub use tiers::{KvDetails, TierReport, TierSource};
pub use tls::{TlsError, TlsFiles, TlsIdentity};
