//! Newline-delimited JSON: a stream of objects, one on a line.
//!
//! The format has no comments, and clients read every line as an object, so nothing keeps a silent
//! stream open.

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::stream::{Stream, StreamExt};
use serde::Serialize;
use std::convert::Infallible;

/// Returns the line of an object.
pub(crate) fn line(value: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(value).expect("wire types have string keys only");
    line.push(b'\n');
    line.into()
}

/// Answers with `lines` as they come.
pub(crate) fn response(lines: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(lines.map(Ok::<_, Infallible>)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    // Asks nginx, and what understands its header, not to hold lines back.
    let name = HeaderName::from_static("x-accel-buffering");
    headers.insert(name, HeaderValue::from_static("no"));
    response
}
