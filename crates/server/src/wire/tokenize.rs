//! `POST /tokenize`, `POST /detokenize` and `POST /apply-template` on the wire.
//!
//! Fields have vLLM's names; llama.cpp's `content` is understood besides `prompt`. Answers carry
//! the fields of both.

use super::chat::ChatMessage;
use super::error::ApiError;
use super::extra_fields;
use super::field_rules::{self, FieldRule};
use super::tool_schemas;
use crate::chat_rendering::RenderingFields;
use mini_infer_core::TokenId;
use mini_infer_text::Tokenizer;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// Fields that only a conversation has.
const CHAT_FIELDS: [&str; 6] = [
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "parallel_tool_calls",
    "tool_choice",
    "tools",
];

/// Asks for the tokens of a text or of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct TokenizeRequest {
    /// The model, or an adapter of it; absent, the served model.
    pub(crate) model: Option<String>,
    /// Gives the text of each token, too.
    pub(crate) return_token_strs: Option<bool>,
    /// A text.
    prompt: Option<String>,
    /// A text, as llama.cpp calls it.
    content: Option<String>,
    /// A conversation.
    #[schemars(length(min = 1))]
    messages: Option<Vec<ChatMessage>>,
    /// `false`: without the token that begins every prompt; goes with `prompt`.
    add_special_tokens: Option<bool>,
    /// `true`: with the token that begins every prompt; goes with `content`.
    add_special: Option<bool>,
    #[serde(flatten)]
    #[schemars(schema_with = "tokenize_extra_schema")]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// What is to be tokenized.
#[derive(Debug)]
pub(crate) enum TokenSource {
    /// A text as it is.
    Text {
        /// The field that it stands in.
        param: &'static str,
        text: String,
        start: TextStart,
    },
    /// A conversation.
    Messages(Vec<ChatMessage>),
}

/// What the tokens of a text begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextStart {
    /// What every raw prompt of the model begins with.
    PromptPrefix,
    /// The text itself.
    Text,
}

impl TokenizeRequest {
    /// Takes out of the body what is to be tokenized.
    ///
    /// # Errors
    /// Refuses none or several at once, and fields that go with another one.
    pub(crate) fn take_source(&mut self) -> Result<TokenSource, ApiError> {
        let refuse = |param: &str, message: &str| Err(ApiError::invalid(param, message));
        let source = match (self.prompt.take(), self.content.take(), self.messages.take()) {
            (Some(text), None, None) => {
                let start = TextStart::new(self.add_special_tokens.unwrap_or(true));
                TokenSource::Text { param: "prompt", text, start }
            }
            (None, Some(text), None) => {
                let start = TextStart::new(self.add_special.unwrap_or(false));
                TokenSource::Text { param: "content", text, start }
            }
            (None, None, Some(messages)) => TokenSource::Messages(messages),
            _ => return refuse("prompt", "give one of `prompt`, `messages` and `content`"),
        };
        let is_content = matches!(source, TokenSource::Text { param: "content", .. });
        if is_content && self.add_special_tokens.is_some() {
            return refuse("add_special_tokens", "is `add_special` for `content`");
        }
        if !is_content && self.add_special.is_some() {
            return refuse("add_special", "goes with `content`; otherwise `add_special_tokens`");
        }
        if let TokenSource::Text { .. } = source {
            for name in CHAT_FIELDS {
                if self.extra.remove(name).is_some_and(|value| !value.is_null()) {
                    return refuse(name, "goes with `messages`");
                }
            }
        }
        Ok(source)
    }
}

impl TextStart {
    fn new(adds_special: bool) -> Self {
        if adds_special { Self::PromptPrefix } else { Self::Text }
    }
}

/// The tokens of a text or of a conversation.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TokenizeResponse<'a> {
    pub(crate) count: usize,
    pub(crate) max_model_len: u32,
    pub(crate) tokens: &'a [TokenId],
    /// The text of each token, if it was asked for.
    #[schemars(with = "Option<Vec<String>>")]
    pub(crate) token_strs: Option<TokenStrings<'a>>,
}

/// The text of each token, written when it is sent: as strings they would take many times the
/// body's memory.
pub(crate) struct TokenStrings<'a> {
    pub(crate) tokens: &'a [TokenId],
    pub(crate) tokenizer: &'a Tokenizer,
}

impl Serialize for TokenStrings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = |&id: &TokenId| self.tokenizer.token_bytes(id).unwrap_or_default();
        serializer.collect_seq(self.tokens.iter().map(|id| String::from_utf8_lossy(bytes(id))))
    }
}

/// Asks for the text of tokens.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct DetokenizeRequest {
    /// The model, or an adapter of it; absent, the served model.
    pub(crate) model: Option<String>,
    /// The tokens.
    #[schemars(with = "Vec<u32>")]
    pub(crate) tokens: Option<Vec<Value>>,
    #[serde(flatten)]
    #[schemars(skip)]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// The text of tokens, under the names that vLLM and llama.cpp have for it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DetokenizeResponse<'a> {
    pub(crate) prompt: &'a str,
    pub(crate) content: &'a str,
}

/// Asks for the prompt of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ApplyTemplateRequest {
    /// The model, or an adapter of it; absent, the served model.
    pub(crate) model: Option<String>,
    /// The conversation.
    #[schemars(required, length(min = 1))]
    pub(crate) messages: Option<Vec<ChatMessage>>,
    #[serde(flatten)]
    #[schemars(schema_with = "apply_template_extra_schema")]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// Describes the fields that are read out of the `extra` of [`TokenizeRequest`].
fn tokenize_extra_schema(generator: &mut SchemaGenerator) -> Schema {
    rendering_schema(generator, field_rules::TOKENIZE)
}

/// Describes the fields that are read out of the `extra` of [`ApplyTemplateRequest`].
fn apply_template_extra_schema(generator: &mut SchemaGenerator) -> Schema {
    rendering_schema(generator, field_rules::APPLY_TEMPLATE)
}

fn rendering_schema(generator: &mut SchemaGenerator, rules: &[(&str, FieldRule)]) -> Schema {
    let rendering = RenderingFields::json_schema(generator);
    let tools = tool_schemas::request_fields(generator);
    extra_fields::merged([rendering, tools, field_rules::schema(rules)])
}

/// The prompt of a conversation.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ApplyTemplateResponse<'a> {
    pub(crate) prompt: &'a str,
}
