//! `GET /openapi.json`: what all routes take and give.

use super::operations;
use crate::openapi::{KeyRule, document};
use crate::state::AppState;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use std::sync::LazyLock;

/// The document of a server without keys.
static OPEN: LazyLock<Bytes> = LazyLock::new(|| written(KeyRule::NoKeys));
/// The document of a server with keys.
static KEYED: LazyLock<Bytes> = LazyLock::new(|| written(KeyRule::KeyNeeded));

/// Answers with the document.
pub(super) async fn show(State(state): State<AppState>) -> impl IntoResponse {
    let document = if state.config().access.keys.is_empty() { &OPEN } else { &KEYED };
    ([(CONTENT_TYPE, "application/json")], Bytes::clone(document))
}

fn written(keys: KeyRule) -> Bytes {
    let document = document(&super::paths(), &operations::all(), keys);
    serde_json::to_vec(&document).expect("a document has string keys only").into()
}
