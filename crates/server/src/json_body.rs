//! Reads a request body into a wire type, naming the field that is wrong.
//!
//! Bodies must be declared as JSON: a web page can send any other content type across origins
//! without asking first, so taking only JSON keeps foreign pages out of a local server.

use crate::wire::error::ApiError;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

/// A body as axum's extractor delivers it: whole, or refused for its size or a broken connection.
pub(crate) type RawBody = Result<Bytes, BytesRejection>;

/// Reads `body` as a `T`.
///
/// # Errors
/// Returns the refusal to answer with: too large, not JSON, or a field of a wrong type.
pub(crate) fn parse<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: RawBody,
    limit_bytes: usize,
) -> Result<T, ApiError> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::BodyTooLarge { limit_bytes },
        _ => ApiError::MalformedBody { message: rejection.body_text() },
    })?;
    if !is_json(headers) {
        return Err(ApiError::NotJson);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(&body);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        let names_field = path != "." && error.classify() != Category::Eof;
        if names_field {
            ApiError::invalid(path, error.to_string())
        } else {
            ApiError::MalformedBody { message: error.to_string() }
        }
    })?;
    deserializer.end().map_err(|error| ApiError::MalformedBody { message: error.to_string() })?;
    Ok(value)
}

/// Tells whether the headers declare a JSON body, parameters such as `charset` aside.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let kind = value.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::chat::ChatRequest;
    use axum::http::HeaderValue;

    fn refusal(body: &str) -> ApiError {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("Application/JSON; charset=utf-8"));
        let body = Ok(Bytes::copy_from_slice(body.as_bytes()));
        parse::<ChatRequest>(&headers, body, 1 << 20).map(|_| ()).unwrap_err()
    }

    fn check_param(body: &str, expected: &str) {
        let refusal = refusal(body);
        let ApiError::InvalidField { param, .. } = &refusal else {
            panic!("{body}: {refusal:?}");
        };
        assert_eq!(param, expected, "{body}");
    }

    #[test]
    fn numbers_that_json_or_the_field_cannot_hold_name_the_field() {
        check_param(r#"{"temperature": NaN}"#, "temperature");
        check_param(r#"{"temperature": 1e400}"#, "temperature");
        check_param(r#"{"temperature": "NaN"}"#, "temperature");
        check_param(r#"{"seed": 99999999999999999999999}"#, "seed");
        check_param(r#"{"max_tokens": -1}"#, "max_tokens");
        check_param(r#"{"max_tokens": 1.5}"#, "max_tokens");
        check_param(r#"{"unknown": 1e400}"#, "unknown");
    }

    #[test]
    fn wrong_types_name_the_path_to_the_field() {
        check_param(r#"{"messages": [{"role": "user", "content": 5}]}"#, "messages[0].content");
        check_param(r#"{"messages": "hi"}"#, "messages");
        check_param(r#"{"stream": "yes"}"#, "stream");
        check_param(r#"{"stop": [1]}"#, "stop");
    }

    #[test]
    fn text_that_is_not_json_is_malformed() {
        for body in ["", "{", "[]x", "{\"stream\": true} trailing", "{\"messages\": [{\"role\": "] {
            let refusal = refusal(body);
            assert!(matches!(refusal, ApiError::MalformedBody { .. }), "{body}: {refusal:?}");
        }
    }
}
