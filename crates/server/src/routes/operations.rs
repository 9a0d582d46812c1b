//! What each route takes and gives, for the API's document.
//!
//! A route that is added to the router gets its entry here, and its types derive `JsonSchema`; a test
//! fails where either of route and entry is missing.

use super::{anthropic, health, server_info, version};
use crate::auth;
use crate::metrics;
use crate::openapi::Operation;
use crate::wire::adapters::{LoadAdapterRequest, UnloadAdapterRequest};
use crate::wire::anthropic::request::{CreateMessageRequest, MessagesRequest};
use crate::wire::anthropic::response::{Message, MessageEvent, TokenCount};
use crate::wire::chat::{ChatChunk, ChatRequest, ChatResponse};
use crate::wire::completions::{CompletionRequest, CompletionResponse};
use crate::wire::kv::KvMap;
use crate::wire::models::{ModelCard, ModelList};
use crate::wire::tokenize::{
    ApplyTemplateRequest, ApplyTemplateResponse, DetokenizeRequest, DetokenizeResponse,
    TokenizeRequest, TokenizeResponse,
};
use axum::http::StatusCode;
use serde_json::{Map, Value};

/// Returns the entries of all routes.
pub(crate) fn all() -> Vec<Operation> {
    let groups = [inference(), tokens(), models(), status(), adapters()];
    groups.into_iter().flatten().collect()
}

/// Routes that run the model, or say what it would be given.
fn inference() -> Vec<Operation> {
    vec![
        Operation::post("/v1/chat/completions", "Answers a conversation.")
            .takes::<ChatRequest>()
            .gives::<ChatResponse>()
            .streams::<ChatChunk<'_>>()
            .asks_model(),
        Operation::post("/v1/completions", "Continues prompts.")
            .takes::<CompletionRequest>()
            .gives::<CompletionResponse<'_>>()
            .streams::<CompletionResponse<'_>>()
            .asks_model(),
        Operation::post(anthropic::MESSAGES, "Answers a conversation, as Anthropic's API does.")
            .takes::<CreateMessageRequest>()
            .gives::<Message>()
            .streams::<MessageEvent>()
            .asks_model(),
        Operation::post(anthropic::COUNT_TOKENS, "Counts the tokens of a conversation.")
            .takes::<MessagesRequest>()
            .gives::<TokenCount>()
            .asks_model(),
    ]
}

/// Routes between texts and tokens.
fn tokens() -> Vec<Operation> {
    vec![
        Operation::post("/tokenize", "Gives the tokens of a text or of a conversation.")
            .takes::<TokenizeRequest>()
            .gives::<TokenizeResponse<'_>>()
            .asks_model(),
        Operation::post("/detokenize", "Gives the text of tokens.")
            .takes::<DetokenizeRequest>()
            .gives::<DetokenizeResponse<'_>>()
            .asks_model(),
        Operation::post("/apply-template", "Gives a conversation as the chat template writes it.")
            .takes::<ApplyTemplateRequest>()
            .gives::<ApplyTemplateResponse<'_>>()
            .asks_model(),
    ]
}

/// Routes about the model.
fn models() -> Vec<Operation> {
    let mut operations = vec![
        Operation::get("/v1/models", "Lists the names that requests can ask for.")
            .gives::<ModelList>(),
        Operation::get("/v1/models/{*id}", "Describes one of them.")
            .gives::<ModelCard>()
            .refused_with(&[StatusCode::NOT_FOUND]),
    ];
    for path in ["/server_info", "/get_server_info"] {
        let summary = "Tells gateways about the server and its load.";
        operations.push(Operation::get(path, summary).gives::<server_info::ServerInfo>());
    }
    for path in ["/model_info", "/get_model_info"] {
        let summary = "Tells gateways about the model.";
        operations.push(Operation::get(path, summary).gives::<server_info::ModelInfo>());
    }
    operations
}

/// Routes about the server.
fn status() -> Vec<Operation> {
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    let ready = |path| {
        Operation::get(path, "Tells whether requests are served.")
            .gives::<health::Health>()
            .answers_with::<health::Health>(unavailable, "application/json")
    };
    vec![
        ready("/health"),
        ready("/health/ready"),
        Operation::get(auth::OPEN_ROUTE, "Answers while the process can.")
            .gives::<health::Health>(),
        Operation::get("/version", "Tells the version.").gives::<version::Version>(),
        Operation::get("/openapi.json", "Gives this document.").gives::<Map<String, Value>>(),
        Operation::get("/metrics", "Gives all metrics as OpenMetrics text.")
            .gives_text(metrics::CONTENT_TYPE),
        Operation::get("/v1/kv", "Shows the KV memory, block by block.")
            .gives::<KvMap>()
            .refused_with(&[StatusCode::INTERNAL_SERVER_ERROR]),
    ]
}

/// Routes that change which adapters there are.
fn adapters() -> Vec<Operation> {
    let text = "text/plain; charset=utf-8";
    vec![
        Operation::post("/v1/load_lora_adapter", "Loads an adapter.")
            .takes::<LoadAdapterRequest>()
            .gives_text(text)
            .refused_with(&[StatusCode::INTERNAL_SERVER_ERROR]),
        Operation::post("/v1/unload_lora_adapter", "Forgets an adapter.")
            .takes::<UnloadAdapterRequest>()
            .gives_text(text)
            .refused_with(&[StatusCode::NOT_FOUND]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::{KeyRule, document};
    use std::collections::BTreeSet;

    #[test]
    fn routes_and_entries_are_the_same() {
        let routes: BTreeSet<&str> = super::super::paths().into_iter().collect();
        let entries: BTreeSet<&str> = all().iter().map(Operation::path).collect();
        assert_eq!(routes, entries);
    }

    #[test]
    fn every_field_of_a_body_is_described() {
        let document = document(&super::super::paths(), &all(), KeyRule::NoKeys);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut num_fields = 0;
        for (name, schema) in schemas.iter().filter(|(name, _)| name.ends_with("Request")) {
            assert_eq!(schema["additionalProperties"], false, "{name} takes unknown fields");
            assert!(schema["description"].is_string(), "{name}");
            for (field, schema) in schema["properties"].as_object().unwrap() {
                assert!(schema["description"].is_string(), "{name}.{field}: {schema}");
                num_fields += 1;
            }
        }
        assert!(num_fields > 100, "only {num_fields} fields");
    }

    #[test]
    fn references_lead_somewhere() {
        let document = document(&super::super::paths(), &all(), KeyRule::KeyNeeded);
        let mut open = vec![&document];
        let mut num_references = 0;
        while let Some(value) = open.pop() {
            match value {
                Value::Object(members) => {
                    if let Some(target) = members.get("$ref").and_then(Value::as_str) {
                        let pointer = target.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{target}");
                        num_references += 1;
                    }
                    open.extend(members.values());
                }
                Value::Array(items) => open.extend(items),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        assert!(num_references > 100, "only {num_references} references");
    }
}
