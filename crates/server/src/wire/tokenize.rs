//! `POST /tokenize`, `POST /detokenize` and `POST /apply-template` on the wire.
//!
//! Fields have vLLM's names; llama.cpp's `content` is understood besides `prompt`. Answers carry
//! the fields of both.

use super::chat::ChatMessage;
use super::error::ApiError;
use mini_infer_core::TokenId;
use mini_infer_text::Tokenizer;
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
#[derive(Debug, Deserialize)]
pub(crate) struct TokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) return_token_strs: Option<bool>,
    prompt: Option<String>,
    content: Option<String>,
    messages: Option<Vec<ChatMessage>>,
    add_special_tokens: Option<bool>,
    add_special: Option<bool>,
    #[serde(flatten)]
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
#[derive(Serialize)]
pub(crate) struct TokenizeResponse<'a> {
    pub(crate) count: usize,
    pub(crate) max_model_len: u32,
    pub(crate) tokens: &'a [TokenId],
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
#[derive(Debug, Deserialize)]
pub(crate) struct DetokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) tokens: Option<Vec<Value>>,
    #[serde(flatten)]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// The text of tokens, under the names that vLLM and llama.cpp have for it.
#[derive(Serialize)]
pub(crate) struct DetokenizeResponse<'a> {
    pub(crate) prompt: &'a str,
    pub(crate) content: &'a str,
}

/// Asks for the prompt of a conversation.
#[derive(Debug, Deserialize)]
pub(crate) struct ApplyTemplateRequest {
    pub(crate) model: Option<String>,
    pub(crate) messages: Option<Vec<ChatMessage>>,
    #[serde(flatten)]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// The prompt of a conversation.
#[derive(Serialize)]
pub(crate) struct ApplyTemplateResponse<'a> {
    pub(crate) prompt: &'a str,
}
