//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`, as vLLM has them.

use crate::json_body::{self, RawBody};
use crate::state::AppState;
use crate::wire::adapters::{LoadAdapterRequest, UnloadAdapterRequest};
use crate::wire::error::ApiError;
use crate::wire::field_rules;
use axum::extract::State;
use axum::http::HeaderMap;

/// Loads an adapter, which can be asked for as a model once this answers.
pub(super) async fn load(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<String, ApiError> {
    let serving = state.serving()?;
    let body: LoadAdapterRequest = json_body::parse(&headers, body, state.config().max_body_bytes)?;
    field_rules::check("", &body.extra, &[])?;
    let LoadAdapterRequest { lora_name: name, lora_path: path, .. } = body;
    let work = move || {
        if serving.model.names.contains(&name) {
            let message = format!("{name} is the name of the model itself");
            return Err(ApiError::invalid("lora_name", message));
        }
        serving.model.adapters.load_for_client(&name, &path)?;
        Ok(format!("Success: LoRA adapter '{name}' added successfully."))
    };
    let result = tokio::task::spawn_blocking(work).await;
    result.unwrap_or_else(|error| Err(ApiError::Engine { message: error.to_string() }))
}

/// Forgets an adapter.
pub(super) async fn unload(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<String, ApiError> {
    let serving = state.serving()?;
    let body: UnloadAdapterRequest =
        json_body::parse(&headers, body, state.config().max_body_bytes)?;
    field_rules::check("", &body.extra, &[])?;
    serving.model.adapters.unload(&body.lora_name)?;
    Ok(format!("Success: LoRA adapter '{}' removed successfully.", body.lora_name))
}
