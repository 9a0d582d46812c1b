//! `GET /metrics`: the counters in Prometheus' text format.

use crate::metrics::CONTENT_TYPE;
use crate::state::AppState;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

/// Answers with all metrics; reads the engine's last snapshot only.
pub(super) async fn scrape(State(state): State<AppState>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], state.metrics().encode())
}
