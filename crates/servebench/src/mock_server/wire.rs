//! The JSON of OpenAI's API, as far as the mock server speaks it.

use super::config::MockConfig;
use super::script::MockRequest;
use serde_json::{Value, json};

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// As `/v1/chat/completions` does.
    Chat,
    /// As `/v1/completions` does.
    Completions,
}

/// What a piece says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// So many tokens of reasoning.
    Reasoning(u32),
    /// So many tokens of the answer.
    Text(u32),
}

impl Part {
    fn text(self) -> String {
        match self {
            Self::Reasoning(num_tokens) => "think ".repeat(num_tokens as usize),
            Self::Text(num_tokens) => "tok ".repeat(num_tokens as usize),
        }
    }
}

impl Format {
    /// Tells whether messages, roles and reasoning exist.
    pub(super) fn is_chat(self) -> bool {
        self == Self::Chat
    }

    /// Returns what a stream sends before any token: real servers send the role, some of them also
    /// a piece without text.
    pub(super) fn opening(self, model: &str) -> String {
        if !self.is_chat() {
            return String::new();
        }
        let role = json!({"role": "assistant", "content": ""});
        let role = event(&self.envelope(model, &json!([choice("delta", &role, None)])));
        role + &self.chunk(model, Part::Text(0), None)
    }

    /// Returns one piece of a stream.
    pub(super) fn chunk(self, model: &str, part: Part, finish_reason: Option<&str>) -> String {
        let text = part.text();
        let choice = match (self, part) {
            (Self::Chat, Part::Reasoning(_)) => {
                choice("delta", &json!({"reasoning_content": text}), finish_reason)
            }
            (Self::Chat, Part::Text(_)) => {
                choice("delta", &json!({"content": text}), finish_reason)
            }
            (Self::Completions, _) => choice("text", &json!(text), finish_reason),
        };
        event(&self.envelope(model, &json!([choice])))
    }

    /// Returns a piece that is no JSON.
    pub(super) fn malformed(self) -> &'static str {
        "data: {this is not json\n\n"
    }

    /// Returns the piece with the numbers of tokens.
    pub(super) fn usage_chunk(self, config: &MockConfig, request: &MockRequest) -> String {
        let mut chunk = self.envelope(&config.model, &json!([]));
        chunk["usage"] = usage(config, request);
        event(&chunk)
    }

    /// Returns what ends a stream.
    pub(super) fn done(self) -> &'static str {
        "data: [DONE]\n\n"
    }

    /// Returns the answer to a request that is not streamed.
    pub(super) fn whole(self, config: &MockConfig, request: &MockRequest) -> Value {
        let num_tokens = request.num_output_tokens;
        let finish_reason = (!config.no_done).then_some("length");
        let choice = if self.is_chat() {
            let num_reasoning = config.reasoning_tokens.min(num_tokens);
            let mut message = json!({
                "role": "assistant",
                "content": Part::Text(num_tokens - num_reasoning).text(),
            });
            if num_reasoning > 0 {
                message["reasoning_content"] = json!(Part::Reasoning(num_reasoning).text());
            }
            choice("message", &message, finish_reason)
        } else {
            choice("text", &json!(Part::Text(num_tokens).text()), finish_reason)
        };
        let mut answer = self.envelope(&config.model, &json!([choice]));
        if self.is_chat() {
            answer["object"] = json!("chat.completion");
        }
        if config.send_usage {
            answer["usage"] = usage(config, request);
        }
        answer
    }

    fn envelope(self, model: &str, choices: &Value) -> Value {
        let object = if self.is_chat() { "chat.completion.chunk" } else { "text_completion" };
        json!({"id": "mock", "object": object, "created": 0, "model": model, "choices": choices})
    }
}

/// Returns an error as the API has it.
pub(super) fn error(message: &str, kind: &str, code: Option<&str>) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

/// Returns the list of models.
pub(super) fn models(config: &MockConfig) -> Value {
    let mut model = json!({"id": config.model, "object": "model", "owned_by": "mock-server"});
    if let Some(context_limit) = config.context_limit {
        model["max_model_len"] = json!(context_limit);
    }
    json!({"object": "list", "data": [model]})
}

fn choice(field: &str, content: &Value, finish_reason: Option<&str>) -> Value {
    json!({"index": 0, field: content, "finish_reason": finish_reason})
}

fn usage(config: &MockConfig, request: &MockRequest) -> Value {
    let (prompt, output) = (request.num_prompt_tokens, u64::from(request.num_output_tokens));
    let mut usage = json!({
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    });
    if let Some(cached_tokens) = config.cached_tokens {
        usage["prompt_tokens_details"] = json!({"cached_tokens": cached_tokens.min(prompt)});
    }
    if config.reasoning_tokens > 0 && request.format.is_chat() {
        let reasoning = u64::from(config.reasoning_tokens).min(output);
        usage["completion_tokens_details"] = json!({"reasoning_tokens": reasoning});
    }
    usage
}

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}
