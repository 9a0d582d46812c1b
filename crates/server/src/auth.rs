//! Who may ask for what: API keys on requests.
//!
//! With keys set, every route but `GET /health/live` needs one, as `Authorization: Bearer KEY` or
//! as `x-api-key: KEY`; management routes need one that opens them. Routes are told apart by the
//! router that they are added to, never by their text.

use crate::api_keys::{KeyGrant, KeyScope};
use crate::client::Client;
use crate::request_record::RequestRecord;
use crate::state::AppState;
use crate::wire::error::ApiError;
use crate::wire::refusal::Refusal;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;

/// The one route that a supervisor can always read.
pub(crate) const OPEN_ROUTE: &str = "/health/live";

/// The header in which Anthropic's clients send their key.
const API_KEY_HEADER: &str = "x-api-key";

/// Lets a request pass when no keys are set or it carries one of them, and notes whose it is.
///
/// # Errors
/// Returns [`ApiError::Unauthorized`] otherwise.
pub(crate) async fn require_api_key(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let keys = &state.config().access.keys;
    if !keys.is_empty() && request.uri().path() != OPEN_ROUTE {
        let grants: Vec<_> =
            credentials(request.headers()).filter_map(|key| keys.grant(key)).collect();
        let widest = grants.iter().find(|grant| grant.scope == KeyScope::Management);
        let grant = *widest.or(grants.first()).ok_or(ApiError::Unauthorized)?;
        request.extensions_mut().insert(grant);
        if let Some(record) = RequestRecord::current() {
            record.note_client(Client::Key(grant.digest));
        }
    }
    Ok(next.run(request).await)
}

/// Lets a request pass whose key opens management routes, or any where no keys are set.
///
/// # Errors
/// Returns [`Refusal::ManagementKeyNeeded`] otherwise.
pub(crate) async fn require_management(request: Request, next: Next) -> Result<Response, ApiError> {
    match request.extensions().get::<KeyGrant>().map(|grant| grant.scope) {
        None | Some(KeyScope::Management) => Ok(next.run(request).await),
        Some(KeyScope::Inference) => Err(Refusal::ManagementKeyNeeded.into()),
    }
}

/// Returns the keys that a request shows.
fn credentials(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)
    });
    let plain = headers.get(API_KEY_HEADER).and_then(|value| value.to_str().ok());
    [bearer, plain].into_iter().flatten().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use axum::http::header::HeaderName;

    fn check(headers: &[(&'static str, &'static str)], expected: &[&str]) {
        let headers: HeaderMap = headers
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let found: Vec<&str> = credentials(&headers).collect();
        assert_eq!(found, expected, "{headers:?}");
    }

    #[test]
    fn a_key_is_a_bearer_token_or_a_header_of_its_own() {
        check(&[("authorization", "Bearer first")], &["first"]);
        check(&[("authorization", "bearer  first ")], &["first"]);
        check(&[("x-api-key", "first")], &["first"]);
        check(&[("authorization", "Bearer first"), ("x-api-key", "second")], &["first", "second"]);
        check(&[("authorization", "Bearer ")], &[""]);
        for value in ["Bearer", "Basic first", "first"] {
            check(&[("authorization", value)], &[]);
        }
        check(&[], &[]);
    }
}
