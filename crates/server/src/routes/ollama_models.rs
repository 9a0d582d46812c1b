//! `GET /`, `GET /api/version`, `GET /api/tags`, `GET /api/ps` and `POST /api/show`: what Ollama's
//! clients ask before they talk to a model.
//!
//! All names are those of one model and its adapters, which are there for as long as the server is.

use super::ollama::{ModelNames, names};
use crate::adapters::LoadedAdapter;
use crate::json_body::RawBody;
use crate::served_model::ServedModel;
use crate::state::{AppState, Serving};
use crate::submission::Arrival;
use crate::wire::error::ApiError;
use crate::wire::ollama::models::{
    Details, ListedModel, ModelList, NEVER, Running, ShowBody, ShownModel, VERSION, timestamp,
};
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use mini_infer_text::ChatTemplate;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The answer to `GET /api/version`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaVersion")]
pub(super) struct Version {
    version: &'static str,
}

/// Tells that there is a server.
pub(super) async fn greet() -> &'static str {
    "mini-infer is running"
}

/// Tells which version of the API this is.
pub(super) async fn version() -> Json<Version> {
    Json(Version { version: VERSION })
}

/// Lists every name that the model is served under, and every adapter of it.
pub(super) async fn list(State(state): State<AppState>) -> Result<Json<ModelList>, ApiError> {
    let serving = state.serving()?;
    Ok(Json(ModelList { models: models(&serving.model, |_| None) }))
}

/// Lists the same, as all of it is in memory.
pub(super) async fn running(State(state): State<AppState>) -> Result<Json<ModelList>, ApiError> {
    let serving = state.serving()?;
    let running = |model: &ServedModel| {
        let context_length = model.max_model_len;
        Some(Running { expires_at: NEVER, size_vram: 0, context_length })
    };
    Ok(Json(ModelList { models: models(&serving.model, running) }))
}

/// Describes one name.
pub(super) async fn show(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Json<ShownModel>, ApiError> {
    let arrival = Arrival::now(&state)?;
    let show = |serving: &Serving, body: ShowBody| {
        let ModelNames { served, .. } = names(&serving.model, body.into_name()?.as_deref())?;
        Ok(Json(shown(&serving.model, &served)))
    };
    super::read_body(&arrival, headers, body, show).await
}

fn models(
    model: &ServedModel,
    running: impl Fn(&ServedModel) -> Option<Running>,
) -> Vec<ListedModel> {
    let names = model.names.iter().cloned().chain(model.adapters.names());
    let listed = names.map(|name| {
        let adapter = model.adapters.get(&name);
        let parent = adapter.as_ref().map(|_| model.names[0].as_str());
        ListedModel {
            model: name.clone(),
            modified_at: timestamp(model.details.modified_at),
            size: model.details.size_bytes,
            digest: digest(model, adapter.as_ref()),
            details: Details::new(&model.details, parent),
            running: running(model),
            name,
        }
    });
    listed.collect()
}

fn shown(model: &ServedModel, name: &str) -> ShownModel {
    let details = &model.details;
    let parent = model.adapters.get(name).map(|_| model.names[0].as_str());
    let architecture = details.architecture.as_str();
    let facts = [
        ("general.architecture".to_owned(), Value::from(architecture)),
        ("general.parameter_count".to_owned(), Value::from(details.num_parameters)),
        (format!("{architecture}.context_length"), Value::from(model.max_model_len)),
        (format!("{architecture}.vocab_size"), Value::from(model.vocab_size)),
    ];
    ShownModel {
        template: model.chat_template.as_ref().map_or("", ChatTemplate::source).to_owned(),
        details: Details::new(details, parent),
        model_info: Map::from_iter(facts),
        capabilities: capabilities(model),
        modified_at: timestamp(details.modified_at),
    }
}

fn capabilities(model: &ServedModel) -> Vec<&'static str> {
    let format = &model.output_format;
    let all = [
        ("completion", true),
        ("tools", model.chat_template.is_some() && format.tools().is_some()),
        ("thinking", format.reasoning().is_some()),
        ("insert", model.tokenizer.fills_gaps()),
    ];
    all.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

/// Returns what tells this model from others: a digest of what is known of it, since reading all of
/// its bytes would take as long as loading it; of an adapter's files, that of their bytes too.
fn digest(model: &ServedModel, adapter: Option<&LoadedAdapter>) -> String {
    let details = &model.details;
    let modified_at = timestamp(details.modified_at);
    let facts = (
        (&details.format, &details.architecture, &details.weight_type, modified_at),
        (details.num_parameters, details.size_bytes),
        adapter.map(|adapter| adapter.digest),
    );
    let facts = serde_json::to_vec(&facts).expect("lists of texts and numbers");
    Sha256::digest(facts).iter().map(|byte| format!("{byte:02x}")).collect()
}
