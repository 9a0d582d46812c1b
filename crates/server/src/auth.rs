//! API keys: who may use the server.
//!
//! With keys set, every route but `GET /health/live` needs `Authorization: Bearer KEY`. Keys are
//! compared in constant time, and always against all keys, so that an answer's timing tells
//! nothing about them but their lengths.

use crate::state::AppState;
use crate::wire::error::ApiError;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use subtle::{Choice, ConstantTimeEq};

/// The one route that a supervisor can always read.
pub(crate) const OPEN_ROUTE: &str = "/health/live";

/// Lets a request pass when no keys are set or it carries one of them.
///
/// # Errors
/// Returns [`ApiError::Unauthorized`] otherwise.
pub(crate) async fn require_api_key(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let keys = &state.config().api_keys;
    let is_open = keys.is_empty() || request.uri().path() == OPEN_ROUTE;
    if is_open || carries_key(request.headers(), keys) {
        return Ok(next.run(request).await);
    }
    Err(ApiError::Unauthorized)
}

fn carries_key(headers: &HeaderMap, keys: &[String]) -> bool {
    let Some(value) = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let Some((scheme, given)) = value.split_once(' ') else {
        return false;
    };
    let given = given.trim();
    let matches = keys
        .iter()
        .fold(Choice::from(0), |found, key| found | key.as_bytes().ct_eq(given.as_bytes()));
    scheme.eq_ignore_ascii_case("bearer") && bool::from(matches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn passes(header: &'static str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(header));
        carries_key(&headers, &["first".to_owned(), "second".to_owned()])
    }

    #[test]
    fn any_of_the_keys_passes_as_a_bearer_token() {
        assert!(passes("Bearer first"));
        assert!(passes("bearer second"));
        assert!(!carries_key(&HeaderMap::new(), &["first".to_owned()]));
        for header in ["Bearer", "Bearer ", "Bearer firs", "Bearer firstt", "Basic first", "first"]
        {
            assert!(!passes(header), "{header}");
        }
    }
}
