//! Errors in the shape of Anthropic's API: `{"type": "error", "error": {"type", "message"}}`.
//!
//! The status codes are those of the other routes; the type follows from them.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

/// The body of an answer that is not a result.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnthropicErrorBody {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "error"))]
    tag: &'static str,
    error: AnthropicErrorDetail,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

/// What went wrong.
#[derive(Debug, Serialize, JsonSchema)]
struct AnthropicErrorDetail {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
}

impl AnthropicErrorBody {
    /// Returns the body of an answer with this status.
    pub(crate) fn new(status: StatusCode, message: String, request_id: Option<String>) -> Self {
        let error = AnthropicErrorDetail { kind: kind(status), message };
        Self { tag: "error", error, request_id }
    }
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}
