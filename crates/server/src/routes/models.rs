//! `GET /v1/models` and `GET /v1/models/{id}`.
//!
//! Refused while loading: tools take a model that is listed for one that answers.

use crate::state::{AppState, Serving};
use crate::wire::error::ApiError;
use crate::wire::models::{ModelCard, ModelList};
use axum::Json;
use axum::extract::{Path, State};

/// Lists every name that the model is served under.
pub(super) async fn list(State(state): State<AppState>) -> Result<Json<ModelList>, ApiError> {
    let serving = state.serving()?;
    let names = serving.model.names.iter();
    let data = names.map(|name| card(&state, &serving, name)).collect();
    Ok(Json(ModelList { object: "list", data }))
}

/// Describes one name; names may hold slashes.
pub(super) async fn show(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    let serving = state.serving()?;
    let name = serving.model.resolve_name(Some(&id))?;
    Ok(Json(card(&state, &serving, name)))
}

fn card(state: &AppState, serving: &Serving, name: &str) -> ModelCard {
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: state.started_at(),
        owned_by: "mini-infer",
        max_model_len: serving.model.max_model_len,
    }
}
