//! `GET /v1/models` and `GET /v1/models/{id}`, in the form of the API that the client speaks.
//!
//! Anthropic's clients tell by the header `anthropic-version` that they are some. Refused while loading: tools take a model that is listed for one that answers.

use crate::request_record::{ErrorShape, RequestRecord};
use crate::served_model::AskedModel;
use crate::state::{AppState, Serving};
use crate::utc_time;
use crate::wire::anthropic::models::{AnthropicModel, AnthropicModelList};
use crate::wire::error::ApiError;
use crate::wire::models::{ModelCard, ModelList};
use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};

/// The routes' paths.
pub(super) const MODELS: &str = "/v1/models";
pub(super) const MODEL: &str = "/v1/models/{*id}";

/// Lists every name that the model is served under, and every adapter of it.
pub(super) async fn list(State(state): State<AppState>) -> Result<Response, ApiError> {
    let serving = state.serving()?;
    let model = &serving.model;
    let own = model.names.iter().map(|name| card(&state, &serving, name.clone(), None));
    let parent = &model.names[0];
    let adapters = model.adapters.names().into_iter();
    let adapters = adapters.map(|name| card(&state, &serving, name, Some(parent.clone())));
    let data: Vec<_> = own.chain(adapters).collect();
    Ok(if is_told_to_anthropics_client() {
        let data = data.into_iter().map(anthropic_model).collect();
        Json(AnthropicModelList::new(data)).into_response()
    } else {
        Json(ModelList { object: "list", data }).into_response()
    })
}

/// Describes one name; names may hold slashes.
pub(super) async fn show(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let serving = state.serving()?;
    let AskedModel { name, adapter } = serving.model.resolve(Some(&id))?;
    let parent = adapter.map(|_| serving.model.names[0].clone());
    let card = card(&state, &serving, name, parent);
    Ok(if is_told_to_anthropics_client() {
        Json(anthropic_model(card)).into_response()
    } else {
        Json(card).into_response()
    })
}

fn is_told_to_anthropics_client() -> bool {
    let record = RequestRecord::current();
    record.is_some_and(|record| record.error_shape() == ErrorShape::Anthropic)
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

fn anthropic_model(card: ModelCard) -> AnthropicModel {
    AnthropicModel {
        tag: "model",
        display_name: card.id.clone(),
        id: card.id,
        created_at: utc_time::rfc3339(card.created),
        lifecycle: "active",
        max_input_tokens: card.max_model_len,
        max_tokens: card.max_model_len,
    }
}
