//! The API's document: OpenAPI 3.1, made from the wire types and the routes.
//!
//! Fields, their descriptions, ranges and forms are those of the types that bodies are read into and
//! written from (`schemars` derives their schemas); `routes::operations` says which of them a route
//! takes and gives. Tests hold routes, bodies and answers against the document, so that neither is
//! there without the other.

mod operation;
mod schemas;

pub(crate) use operation::Operation;

use schemas::Schemas;
use serde_json::{Map, Value, json};

/// Whether requests need a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRule {
    /// All may ask.
    NoKeys,
    /// A request must show one.
    KeyNeeded,
}

/// Returns the document of `operations` on these paths, which are the router's.
pub(crate) fn document(paths: &[&str], operations: &[Operation], keys: KeyRule) -> Value {
    let mut schemas = Schemas::new();
    let mut items = Map::new();
    for path in paths {
        let mut item = Map::new();
        for operation in operations.iter().filter(|operation| operation.path() == *path) {
            operation.describe(&mut item, &mut schemas);
        }
        items.insert(path.replace("{*", "{"), Value::Object(item));
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "mini-infer",
            "description": "Serves a language model under the APIs that clients know.",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "paths": items,
        "components": {
            "schemas": schemas.into_components(),
            "parameters": parameters(),
            "headers": headers(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    });
    document["security"] = match keys {
        KeyRule::NoKeys => json!([]),
        KeyRule::KeyNeeded => json!([{"bearer": []}, {"apiKey": []}]),
    };
    if let Some(open) = document["paths"][crate::auth::OPEN_ROUTE]["get"].as_object_mut() {
        open.insert("security".to_owned(), json!([]));
    }
    document
}

/// Returns the headers that every request may have.
fn parameters() -> Value {
    json!({
        "RequestId": {
            "name": "x-request-id",
            "in": "header",
            "description": "Comes back in the answer where it is up to 128 characters of \
                            A-Z a-z 0-9 - _ . : / + =.",
            "schema": {"type": "string"},
        },
        "RequestTimeout": {
            "name": "x-request-timeout",
            "in": "header",
            "description": "Seconds that the request may take from its arrival on.",
            "schema": {"type": "number", "exclusiveMinimum": 0},
        },
    })
}

/// Returns the headers that answers have.
fn headers() -> Value {
    let header =
        |description: &str, schema: Value| json!({"description": description, "schema": schema});
    json!({
        "RequestId": header("Names the request in logs and errors.", json!({"type": "string"})),
        "RetryAfter": header(
            "Seconds after which to try again.",
            json!({"type": "integer", "minimum": 0}),
        ),
        "WwwAuthenticate": header("How to show a key.", json!({"type": "string"})),
    })
}
