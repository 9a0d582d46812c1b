//! Why a request failed, as one line whose text before the first colon is the kind.

use super::http::root_cause;
use serde_json::Value;

/// Longest text of a server that an error repeats, in characters.
const MAX_QUOTE: usize = 200;

/// How far a request had come when its connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The server had not answered.
    Sending,
    /// The answer had begun.
    Streaming,
}

/// Returns the error for a request whose connection failed.
pub(super) fn transport(error: &reqwest::Error, phase: Phase) -> String {
    let kind = if error.is_connect() {
        "connect error"
    } else if phase == Phase::Streaming {
        "connection dropped mid-stream"
    } else {
        "connection error"
    };
    format!("{kind}: {}", quote(&root_cause(error)))
}

/// Returns the error for a request that got no bytes for so many seconds.
pub(super) fn timeout(seconds: f64, phase: Phase) -> String {
    let what = match phase {
        Phase::Sending => "no answer",
        Phase::Streaming => "no further bytes",
    };
    format!("timeout: {what} for {seconds} s")
}

/// Returns the error for an answer that is not 200.
pub(super) fn status(code: u16, location: Option<&str>, body: &[u8]) -> String {
    if let Some(location) = location {
        return format!("HTTP {code}: redirected to {}; use that address", quote(location));
    }
    let text = String::from_utf8_lossy(body);
    let message = serde_json::from_str::<Value>(&text).ok().and_then(|body| error_message(&body));
    format!("HTTP {code}: {}", quote(message.as_deref().unwrap_or(&text)))
}

/// Returns the error for an error that the server puts into its stream.
pub(super) fn in_stream(error: &Value) -> String {
    let message = error_message(error).unwrap_or_else(|| error.to_string());
    format!("stream error: {}", quote(&message))
}

/// Returns the error for data that is no JSON.
pub(super) fn malformed(data: &[u8]) -> String {
    format!("malformed chunk: {}", quote(&String::from_utf8_lossy(data)))
}

/// Returns the message inside the error formats of the engines: a string, `{"message": ...}`,
/// `{"error": ...}` around either, FastAPI's `{"detail": ...}`.
fn error_message(error: &Value) -> Option<String> {
    match error {
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) => ["error", "message", "detail"]
            .iter()
            .find_map(|name| fields.get(*name))
            .and_then(error_message),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    }
}

/// Returns the text as one line of bounded length.
fn quote(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_own_message_is_found() {
        for (body, expected) in [
            (r#"{"error":{"message":"too long","type":"x"}}"#, "HTTP 400: too long"),
            (r#"{"error":"too long"}"#, "HTTP 400: too long"),
            (r#"{"detail":"Not Found"}"#, "HTTP 400: Not Found"),
            (r#"{"object":"error","message":"m"}"#, "HTTP 400: m"),
            ("plain\n  text", "HTTP 400: plain text"),
            (r#"{"detail":[{"loc":1}]}"#, r#"HTTP 400: {"detail":[{"loc":1}]}"#),
            ("", "HTTP 400: "),
        ] {
            assert_eq!(status(400, None, body.as_bytes()), expected);
        }
        assert!(status(307, Some("http://b/"), b"").contains("redirected to http://b/"));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let cut = quote(&"é".repeat(500));
        assert_eq!(cut.chars().count(), MAX_QUOTE + 3);
    }
}
