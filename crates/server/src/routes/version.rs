//! `GET /version`.

use axum::Json;
use schemars::JsonSchema;
use serde::Serialize;

/// The server's version.
#[derive(Serialize, JsonSchema)]
pub(super) struct Version {
    version: &'static str,
}

/// Answers with the version of this build.
pub(super) async fn show() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}
