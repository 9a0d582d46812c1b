//! Errors in the shape of Anthropic's API: `{"type": "error", "error": {"type", "message"}}`.
//!
//! The status codes are those of the other routes; the type follows from them. Clients tell apart
//! by its wording what has no type of its own: a prompt that is too long (`anthropic` 2.14 and the
//! libraries on top of it look for "prompt is too long" and "exceed context limit").

use crate::wire::error::ApiError;
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
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<FaultDetails>,
}

/// What a client does something about by itself.
#[derive(Debug, Serialize, JsonSchema)]
struct FaultDetails {
    error_code: &'static str,
    unsupported: [&'static str; 1],
}

impl AnthropicErrorBody {
    /// Returns the body that tells of `error`, with `message` where this API has no own words.
    pub(crate) fn new(error: &ApiError, message: String, request_id: Option<String>) -> Self {
        let message = own_words(error).unwrap_or(message);
        let error =
            AnthropicErrorDetail { kind: kind(error.status()), message, details: details(error) };
        Self { tag: "error", error, request_id }
    }
}

fn own_words(error: &ApiError) -> Option<String> {
    if let ApiError::UnknownField { param } = error {
        return Some(format!("{param}: unrecognized field"));
    }
    let ApiError::ContextLengthExceeded { limit, num_prompt_tokens, max_tokens, .. } = error else {
        return None;
    };
    let fits_alone = u32::try_from(*num_prompt_tokens).is_ok_and(|num_tokens| num_tokens < *limit);
    Some(match max_tokens {
        Some(max_tokens) if fits_alone => format!(
            "input length and `max_tokens` exceed context limit: {num_prompt_tokens} + \
             {max_tokens} > {limit}, decrease input length or `max_tokens` and try again"
        ),
        Some(_) | None => {
            format!("prompt is too long: {num_prompt_tokens} tokens > {limit} maximum")
        }
    })
}

/// Tells a client that keeps a conversation on the server to send all of it each time instead.
fn details(error: &ApiError) -> Option<FaultDetails> {
    let ApiError::UnsupportedField { param } = error else { return None };
    (param == "thread").then_some(FaultDetails {
        error_code: "thread_unsupported_request",
        unsupported: ["thread"],
    })
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
