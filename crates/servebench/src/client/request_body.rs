//! What is asked of the server, and the JSON for it.

use crate::results::{Endpoint, RunConfig};
use serde::Serialize;
use std::fmt;

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// Returns what the user says.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: Role::User, content: content.into() }
    }

    /// Returns what the model says.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self { role: Role::Assistant, content: content.into() }
    }
}

/// What all requests of a run have in common.
#[derive(Clone)]
pub struct RequestSpec {
    /// Base URL of the API, such as `http://127.0.0.1:8000/v1`.
    pub url: String,
    /// Name of the model.
    pub model: String,
    /// Which route.
    pub endpoint: Endpoint,
    /// Tokens of an output, where a prompt does not say.
    pub output_len: u32,
    /// Whether outputs are to have their full length. vLLM, SGLang and llama.cpp do so; servers
    /// that do not know the field ignore it.
    pub ignore_eos: bool,
    /// Sampling temperature.
    pub temperature: f64,
    /// Bearer token.
    pub api_key: Option<String>,
}

impl fmt::Debug for RequestSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestSpec")
            .field("url", &self.url)
            .field("model", &self.model)
            .field("endpoint", &self.endpoint)
            .field("output_len", &self.output_len)
            .field("ignore_eos", &self.ignore_eos)
            .field("temperature", &self.temperature)
            .field("api_key", &self.api_key.as_ref().map(|_| "(secret)"))
            .finish()
    }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    temperature: f64,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a [Message]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ignore_eos: Option<bool>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl RequestSpec {
    /// Returns what the requests of a run have in common.
    #[must_use]
    pub fn new(config: &RunConfig, api_key: Option<String>) -> Self {
        Self {
            url: config.url.clone(),
            model: config.model.clone(),
            endpoint: config.endpoint,
            output_len: config.output_len,
            ignore_eos: config.ignore_eos,
            temperature: config.temperature,
            api_key,
        }
    }

    /// Returns where requests go.
    #[must_use]
    pub fn full_url(&self) -> String {
        let route = match self.endpoint {
            Endpoint::Chat => "chat/completions",
            Endpoint::Completions => "completions",
        };
        format!("{}/{route}", self.url.trim_end_matches('/'))
    }

    /// Returns the JSON of a request. Completions get the messages as one text.
    #[must_use]
    pub fn body(&self, messages: &[Message], output_len: Option<u32>) -> Vec<u8> {
        let text = || messages.iter().map(|m| m.content.as_str()).collect::<Vec<_>>().join("\n");
        let (messages, prompt) = match self.endpoint {
            Endpoint::Chat => (Some(messages), None),
            Endpoint::Completions => (None, Some(text())),
        };
        let body = Body {
            model: &self.model,
            max_tokens: output_len.unwrap_or(self.output_len),
            temperature: self.temperature,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            messages,
            prompt,
            ignore_eos: self.ignore_eos.then_some(true),
        };
        serde_json::to_vec(&body).expect("strings and numbers always become JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn body(config: &RunConfig, messages: &[Message], output_len: Option<u32>) -> Value {
        let spec = RequestSpec::new(config, Some("secret".to_owned()));
        assert!(!format!("{spec:?}").contains("\"secret\""), "the key must not be printed");
        serde_json::from_slice(&spec.body(messages, output_len)).unwrap()
    }

    #[test]
    fn a_chat_request_carries_messages_and_its_own_length() {
        let config = RunConfig { model: "m".to_owned(), ..RunConfig::default() };
        let messages = [Message::user("a"), Message::assistant("b"), Message::user("c")];
        let expected = json!({
            "model": "m", "max_tokens": 9, "temperature": 0.0, "stream": true,
            "stream_options": {"include_usage": true}, "ignore_eos": true,
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ],
        });
        assert_eq!(body(&config, &messages, Some(9)), expected);
    }

    #[test]
    fn a_completion_carries_a_prompt_and_no_false_ignore_eos() {
        let config = RunConfig {
            endpoint: Endpoint::Completions,
            ignore_eos: false,
            output_len: 5,
            ..RunConfig::default()
        };
        let body = body(&config, &[Message::user("a")], None);
        assert_eq!(body["prompt"], "a");
        assert_eq!(body["max_tokens"], 5);
        assert!(body.get("messages").is_none() && body.get("ignore_eos").is_none());
    }
}
