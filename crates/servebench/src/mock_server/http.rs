//! The routes of the mock server, on a thread of their own.

use super::answer::Answer;
use super::clockwork::Handle;
use super::config::MockConfig;
use super::script::MockRequest;
use super::service::{MockStats, Refusal};
use super::wire::{self, Format};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;

/// Tokens of an output when the request does not say.
const DEFAULT_OUTPUT_TOKENS: u32 = 16;

/// Most tokens of an output: an answer of that many is far from filling memory.
const MAX_OUTPUT_TOKENS: u64 = 1 << 20;

/// Longest body, in bytes: a prompt of some million tokens.
const MAX_BODY_BYTES: usize = 64 << 20;

/// A prompt with this text in it is answered 500.
const FAIL_MARK: &str = "FAIL";

/// Serves connections until it is told to stop, on one thread.
pub(super) fn serve(
    listener: TcpListener,
    handle: Handle,
    stopped: oneshot::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _context = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let counter = handle.clone();
    let listener = listener.tap_io(move |connection| {
        counter.add_connection();
        // Without it the system collects small pieces for some 40 ms. A connection that is closed
        // already is noticed when it is written to.
        let _ = connection.set_nodelay(true);
    });
    let router = router(handle);
    let run = move || {
        runtime.block_on(async move {
            // A server of this kind never ends by itself. Connections that are open are dropped.
            let server = axum::serve(listener, router).into_future();
            tokio::select! {
                _ = server => {}
                _ = stopped => {}
            }
        });
    };
    thread::Builder::new().name("mock-connections".to_owned()).spawn(run)
}

fn router(handle: Handle) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/metrics", get(metrics))
        .route("/stats", get(stats))
        .route("/_mock/config", get(config).post(change_config))
        .route("/_mock/reset", post(reset))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(handle)
}

async fn models(State(handle): State<Handle>) -> Json<Value> {
    Json(wire::models(&handle.config()))
}

async fn stats(State(handle): State<Handle>) -> Json<MockStats> {
    Json(handle.stats())
}

async fn config(State(handle): State<Handle>) -> Json<MockConfig> {
    Json(handle.config().as_ref().clone())
}

async fn change_config(State(handle): State<Handle>, body: Bytes) -> Response {
    match settings(handle.config().as_ref(), &body) {
        Ok(config) => {
            handle.set(config.clone());
            Json(config).into_response()
        }
        Err(message) => bad_request(&message),
    }
}

async fn reset(State(handle): State<Handle>, body: Bytes) -> Response {
    match settings(&MockConfig::default(), &body) {
        Ok(config) => {
            handle.reset(config.clone());
            Json(config).into_response()
        }
        Err(message) => bad_request(&message),
    }
}

/// Returns settings with those of a JSON object changed; an empty body changes none.
fn settings(config: &MockConfig, body: &[u8]) -> Result<MockConfig, String> {
    let mut settings = serde_json::to_value(config).map_err(|error| error.to_string())?;
    if !body.is_empty() {
        let changes: serde_json::Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| format!("expected an object of settings: {error}"))?;
        for (name, value) in changes {
            settings[name] = value;
        }
    }
    let config: MockConfig = serde_json::from_value(settings).map_err(|error| error.to_string())?;
    config.check().map_err(|error| error.to_string())?;
    Ok(config)
}

async fn chat(State(handle): State<Handle>, body: Bytes) -> Response {
    answer(handle, Format::Chat, &body).await
}

async fn completions(State(handle): State<Handle>, body: Bytes) -> Response {
    answer(handle, Format::Completions, &body).await
}

async fn answer(handle: Handle, format: Format, body: &[u8]) -> Response {
    let (request, is_streamed) = match read_request(format, body) {
        Ok(read) => read,
        Err(Unreadable::Malformed(message)) => return bad_request(&message),
        Err(Unreadable::ToFail) => return failure(),
    };
    let accepted = match handle.accept(request.clone()) {
        Ok(accepted) => accepted,
        Err(refusal) => return refused(refusal, &request),
    };
    let config = Arc::clone(&accepted.config);
    let answer = Answer::new(handle, accepted);
    if is_streamed {
        let content_type = [(header::CONTENT_TYPE, "text/event-stream")];
        return (content_type, answer.into_stream(format.opening(&config.model))).into_response();
    }
    match answer.wait().await {
        Ok(()) => Json(format.whole(&config, &request)).into_response(),
        // A body that fails before its first byte breaks the connection.
        Err(error) => {
            Body::from_stream(futures_util::stream::iter([Err::<Bytes, _>(error)])).into_response()
        }
    }
}

/// Why a request cannot be served.
enum Unreadable {
    /// It is not as the API says.
    Malformed(String),
    /// It asks for a failure.
    ToFail,
}

/// Reads a request, and whether its answer is to be streamed.
fn read_request(format: Format, body: &[u8]) -> Result<(MockRequest, bool), Unreadable> {
    let malformed = |message: &str| Unreadable::Malformed(message.to_owned());
    let body: Value =
        serde_json::from_slice(body).map_err(|error| Unreadable::Malformed(error.to_string()))?;
    let prompt = match format {
        Format::Chat => {
            let messages = body["messages"].as_array().filter(|messages| !messages.is_empty());
            let messages = messages.ok_or_else(|| malformed("messages: expected one or more"))?;
            messages.iter().map(|message| text(&message["content"])).collect::<Vec<_>>().join(" ")
        }
        Format::Completions => text(&body["prompt"]),
    };
    if prompt.contains(FAIL_MARK) {
        return Err(Unreadable::ToFail);
    }
    let asked = ["max_completion_tokens", "max_tokens"]
        .iter()
        .map(|name| &body[*name])
        .find(|asked| !asked.is_null());
    let num_output_tokens = asked.map_or(Some(DEFAULT_OUTPUT_TOKENS), |asked| {
        let asked = asked.as_u64().filter(|asked| (1..=MAX_OUTPUT_TOKENS).contains(asked))?;
        u32::try_from(asked).ok()
    });
    let request = MockRequest {
        format,
        num_prompt_tokens: prompt.split_whitespace().count() as u64,
        num_output_tokens: num_output_tokens
            .ok_or_else(|| malformed("max_tokens: expected 1 to 1048576"))?,
        wants_usage: body["stream_options"]["include_usage"] == json!(true),
    };
    Ok((request, body["stream"] == json!(true)))
}

/// Returns what a prompt or a message's content says: a text, or a list of parts with texts.
fn text(content: &Value) -> String {
    if let Some(parts) = content.as_array() {
        let part = |part: &Value| part.as_str().or(part["text"].as_str()).unwrap_or("").to_owned();
        return parts.iter().map(part).collect::<Vec<_>>().join(" ");
    }
    content.as_str().unwrap_or("").to_owned()
}

fn bad_request(message: &str) -> Response {
    let error = wire::error(message, "invalid_request_error", None);
    (StatusCode::BAD_REQUEST, Json(error)).into_response()
}

fn failure() -> Response {
    let error = wire::error("the mock server was told to fail", "server_error", None);
    (StatusCode::INTERNAL_SERVER_ERROR, Json(error)).into_response()
}

fn refused(refusal: Refusal, request: &MockRequest) -> Response {
    match refusal {
        Refusal::Chosen => failure(),
        Refusal::QueueFull => {
            let error = wire::error("too many requests wait already", "rate_limit_error", None);
            let retry = [(header::RETRY_AFTER, "1")];
            (StatusCode::TOO_MANY_REQUESTS, retry, Json(error)).into_response()
        }
        Refusal::ContextLength { limit } => {
            let MockRequest { num_prompt_tokens, num_output_tokens, .. } = request;
            let message = format!(
                "the maximum context length is {limit} tokens, but the prompt has \
                 {num_prompt_tokens} and the output may have {num_output_tokens}"
            );
            let code = Some("context_length_exceeded");
            let error = wire::error(&message, "invalid_request_error", code);
            (StatusCode::BAD_REQUEST, Json(error)).into_response()
        }
    }
}

/// Writes the counts with the names that vLLM gives them.
async fn metrics(State(handle): State<Handle>) -> Response {
    let (stats, config) = (handle.stats(), handle.config());
    let running = (stats.active - stats.waiting) as u64;
    let samples = [
        ("num_requests_running", "gauge", running),
        ("num_requests_waiting", "gauge", stats.waiting as u64),
        ("prompt_tokens_total", "counter", stats.prompt_tokens),
        ("generation_tokens_total", "counter", stats.output_tokens),
    ];
    let label = config.model.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let sample = |(name, kind, value): (&str, &str, u64)| {
        format!("# TYPE vllm:{name} {kind}\nvllm:{name}{{model_name=\"{label}\"}} {value}\n")
    };
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (content_type, samples.map(sample).concat()).into_response()
}
