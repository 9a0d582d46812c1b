//! What each route takes and gives, for the API's document.
//!
//! A route that is added to the router gets its entry here, and its types derive `JsonSchema`; a test
//! fails where either of route and entry is missing.

use super::{ANTHROPIC_VERSION, anthropic, health, models, ollama_models, server_info, version};
use crate::auth;
use crate::metrics;
use crate::openapi::Operation;
use crate::wire::adapters::{LoadAdapterRequest, UnloadAdapterRequest};
use crate::wire::anthropic::models::{AnthropicModel, AnthropicModelList};
use crate::wire::anthropic::request::{CreateMessageRequest, MessagesRequest};
use crate::wire::anthropic::response::{Message, MessageEvent, TokenCount};
use crate::wire::chat::{ChatChunk, ChatRequest, ChatResponse};
use crate::wire::completions::{CompletionRequest, CompletionResponse};
use crate::wire::embeddings::{EmbeddingRequest, EmbeddingResponse};
use crate::wire::kv::KvMap;
use crate::wire::models::{ModelCard, ModelList};
use crate::wire::ollama;
use crate::wire::responses::event::ResponseEvent;
use crate::wire::responses::query;
use crate::wire::responses::request::ResponsesRequest;
use crate::wire::responses::response::{DeletedResponse, InputTokens, ItemList, ResponseObject};
use crate::wire::tokenize::{
    ApplyTemplateRequest, ApplyTemplateResponse, DetokenizeRequest, DetokenizeResponse,
    TokenizeRequest, TokenizeResponse,
};
use axum::http::StatusCode;
use serde_json::{Map, Value, json};

/// The content type of plain text.
const TEXT: &str = "text/plain; charset=utf-8";
/// The route of a kept response.
const RESPONSE: &str = "/v1/responses/{id}";

/// Returns the entries of all routes.
pub(crate) fn all() -> Vec<Operation> {
    let groups =
        [inference(), responses(), ollamas(), tokens(), model_routes(), status(), adapters()];
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
        Operation::post("/v1/embeddings", "Gives the embeddings of texts.")
            .takes::<EmbeddingRequest>()
            .gives::<EmbeddingResponse>()
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

/// OpenAI's Responses API.
fn responses() -> Vec<Operation> {
    let not_found = &[StatusCode::NOT_FOUND];
    let ignored = || json!({"description": "Accepted without effect."});
    let off = || json!({"enum": ["false"]});
    let switch = || json!({"type": "boolean", "default": false});
    let number = || json!({"type": "integer", "minimum": 0});
    vec![
        Operation::post("/v1/responses", "Answers a conversation, and keeps the answer.")
            .takes::<ResponsesRequest>()
            .gives::<ResponseObject>()
            .streams::<ResponseEvent>()
            .asks_model(),
        Operation::post("/v1/responses/input_tokens", "Counts the tokens of a conversation.")
            .takes::<ResponsesRequest>()
            .gives::<InputTokens>()
            .asks_model(),
        Operation::get(
            RESPONSE,
            "Gives a response, whole or as far as it has come, or its events.",
        )
        .asks_query("include", "What was included is.", ignored())
        .asks_query("stream", "Tells the events of a stream in the background.", switch())
        .asks_query("starting_after", "The event to go on behind; needs `stream`.", number())
        .asks_query("include_obfuscation", "Nothing is added to events.", off())
        .gives::<ResponseObject>()
        .streams::<ResponseEvent>()
        .refused_with(not_found),
        Operation::delete(RESPONSE, "Forgets a response, and ends one that still runs.")
            .gives::<DeletedResponse>()
            .refused_with(not_found),
        Operation::post("/v1/responses/{id}/cancel", "Ends a response in the background.")
            .gives::<ResponseObject>()
            .refused_with(not_found),
        Operation::get("/v1/responses/{id}/input_items", "Lists what the model was given.")
            .asks_query("include", "What was included is.", ignored())
            .asks_query("after", "The item behind which to begin.", json!({"type": "string"}))
            .asks_query("limit", "Most items.", query::schema_of_limits())
            .asks_query("order", "The last first, or as said.", json!({"enum": ["desc", "asc"]}))
            .gives::<ItemList<'_>>()
            .refused_with(not_found),
    ]
}

/// Ollama's API.
fn ollamas() -> Vec<Operation> {
    vec![
        Operation::post("/api/chat", "Answers a conversation, as Ollama's API does.")
            .takes::<ollama::request::ChatBody>()
            .gives::<ollama::response::Line<'_>>()
            .streams_lines::<ollama::response::Line<'_>>()
            .asks_model(),
        Operation::post("/api/generate", "Answers a prompt, as Ollama's API does.")
            .takes::<ollama::request::GenerateBody>()
            .gives::<ollama::response::Line<'_>>()
            .streams_lines::<ollama::response::Line<'_>>()
            .asks_model(),
        Operation::get("/api/tags", "Lists the names that requests can ask for.")
            .gives::<ollama::models::ModelList>(),
        Operation::get("/api/ps", "Lists the same, as all of it is in memory.")
            .gives::<ollama::models::ModelList>(),
        Operation::post("/api/show", "Describes one of them.")
            .takes::<ollama::models::ShowBody>()
            .gives::<ollama::models::ShownModel>()
            .asks_model(),
        Operation::get("/api/version", "Tells which version of Ollama's API is served.")
            .gives::<ollama_models::Version>(),
        Operation::get("/", "Answers while the process can.").gives_text(TEXT),
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
fn model_routes() -> Vec<Operation> {
    let mut operations = vec![
        Operation::get(models::MODELS, "Lists the names that requests can ask for.")
            .asks_header(&ANTHROPIC_VERSION, "Asks for the form of Anthropic's API.")
            .gives::<ModelList>()
            .gives::<AnthropicModelList>(),
        Operation::get(models::MODEL, "Describes one of them.")
            .asks_header(&ANTHROPIC_VERSION, "Asks for the form of Anthropic's API.")
            .gives::<ModelCard>()
            .gives::<AnthropicModel>()
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
    vec![
        Operation::post("/v1/load_lora_adapter", "Loads an adapter.")
            .takes::<LoadAdapterRequest>()
            .gives_text(TEXT)
            .refused_with(&[StatusCode::INTERNAL_SERVER_ERROR]),
        Operation::post("/v1/unload_lora_adapter", "Forgets an adapter.")
            .takes::<UnloadAdapterRequest>()
            .gives_text(TEXT)
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
