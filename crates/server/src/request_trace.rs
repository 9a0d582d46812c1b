//! A finished request as spans of OpenTelemetry's protocol, in its JSON form (OTLP 1.x).
//!
//! One span for the request, and one below it for each phase that it came to: `queue` until the
//! engine admitted it, `prefill` until its first token, `decode` until its last. Attributes have
//! the names of the semantic conventions for HTTP servers and generative AI. No text is told.

use crate::access_log::{AccessLine, Ending};
use crate::trace_context::{hex, random_id};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// `SPAN_KIND_INTERNAL` and `SPAN_KIND_SERVER`.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
/// `STATUS_CODE_UNSET` and `STATUS_CODE_ERROR`.
const UNSET: u8 = 0;
const ERROR: u8 = 2;

/// A span on the wire.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Span {
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    name: String,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    attributes: Vec<Value>,
    status: Value,
}

/// Returns the body that carries `spans` to a collector.
pub(crate) fn export_body(spans: &[Span]) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let resource = [text("service.name", "mini-infer"), text("service.version", version)];
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "mini-infer", "version": version}, "spans": spans}],
    }]})
}

/// Returns the spans of a request that ended now, none where its trace is not to be kept.
pub(crate) fn spans(line: &AccessLine<'_>) -> Vec<Span> {
    let (record, progress) = (line.record, line.record.progress());
    let context = record.trace();
    if !context.is_sampled {
        return Vec::new();
    }
    let clock = WallClock::new();
    let ended = Instant::now();
    let span_id = random_id();
    let route = line.route.unwrap_or("none");
    let mut attributes = vec![
        text("http.request.method", line.method.as_str()),
        text("http.route", route),
        integer("http.response.status_code", line.status.as_u16().into()),
        text("mini_infer.request_id", record.id()),
        integer("gen_ai.usage.input_tokens", progress.num_prompt_tokens),
        integer("gen_ai.usage.output_tokens", progress.num_output_tokens),
    ];
    if let Some(model) = &progress.model {
        attributes.push(text("gen_ai.request.model", model));
    }
    if line.ending == Ending::Cut {
        attributes.push(json!({"key": "mini_infer.cut", "value": {"boolValue": true}}));
    }
    let span = |name: String, id: u64, parent: Option<u64>, start: Instant, end: Instant| Span {
        trace_id: hex(context.trace_id.to_be_bytes()),
        span_id: hex(id.to_be_bytes()),
        parent_span_id: parent.map(|id| hex(id.to_be_bytes())),
        name,
        kind: INTERNAL,
        start_time_unix_nano: clock.unix_nanos(start),
        end_time_unix_nano: clock.unix_nanos(end),
        attributes: Vec::new(),
        status: json!({"code": UNSET}),
    };
    let name = format!("{} {route}", line.method);
    let status = if line.status.is_server_error() { ERROR } else { UNSET };
    let mut spans = vec![Span {
        kind: SERVER,
        attributes,
        status: json!({"code": status}),
        ..span(name, span_id, context.parent_id, record.arrived_at(), ended)
    }];
    let (admitted, first) = (progress.admitted_at, progress.first_token_at);
    let phases = [
        ("queue", Some(record.arrived_at()), admitted),
        ("prefill", admitted, first),
        ("decode", first, progress.last_token_at),
    ];
    for (name, start, end) in phases {
        if let Some(start) = start.filter(|_| progress.num_prompt_tokens > 0) {
            let end = end.unwrap_or(ended);
            spans.push(span(name.to_owned(), random_id(), Some(span_id), start, end));
        }
    }
    spans
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// The protocol's JSON has 64-bit integers as strings.
fn integer(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

/// Tells what time of day an instant was.
struct WallClock {
    instant: Instant,
    unix_nanos: u128,
}

impl WallClock {
    fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), unix_nanos: since_epoch.as_nanos() }
    }

    fn unix_nanos(&self, at: Instant) -> String {
        let before = self.instant.saturating_duration_since(at).as_nanos();
        let after = at.saturating_duration_since(self.instant).as_nanos();
        (self.unix_nanos.saturating_sub(before) + after).to_string()
    }
}
