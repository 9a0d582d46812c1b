//! Errors as clients see them, and the only mapping from errors to status codes.
//!
//! Three kinds, kept apart: the caller's fault (4xx, names the field), no capacity (429 and 503
//! with `Retry-After`), and our fault (500). The body is OpenAI's
//! `{"error": {"message", "type", "param", "code"}}`, but on routes of Anthropic's API, where
//! `wire::anthropic::error` has its shape, and on those of Ollama's, where it is
//! `{"error": message}`.

use crate::request_record::{ErrorShape, RequestRecord};
use crate::wire::anthropic::error::AnthropicErrorBody;
use crate::wire::refusal::Refusal;
use crate::wire::responses::refusal::StoredRefusal;
use axum::Json;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use std::borrow::Cow;

/// Seconds after which a refused client may try again: long enough for a queue of short requests
/// to move and for a small model to load.
const RETRY_AFTER_S: &str = "1";

/// Everything that a request can be answered with instead of a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ApiError {
    /// A field has a wrong type or value.
    InvalidField { param: String, message: String },
    /// A field that the API does not know.
    UnknownField { param: String },
    /// A field that OpenAI's API knows and this server does not serve, set to more than its
    /// neutral value.
    UnsupportedField { param: String },
    /// The body is not JSON.
    MalformedBody { message: String },
    /// The body is larger than the server accepts.
    BodyTooLarge { limit_bytes: usize },
    /// The body is not declared as JSON.
    NotJson,
    /// Refused whatever the body says.
    Refused(Refusal),
    /// A stored response cannot be had.
    Stored(StoredRefusal),
    /// The client did not send a valid API key.
    Unauthorized,
    /// The model that was asked for is not the one that is served.
    ModelNotFound { model: String },
    /// Prompt and output together do not fit the context.
    ContextLengthExceeded {
        param: &'static str,
        limit: u32,
        num_prompt_tokens: usize,
        max_tokens: Option<u32>,
    },
    /// No such route.
    RouteNotFound { path: String },
    /// The route does not take this method.
    MethodNotAllowed { method: String, path: String },
    /// Clients may not load or unload adapters here.
    AdaptersAreFixed,
    /// The queue of waiting requests is full.
    QueueFull,
    /// The model is still loading.
    Loading,
    /// The server finishes what runs and takes nothing more.
    ShuttingDown,
    /// The engine failed while it ran the request.
    Engine { message: String },
}

impl ApiError {
    /// Refuses `param` for the reason in `message`.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidField { param: param.into(), message: message.into() }
    }

    /// Returns the status code that answers with this error.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::InvalidField { .. }
            | Self::UnknownField { .. }
            | Self::UnsupportedField { .. }
            | Self::MalformedBody { .. }
            | Self::ContextLengthExceeded { .. } => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Refused(refusal) => refusal.status(),
            Self::Stored(refusal) => refusal.status(),
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::AdaptersAreFixed => StatusCode::FORBIDDEN,
            Self::ModelNotFound { .. } | Self::RouteNotFound { .. } => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Self::Loading | Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::Engine { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the body that answers with this error, in the shape of the API whose route the
    /// calling code serves.
    pub(crate) fn body(&self) -> ErrorBody {
        let record = RequestRecord::current();
        let request_id = record.as_ref().map(|record| record.id().to_owned());
        match record.map(|record| record.error_shape()).unwrap_or_default() {
            ErrorShape::OpenAi => {
                let error = ErrorDetail {
                    message: self.message(),
                    kind: self.kind(),
                    param: self.param(),
                    code: self.code(),
                };
                ErrorBody::OpenAi(OpenAiErrorBody { error, request_id })
            }
            ErrorShape::Anthropic => {
                ErrorBody::Anthropic(AnthropicErrorBody::new(self, self.message(), request_id))
            }
            ErrorShape::Ollama => ErrorBody::Ollama(OllamaErrorBody { error: self.message() }),
        }
    }

    /// Returns what went wrong and what to do.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::InvalidField { param, message } => format!("{param}: {message}"),
            Self::UnknownField { param } => {
                format!("Unrecognized request argument supplied: {param}")
            }
            Self::UnsupportedField { param } => {
                format!("{param} is not supported by this server; leave it out")
            }
            Self::MalformedBody { message } => format!("the body is not valid JSON: {message}"),
            Self::BodyTooLarge { limit_bytes } => {
                format!("the body is larger than the limit of {limit_bytes} bytes")
            }
            Self::NotJson => "send the body with `Content-Type: application/json`".to_owned(),
            Self::AdaptersAreFixed => "adapters cannot be loaded or unloaded over HTTP: the \
                                       server was started without --lora-dir"
                .to_owned(),
            Self::Refused(refusal) => refusal.message(),
            Self::Stored(refusal) => refusal.message(),
            Self::Unauthorized => "send a valid API key in the header `Authorization: Bearer KEY` \
                                   or `x-api-key: KEY`"
                .to_owned(),
            Self::ModelNotFound { model } => {
                format!("the model `{model}` is not served here; see GET /v1/models")
            }
            Self::ContextLengthExceeded {
                param,
                limit,
                num_prompt_tokens,
                max_tokens: Some(0),
            } => format!(
                "this model's context length is {limit} tokens and the longest {param} has \
                 {num_prompt_tokens}; shorten it"
            ),
            Self::ContextLengthExceeded { limit, num_prompt_tokens, max_tokens, .. } => {
                let output = match max_tokens {
                    Some(max_tokens) => format!("max_tokens is {max_tokens}"),
                    None => "at least 1 token must be left for the output".to_owned(),
                };
                // Clients look for the first words or for the code, which some show nowhere else.
                format!(
                    "this model's maximum context length is {limit} tokens, the prompt has \
                     {num_prompt_tokens} and {output}; shorten the prompt or lower max_tokens \
                     (context_length_exceeded)"
                )
            }
            Self::RouteNotFound { path } => format!("there is no route {path}"),
            Self::MethodNotAllowed { method, path } => format!("{path} does not take {method}"),
            Self::QueueFull => "the server's queue is full; try again later".to_owned(),
            Self::Loading => "the model is still loading; try again shortly".to_owned(),
            Self::ShuttingDown => "the server is shutting down".to_owned(),
            Self::Engine { message } => format!("the engine failed: {message}"),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.kind(),
            Self::Unauthorized => "authentication_error",
            Self::AdaptersAreFixed => "permission_error",
            Self::QueueFull => "rate_limit_error",
            Self::Loading | Self::ShuttingDown => "service_unavailable_error",
            Self::Engine { .. } => "server_error",
            Self::InvalidField { .. }
            | Self::UnknownField { .. }
            | Self::UnsupportedField { .. }
            | Self::MalformedBody { .. }
            | Self::BodyTooLarge { .. }
            | Self::NotJson
            | Self::Stored(_)
            | Self::ModelNotFound { .. }
            | Self::ContextLengthExceeded { .. }
            | Self::RouteNotFound { .. }
            | Self::MethodNotAllowed { .. } => "invalid_request_error",
        }
    }

    fn param(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::InvalidField { param, .. }
            | Self::UnknownField { param }
            | Self::UnsupportedField { param } => Some(Cow::Owned(param.clone())),
            Self::Stored(refusal) => Some(Cow::Borrowed(refusal.param())),
            Self::ModelNotFound { .. } => Some(Cow::Borrowed("model")),
            Self::ContextLengthExceeded { param, .. } => Some(Cow::Borrowed(param)),
            Self::MalformedBody { .. }
            | Self::BodyTooLarge { .. }
            | Self::NotJson
            | Self::Refused(_)
            | Self::Unauthorized
            | Self::AdaptersAreFixed
            | Self::RouteNotFound { .. }
            | Self::MethodNotAllowed { .. }
            | Self::QueueFull
            | Self::Loading
            | Self::ShuttingDown
            | Self::Engine { .. } => None,
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            Self::InvalidField { .. } => Some("invalid_value"),
            Self::UnknownField { .. } => Some("unknown_parameter"),
            Self::UnsupportedField { .. } => Some("unsupported_parameter"),
            Self::MalformedBody { .. } => Some("invalid_json"),
            Self::BodyTooLarge { .. } => Some("body_too_large"),
            Self::NotJson => Some("unsupported_media_type"),
            Self::Refused(refusal) => Some(refusal.code()),
            Self::Stored(refusal) => Some(refusal.code()),
            Self::Unauthorized => Some("invalid_api_key"),
            Self::AdaptersAreFixed => Some("adapters_are_fixed"),
            Self::ModelNotFound { .. } => Some("model_not_found"),
            Self::ContextLengthExceeded { .. } => Some("context_length_exceeded"),
            Self::RouteNotFound { .. } => Some("unknown_url"),
            Self::MethodNotAllowed { .. } => Some("method_not_allowed"),
            Self::QueueFull => Some("queue_full"),
            Self::Loading => Some("loading"),
            Self::ShuttingDown => Some("shutting_down"),
            Self::Engine { .. } => Some("engine_error"),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoredRefusal> for ApiError {
    fn from(refusal: StoredRefusal) -> Self {
        Self::Stored(refusal)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        if matches!(
            self,
            Self::QueueFull
                | Self::Loading
                | Self::ShuttingDown
                | Self::Refused(Refusal::TooManyRequests { .. })
        ) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
        if self == Self::Unauthorized {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The body of every answer that is not a result.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum ErrorBody {
    OpenAi(OpenAiErrorBody),
    Anthropic(AnthropicErrorBody),
    Ollama(OllamaErrorBody),
}

/// An answer that is not a result, in Ollama's shape.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaErrorBody {
    error: String,
}

/// An answer that is not a result, in OpenAI's shape.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OpenAiErrorBody {
    error: ErrorDetail,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

/// What went wrong, in OpenAI's shape.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ErrorDetail {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The path of the field at fault, such as `messages[0].content`.
    param: Option<Cow<'static, str>>,
    code: Option<&'static str>,
}
