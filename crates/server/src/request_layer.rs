//! The layer around all routes: request ids, time limits, and what is told when a request ends.
//!
//! A request keeps the id that it brings in `x-request-id` where that is short and plain, and
//! gets one otherwise; the answer, its errors and the logs carry it. A request ends when its
//! answer was handed to the connection, or when the connection was lost before.

use crate::access_log::{AccessLine, Ending};
use crate::client::PeerAddress;
use crate::request_record::{ErrorShape, RequestRecord};
use crate::routes;
use crate::state::AppState;
use crate::trace_context::TraceContext;
use crate::wire::error::ApiError;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's clients look for it.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The header with the seconds that a request may take.
const REQUEST_TIMEOUT: &str = "x-request-timeout";

/// Characters of a client's request id at most.
const MAX_ID_CHARS: usize = 128;

/// Runs a request with a record of its own.
pub(crate) async fn record_request(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let id = match request.headers().get(&REQUEST_ID).map(HeaderValue::to_str) {
        Some(Ok(id)) if is_plain(id) => id.to_owned(),
        _ => state.response_id("req"),
    };
    let trace = TraceContext::new(request.headers());
    let header = HeaderValue::from_str(&id).expect("ids are plain ASCII");
    let asked = asked_timeout(request.headers());
    let limits = [asked.clone().unwrap_or_default(), state.config().request_timeout];
    let time_limit = limits.into_iter().flatten().min();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let matched = route.as_ref().map(MatchedPath::as_str);
    let path = request.uri().path();
    let error_shape = routes::error_shape(path, matched, request.headers());
    let record = RequestRecord::new(id, address(&request), trace)
        .with_time_limit(time_limit)
        .with_error_shape(error_shape);
    let record = Arc::new(record);
    // Noted also when the client leaves and nobody waits for the answer any more.
    let mut end = RequestEnd {
        record: Arc::clone(&record),
        state,
        method,
        route,
        status: client_left(),
        ending: Ending::Cut,
    };
    let mut response = match asked {
        Ok(_) => record.run_async(next.run(request)).await,
        Err(error) => record.run(|| error.into_response()),
    };
    end.status = response.status();
    if end.status == StatusCode::INTERNAL_SERVER_ERROR {
        tracing::error!(request_id = record.id(), "a request failed");
    }
    if error_shape == ErrorShape::Anthropic {
        response.headers_mut().insert(ANTHROPIC_REQUEST_ID, header.clone());
    }
    response.headers_mut().insert(REQUEST_ID, header);
    response.map(|body| Body::new(RecordedBody { body, ended: false, end }))
}

/// Returns what stands in logs for the status of an answer that nobody was there to get, as in
/// those of nginx.
fn client_left() -> StatusCode {
    StatusCode::from_u16(499).expect("it has three digits")
}

/// Tells whether an id can stand in headers and log lines as it is.
fn is_plain(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte);
    !id.is_empty() && id.len() <= MAX_ID_CHARS && id.bytes().all(is_plain)
}

/// Returns the time that the client gives its request.
fn asked_timeout(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(value) = headers.get(REQUEST_TIMEOUT) else {
        return Ok(None);
    };
    let seconds = value.to_str().ok().and_then(|text| text.trim().parse::<f64>().ok());
    let limit = seconds.filter(|&seconds| seconds > 0.0);
    match limit.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(limit) => Ok(Some(limit)),
        None => Err(ApiError::invalid(REQUEST_TIMEOUT, "must be a number of seconds above 0")),
    }
}

/// Returns where the request comes from.
fn address(request: &Request) -> IpAddr {
    let peer = request.extensions().get::<PeerAddress>();
    peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.0.ip())
}

/// An answer that tells when it has ended.
struct RecordedBody {
    body: Body,
    ended: bool,
    end: RequestEnd,
}

/// Tells of a request's end when it is dropped.
struct RequestEnd {
    record: Arc<RequestRecord>,
    state: AppState,
    method: Method,
    route: Option<MatchedPath>,
    status: StatusCode,
    ending: Ending,
}

impl HttpBody for RecordedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let record = Arc::clone(&self.end.record);
        let frame = record.run(|| Pin::new(&mut self.body).poll_frame(context));
        let frame = ready!(frame);
        self.ended = frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        if self.ended || self.body.is_end_stream() {
            self.end.ending = Ending::Whole;
        }
    }
}

impl Drop for RequestEnd {
    fn drop(&mut self) {
        self.state.note_request_end(&AccessLine {
            record: &self.record,
            method: &self.method,
            route: self.route.as_ref().map(MatchedPath::as_str),
            status: self.status,
            ending: self.ending,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_could_forge_a_log_line_are_not_taken() {
        for id in ["a", "req-1", "4bf92f35-77b3:1", &"x".repeat(128)] {
            assert!(is_plain(id), "{id}");
        }
        for id in ["", "a b", "a\"b", "a\tb", "é", "a;b", &"x".repeat(129)] {
            assert!(!is_plain(id), "{id}");
        }
    }

    #[test]
    fn time_limits_are_seconds_above_zero() {
        let parse = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_TIMEOUT, HeaderValue::from_static(text));
            asked_timeout(&headers).ok().flatten()
        };
        assert_eq!(asked_timeout(&HeaderMap::new()), Ok(None));
        assert_eq!(parse("30"), Some(Duration::from_secs(30)));
        assert_eq!(parse(" 0.25 "), Some(Duration::from_millis(250)));
        for text in ["", "0", "-1", "NaN", "inf", "1e30", "30s", "soon"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
