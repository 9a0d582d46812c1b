//! Which web pages may call the server from a browser (CORS, as the Fetch standard has it).
//!
//! Without origins no header is ever sent, so browsers keep every page out. With some, their
//! preflights are answered here, before keys are asked for, since a preflight cannot carry one.
//! Browsers also ask whether a page of the internet may reach a private network; an allowed
//! origin may.

use crate::state::AppState;
use crate::wire::error::ApiError;
use crate::wire::refusal::Refusal;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderName, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::fmt;
use std::str::FromStr;

/// Seconds for which a browser may remember a preflight's answer; browsers take two hours at most.
const MAX_AGE_S: &str = "7200";
const REQUEST_PRIVATE_NETWORK: HeaderName =
    HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName =
    HeaderName::from_static("access-control-allow-private-network");

/// An origin whose pages may call the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigin {
    /// Every page there is.
    Any,
    /// The pages of one origin, such as `https://chat.example:8443`.
    One(HeaderValue),
}

/// A text that is no origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsOriginError {
    got: String,
}

impl fmt::Display for CorsOriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { got } = self;
        write!(f, "`{got}` is not an origin such as https://chat.example, nor `*`")
    }
}

impl std::error::Error for CorsOriginError {}

impl FromStr for CorsOrigin {
    type Err = CorsOriginError;

    fn from_str(text: &str) -> Result<Self, CorsOriginError> {
        let error = || CorsOriginError { got: text.to_owned() };
        if text == "*" {
            return Ok(Self::Any);
        }
        let (scheme, host) = text.split_once("://").ok_or_else(error)?;
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if scheme.is_empty() || !scheme.chars().all(is_scheme) {
            return Err(error());
        }
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(error());
        }
        // Browsers send origins in lower case.
        HeaderValue::from_str(&text.to_ascii_lowercase()).map(Self::One).map_err(|_| error())
    }
}

impl CorsOrigin {
    /// Returns what to answer a page of `origin` with, if it may call the server.
    fn allow(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        match self {
            Self::Any => Some(HeaderValue::from_static("*")),
            Self::One(known) => (known == origin).then(|| known.clone()),
        }
    }
}

/// Answers preflights, and marks answers that a page of another origin may read.
pub(crate) async fn share_with_origins(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let origins = &state.config().access.cors_origins;
    if origins.is_empty() {
        return next.run(request).await;
    }
    let origin = request.headers().get(ORIGIN).cloned();
    let allowed = origin.as_ref().and_then(|origin| origins.iter().find_map(|o| o.allow(origin)));
    let is_preflight = request.method() == Method::OPTIONS
        && origin.is_some()
        && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match (is_preflight, &allowed) {
        (false, _) => next.run(request).await,
        (true, Some(_)) => preflight(request.headers()),
        (true, None) => {
            let origin = origin.as_ref().map(HeaderValue::as_bytes).unwrap_or_default();
            let origin = String::from_utf8_lossy(origin).into_owned();
            ApiError::from(Refusal::OriginNotAllowed { origin }).into_response()
        }
    };
    let headers = response.headers_mut();
    // What is answered depends on who asks, which caches between must know.
    headers.append(VARY, HeaderValue::from_static("origin"));
    if let Some(allowed) = allowed {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        let exposed = HeaderValue::from_static("x-request-id, request-id, retry-after");
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response
}

/// Allows what the page wants to send: what reaches the routes is theirs to judge.
fn preflight(request: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE_S));
    if let Some(wanted) = request.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    if request.get(REQUEST_PRIVATE_NETWORK).is_some_and(|value| value == "true") {
        headers.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_a_scheme_a_host_and_nothing_more() {
        for text in ["https://chat.example", "http://localhost:3000", "http://[::1]:3000"] {
            let origin: CorsOrigin = text.parse().unwrap();
            assert_eq!(origin.allow(&HeaderValue::from_static(text)).unwrap(), text);
        }
        assert_eq!("*".parse(), Ok(CorsOrigin::Any));
        assert_eq!("HTTPS://Chat.example".parse::<CorsOrigin>(), "https://chat.example".parse());
        for text in ["", "null", "chat.example", "https://", "https://a/", "https://a b", "://a"] {
            assert!(text.parse::<CorsOrigin>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_the_very_origin_is_allowed() {
        let origin: CorsOrigin = "https://chat.example".parse().unwrap();
        for other in [
            "https://chat.example.evil",
            "https://chat.example:444",
            "http://chat.example",
            "https://x.chat.example",
            "null",
        ] {
            assert_eq!(origin.allow(&HeaderValue::from_static(other)), None, "{other}");
        }
    }
}
