//! `GET /server_info` and `GET /model_info`: what gateways ask an engine about itself.
//!
//! Names are SGLang's, which its router and others look for; only what is known is told, and no
//! path of this machine.

use crate::state::AppState;
use crate::wire::error::ApiError;
use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Serialize;

/// What a gateway learns about the server.
#[derive(Serialize, JsonSchema)]
pub(super) struct ServerInfo {
    engine: &'static str,
    version: &'static str,
    served_model_name: String,
    model_path: String,
    max_model_len: u32,
    /// Requests of which no sequence has run yet.
    num_waiting_requests: u32,
    num_running_seqs: u32,
}

/// What a gateway learns about the model.
#[derive(Serialize, JsonSchema)]
pub(super) struct ModelInfo {
    model_path: String,
    tokenizer_path: String,
    served_model_name: String,
    is_generation: bool,
    has_chat_template: bool,
    max_model_len: u32,
    vocab_size: usize,
    eos_token_id: Vec<u32>,
}

/// Describes the server and its load.
pub(super) async fn server(State(state): State<AppState>) -> Result<Json<ServerInfo>, ApiError> {
    let serving = state.serving()?;
    let (model, stats) = (&serving.model, serving.engine.monitor().stats());
    Ok(Json(ServerInfo {
        engine: "mini-infer",
        version: env!("CARGO_PKG_VERSION"),
        served_model_name: model.names[0].clone(),
        model_path: model.names[0].clone(),
        max_model_len: model.max_model_len,
        num_waiting_requests: stats.num_waiting_requests,
        num_running_seqs: stats.num_running_seqs,
    }))
}

/// Describes the model.
pub(super) async fn model(State(state): State<AppState>) -> Result<Json<ModelInfo>, ApiError> {
    let serving = state.serving()?;
    let model = &serving.model;
    let name = || model.names[0].clone();
    Ok(Json(ModelInfo {
        model_path: name(),
        tokenizer_path: name(),
        served_model_name: name(),
        is_generation: true,
        has_chat_template: model.chat_template.is_some(),
        max_model_len: model.max_model_len,
        vocab_size: model.vocab_size,
        eos_token_id: model.stop_token_ids.clone(),
    }))
}
