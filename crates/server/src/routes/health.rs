//! `GET /health`: may traffic be sent here? `GET /health/live`: is the process there?
//!
//! Both read published state only and answer at once, whatever the engine does.

use crate::state::{AppState, LifeCycle};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

/// Name by which load generators and gateways recognise this engine.
const ENGINE: &str = "mini-infer";

/// Whether requests are served.
#[derive(Serialize, JsonSchema)]
pub(super) struct Health {
    #[schemars(extend("enum" = ["ok", "loading", "stalled", "shutting_down"]))]
    status: &'static str,
    engine: &'static str,
}

/// Answers 200 when requests are served, else 503 with the reason as `status`.
pub(super) async fn ready(State(state): State<AppState>) -> Response {
    let status = match state.life_cycle() {
        LifeCycle::Ready => return live().await,
        LifeCycle::Loading => "loading",
        LifeCycle::Stalled => "stalled",
        LifeCycle::ShuttingDown => "shutting_down",
    };
    let body = Json(Health { status, engine: ENGINE });
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], body).into_response()
}

/// Answers 200 while the process can answer at all.
pub(super) async fn live() -> Response {
    Json(Health { status: "ok", engine: ENGINE }).into_response()
}
