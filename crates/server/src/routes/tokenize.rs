//! `POST /tokenize`, `POST /detokenize` and `POST /apply-template`: what the model would be given.
//!
//! Texts and conversations become tokens by the very functions of the routes that run the model,
//! so that counts are the same. The engine takes no part. Answers are written where the work is
//! done, as they may be many times as long as their questions.

use crate::chat_rendering::RenderingFields;
use crate::json_body::RawBody;
use crate::served_model::ServedModel;
use crate::state::{AppState, Serving};
use crate::submission::Arrival;
use crate::validation;
use crate::wire::chat::ChatMessage;
use crate::wire::error::ApiError;
use crate::wire::field_rules;
use crate::wire::tokenize::{
    ApplyTemplateRequest, ApplyTemplateResponse, DetokenizeRequest, DetokenizeResponse, TextStart,
    TokenSource, TokenStrings, TokenizeRequest, TokenizeResponse,
};
use crate::wire::tools::Tools;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use mini_infer_core::TokenId;
use mini_infer_text::{ControlTokens, Detokenizer, OutputStart};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Answers with the tokens of a text or of a conversation.
pub(super) async fn tokenize(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    answer(&state, headers, body, |model, mut body: TokenizeRequest| {
        model.resolve(body.model.as_deref())?;
        let tokens = match body.take_source()? {
            TokenSource::Text { param, text, start } => {
                field_rules::check("", &body.extra, field_rules::TOKENIZE)?;
                text_tokens(model, param, &text, start)?
            }
            TokenSource::Messages(messages) => {
                let chat = Chat::take(&mut body.extra, messages)?;
                field_rules::check("", &body.extra, field_rules::TOKENIZE)?;
                let rendering = chat.fields.rendering(&chat.messages)?;
                model.encode_chat(&chat.messages, &chat.tools.items, rendering)?.tokens
            }
        };
        let (tokens, tokenizer) = (tokens.as_slice(), &*model.tokenizer);
        let has_strings = body.return_token_strs.unwrap_or(false);
        let token_strs = has_strings.then_some(TokenStrings { tokens, tokenizer });
        let (count, max_model_len) = (tokens.len(), model.max_model_len);
        Ok(Json(TokenizeResponse { count, max_model_len, tokens, token_strs }).into_response())
    })
    .await
}

/// Answers with the text of tokens, control tokens written out. The text is no longer than a body
/// may be, which bounds what a few tokens of many bytes can ask for.
pub(super) async fn detokenize(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let max_text_bytes = state.config().max_body_bytes;
    answer(&state, headers, body, move |model, body: DetokenizeRequest| {
        field_rules::check("", &body.extra, &[])?;
        model.resolve(body.model.as_deref())?;
        let ids = body.tokens.ok_or_else(|| ApiError::invalid("tokens", "is required"))?;
        let detokenizer = Detokenizer::new(Arc::clone(&model.tokenizer), OutputStart::NewText);
        let mut detokenizer = detokenizer.with_control_tokens(ControlTokens::Written);
        let mut text = String::new();
        for (i, id) in ids.iter().enumerate() {
            let id = validation::token_id(id, &format!("tokens[{i}]"), model.vocab_size)?;
            detokenizer.push(id, &mut text);
            if text.len() > max_text_bytes {
                let message = format!("stand for more than {max_text_bytes} bytes of text");
                return Err(ApiError::invalid("tokens", message));
            }
        }
        detokenizer.finish(&mut text);
        Ok(Json(DetokenizeResponse { prompt: &text, content: &text }).into_response())
    })
    .await
}

/// Answers with a conversation as the chat template writes it.
pub(super) async fn apply_template(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    answer(&state, headers, body, |model, mut body: ApplyTemplateRequest| {
        let chat = Chat::take(&mut body.extra, body.messages.unwrap_or_default())?;
        field_rules::check("", &body.extra, field_rules::APPLY_TEMPLATE)?;
        model.resolve(body.model.as_deref())?;
        let rendering = chat.fields.rendering(&chat.messages)?;
        let prompt = model.render_chat(&chat.messages, &chat.tools.items, rendering)?;
        Ok(Json(ApplyTemplateResponse { prompt: &prompt.text() }).into_response())
    })
    .await
}

/// Reads a body and has `work` answer it, off the reactor where the body is long. The request
/// counts among its client's.
async fn answer<T: DeserializeOwned>(
    state: &AppState,
    headers: HeaderMap,
    body: RawBody,
    work: impl FnOnce(&ServedModel, T) -> Result<Response, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let arrival = Arrival::now(state)?;
    let work = |serving: &Serving, body| work(&serving.model, body);
    arrival.in_time(super::read_body(&arrival, headers, body, work)).await?
}

/// Returns the tokens of a text, as a raw prompt has them.
fn text_tokens(
    model: &ServedModel,
    param: &str,
    text: &str,
    start: TextStart,
) -> Result<Vec<TokenId>, ApiError> {
    let prefix = model.tokenizer.prompt_prefix();
    let mut tokens = match text {
        // The routes that run the model refuse it, so that no tokenizer is asked for its tokens.
        "" => prefix.to_vec(),
        text => model.encode_text(param, text)?,
    };
    if start == TextStart::Text {
        tokens.drain(..prefix.len());
    }
    Ok(tokens)
}

/// A conversation and how it is rendered.
struct Chat {
    messages: Vec<Value>,
    tools: Tools,
    fields: RenderingFields,
}

impl Chat {
    /// Takes what a chat request says beside its messages out of `extra`.
    fn take(
        extra: &mut BTreeMap<String, Value>,
        messages: Vec<ChatMessage>,
    ) -> Result<Self, ApiError> {
        let tools = Tools::take(extra)?;
        let fields = RenderingFields::take(extra)?;
        let messages = validation::messages(Some(messages))?;
        Ok(Self { messages, tools, fields })
    }
}
