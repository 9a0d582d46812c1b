//! The routes, one file per noun.

mod adapters;
mod anthropic;
mod chat;
mod completions;
mod declared;
mod embeddings;
mod health;
mod kv;
mod metrics;
mod models;
mod ollama;
mod ollama_models;
mod openapi;
mod operations;
mod responses;
mod server_info;
mod tokenize;
mod version;

use crate::auth;
use crate::json_body::{self, RawBody};
use crate::request_record::{ErrorShape, RequestRecord};
use crate::state::{AppState, Serving};
use crate::submission::Arrival;
use crate::wire::error::ApiError;
use axum::Router;
use axum::http::{HeaderMap, HeaderName, Method, Uri};
use axum::middleware::from_fn;
use axum::routing::{get, post};
use declared::DeclaredRoutes;
use serde::de::DeserializeOwned;

/// Returns all routes; whatever is not one answers with a JSON error.
pub(crate) fn router() -> Router<AppState> {
    let management = management_routes().router;
    inference_routes()
        .router
        .merge(management.route_layer(from_fn(auth::require_management)))
        .fallback(route_not_found)
        .method_not_allowed_fallback(method_not_allowed)
}

/// Returns the paths of all routes, as they are declared.
pub(crate) fn paths() -> Vec<&'static str> {
    [inference_routes().paths, management_routes().paths].concat()
}

/// Returns the routes that change or watch the server, whose answers concern all clients.
fn management_routes() -> DeclaredRoutes {
    DeclaredRoutes::default()
        .route("/v1/kv", get(kv::show))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/metrics", get(metrics::scrape))
}

/// Returns the routes that ask the model something, or about it.
fn inference_routes() -> DeclaredRoutes {
    DeclaredRoutes::default()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route(anthropic::MESSAGES, post(anthropic::create))
        .route(anthropic::COUNT_TOKENS, post(anthropic::count_tokens))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/tags", get(ollama_models::list))
        .route("/api/ps", get(ollama_models::running))
        .route("/api/show", post(ollama_models::show))
        .route("/api/version", get(ollama_models::version))
        .route("/", get(ollama_models::greet))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::count_input_tokens))
        .route("/v1/responses/{id}", get(responses::show).delete(responses::delete))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/apply-template", post(tokenize::apply_template))
        .route(models::MODELS, get(models::list))
        .route(models::MODEL, get(models::show))
        .route("/health", get(health::ready))
        .route("/health/ready", get(health::ready))
        .route(auth::OPEN_ROUTE, get(health::live))
        .route("/version", get(version::show))
        .route("/openapi.json", get(openapi::show))
        .route("/server_info", get(server_info::server))
        .route("/get_server_info", get(server_info::server))
        .route("/model_info", get(server_info::model))
        .route("/get_model_info", get(server_info::model))
}

/// The header by which Anthropic's clients say which version of the API they speak.
pub(crate) const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// Returns the shape of the errors on a path, of the route as it is declared; `None` is no route.
pub(crate) fn error_shape(path: &str, route: Option<&str>, headers: &HeaderMap) -> ErrorShape {
    match route {
        Some(anthropic::MESSAGES | anthropic::COUNT_TOKENS) => ErrorShape::Anthropic,
        // Both APIs have these routes.
        Some(models::MODELS | models::MODEL) if headers.contains_key(ANTHROPIC_VERSION) => {
            ErrorShape::Anthropic
        }
        _ if path.starts_with(ollama::PREFIX) => ErrorShape::Ollama,
        _ => ErrorShape::OpenAi,
    }
}

async fn route_not_found(uri: Uri) -> ApiError {
    ApiError::RouteNotFound { path: uri.path().to_owned() }
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed { method: method.to_string(), path: uri.path().to_owned() }
}

/// Bodies up to this size are validated and tokenized in place: about a millisecond of work.
const MAX_INLINE_BODY_BYTES: usize = 32 << 10;

/// Reads the body of a request that was let in and has `work` make something of it, off the
/// reactor where the body is long.
///
/// # Errors
/// Refuses what is no body of this type, and what `work` refuses.
async fn read_body<B: DeserializeOwned, T: Send + 'static>(
    arrival: &Arrival,
    headers: HeaderMap,
    body: RawBody,
    work: impl FnOnce(&Serving, B) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let limit_bytes = arrival.state.config().max_body_bytes;
    let num_body_bytes = body.as_ref().map_or(0, |body| body.len());
    let serving = arrival.serving();
    let work = move || work(&serving, json_body::parse(&headers, body, limit_bytes)?);
    off_the_reactor(num_body_bytes, work).await
}

/// Runs `work` on a body of `num_body_bytes`, on a thread of its own when it is long enough to
/// hold up the other connections.
async fn off_the_reactor<T: Send + 'static>(
    num_body_bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if num_body_bytes <= MAX_INLINE_BODY_BYTES {
        return work();
    }
    let record = RequestRecord::current();
    let work = move || match record {
        Some(record) => record.run(work),
        None => work(),
    };
    let result = tokio::task::spawn_blocking(work).await;
    result.unwrap_or_else(|error| Err(ApiError::Engine { message: error.to_string() }))
}
