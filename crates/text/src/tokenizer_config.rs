//! What `tokenizer_config.json` says beside `tokenizer.json`.
//!
//! Only the fields that decide over ids and chats: special tokens, BOS, and the chat template.

use crate::TokenizerError;
use serde::Deserialize;

/// The part of a `tokenizer_config.json` that matters for serving.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// Text of the token that begins a text.
    pub bos_token: Option<String>,
    /// Text of the token that ends a text.
    pub eos_token: Option<String>,
    /// Text of the token for what the vocabulary cannot express.
    pub unk_token: Option<String>,
    /// Text of the padding token.
    pub pad_token: Option<String>,
    /// Whether a prompt begins with BOS; `None` leaves it to `tokenizer.json`.
    pub add_bos_token: Option<bool>,
    /// The chat template, the one named `default` if there are several.
    pub chat_template: Option<String>,
}

#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    bos_token: Option<TokenText>,
    #[serde(default)]
    eos_token: Option<TokenText>,
    #[serde(default)]
    unk_token: Option<TokenText>,
    #[serde(default)]
    pad_token: Option<TokenText>,
    #[serde(default)]
    add_bos_token: Option<bool>,
    #[serde(default)]
    chat_template: Option<TemplateJson>,
}

/// A token is written as its text, or as an object with flags around it.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenText {
    Text(String),
    Object { content: String },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TemplateJson {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl TokenizerConfig {
    /// Reads the bytes of a `tokenizer_config.json`.
    ///
    /// # Errors
    /// Returns [`TokenizerError::Json`] when they are no JSON or a field has another type.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let config: ConfigJson = serde_json::from_slice(bytes)
            .map_err(|source| TokenizerError::Json { file: "tokenizer_config.json", source })?;
        let text = |token: Option<TokenText>| {
            token.map(|token| match token {
                TokenText::Text(text) | TokenText::Object { content: text } => text,
            })
        };
        let chat_template = match config.chat_template {
            Some(TemplateJson::One(template)) => Some(template),
            Some(TemplateJson::Named(templates)) => templates
                .into_iter()
                .find(|template| template.name == "default")
                .map(|template| template.template),
            None => None,
        };
        Ok(Self {
            bos_token: text(config.bos_token),
            eos_token: text(config.eos_token),
            unk_token: text(config.unk_token),
            pad_token: text(config.pad_token),
            add_bos_token: config.add_bos_token,
            chat_template,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_a_token_and_a_template_are_read() {
        let json = br#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>",
            "unk_token": null, "add_bos_token": true, "model_max_length": 1e30,
            "chat_template": [{"name": "tool_use", "template": "t"},
                              {"name": "default", "template": "d"}]}"#;
        let config = TokenizerConfig::from_json(json).unwrap();
        assert_eq!(config.bos_token.as_deref(), Some("<s>"));
        assert_eq!(config.eos_token.as_deref(), Some("</s>"));
        assert_eq!(config.unk_token, None);
        assert_eq!(config.add_bos_token, Some(true));
        assert_eq!(config.chat_template.as_deref(), Some("d"));
        assert_eq!(TokenizerConfig::from_json(b"{}").unwrap(), TokenizerConfig::default());
        assert!(TokenizerConfig::from_json(b"[").is_err());
    }
}
