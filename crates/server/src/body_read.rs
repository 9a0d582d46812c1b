//! Request bodies, read whole before a route sees them.
//!
//! A body must arrive within the client timeout, however slowly it drips, so that none holds
//! memory for ever. What is too large is refused when the limit is reached, not when all of it
//! came.

use crate::state::AppState;
use crate::wire::error::ApiError;
use crate::wire::refusal::Refusal;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::timeout;

/// Reads the body, then lets the request pass.
///
/// # Errors
/// Refuses a body that is too large, takes too long, or breaks off.
pub(crate) async fn read_body(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let config = state.config();
    let (parts, body) = request.into_parts();
    let whole = Request::from_parts(parts.clone(), body);
    let body = match timeout(config.client_timeout, Bytes::from_request(whole, &())).await {
        Ok(Ok(body)) => body,
        Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            return Err(ApiError::BodyTooLarge { limit_bytes: config.max_body_bytes });
        }
        Ok(Err(rejection)) => {
            return Err(ApiError::MalformedBody { message: rejection.body_text() });
        }
        Err(_) => return Err(Refusal::BodyTooSlow { limit: config.client_timeout }.into()),
    };
    Ok(next.run(Request::from_parts(parts, Body::from(body))).await)
}
