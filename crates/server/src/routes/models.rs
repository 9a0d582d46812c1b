//! `GET /v1/models` and `GET /v1/models/{id}`.
//!
//! Refused while loading: tools take a model that is listed for one that answers.

use crate::served_model::AskedModel;
use crate::state::{AppState, Serving};
use crate::wire::error::ApiError;
use crate::wire::models::{ModelCard, ModelList};
use axum::Json;
use axum::extract::{Path, State};

/// Lists every name that the model is served under, and every adapter of it.
pub(super) async fn list(State(state): State<AppState>) -> Result<Json<ModelList>, ApiError> {
    let serving = state.serving()?;
    let model = &serving.model;
    let own = model.names.iter().map(|name| card(&state, &serving, name.clone(), None));
    let parent = &model.names[0];
    let adapters = model.adapters.names().into_iter();
    let adapters = adapters.map(|name| card(&state, &serving, name, Some(parent.clone())));
    Ok(Json(ModelList { object: "list", data: own.chain(adapters).collect() }))
}

/// Describes one name; names may hold slashes.
pub(super) async fn show(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    let serving = state.serving()?;
    let AskedModel { name, adapter } = serving.model.resolve(Some(&id))?;
    let parent = adapter.map(|_| serving.model.names[0].clone());
    Ok(Json(card(&state, &serving, name, parent)))
}

fn card(state: &AppState, serving: &Serving, name: String, parent: Option<String>) -> ModelCard {
    ModelCard {
        id: name,
        object: "model",
        created: state.started_at(),
        owned_by: "mini-infer",
        max_model_len: serving.model.max_model_len,
        parent,
    }
}
