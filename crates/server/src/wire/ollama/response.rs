//! Answers and the lines of their streams.

use crate::request_record::RequestRecord;
use crate::token_text::TokenText;
use crate::wire::shared::WireFinishReason;
use crate::wire::usage::Usage;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Whose form an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerForm {
    /// `POST /api/chat`.
    Chat,
    /// `POST /api/generate`.
    Generate,
}

/// A line of a stream, or a whole answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaAnswer")]
pub(crate) struct Line<'a> {
    model: &'a str,
    created_at: String,
    #[serde(flatten)]
    body: Body,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<Logprob>,
    done: bool,
    #[serde(flatten)]
    ending: Option<Ending>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum Body {
    Chat {
        message: AssistantMessage,
    },
    Generate {
        response: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        thinking: String,
    },
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaAssistantMessage")]
struct AssistantMessage {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WholeCall>,
}

/// What an answer grew by.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    pub(crate) content: String,
    pub(crate) thinking: String,
    pub(crate) calls: Vec<WholeCall>,
    /// Empty where log probabilities are not asked for.
    pub(crate) logprobs: Vec<Logprob>,
}

impl Growth {
    /// Adds what follows.
    pub(crate) fn add(&mut self, next: Self) {
        self.content.push_str(&next.content);
        self.thinking.push_str(&next.thinking);
        self.calls.extend(next.calls);
        self.logprobs.extend(next.logprobs);
    }
}

impl<'a> Line<'a> {
    /// Returns the line that tells of a growth, the last one with an ending.
    pub(crate) fn new(
        model: &'a str,
        form: AnswerForm,
        growth: Growth,
        ending: Option<Ending>,
    ) -> Self {
        let Growth { content, thinking, calls: tool_calls, logprobs } = growth;
        let body = match form {
            AnswerForm::Chat => {
                let role = "assistant";
                Body::Chat { message: AssistantMessage { role, content, thinking, tool_calls } }
            }
            AnswerForm::Generate => Body::Generate { response: content, thinking },
        };
        let created_at = Timestamp::now().to_string();
        Self { model, created_at, body, logprobs, done: ending.is_some(), ending }
    }
}

/// A call of a tool.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaCall")]
pub(crate) struct WholeCall {
    pub(crate) id: String,
    pub(crate) function: WholeFunction,
}

/// What is called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaCalledFunction")]
pub(crate) struct WholeFunction {
    pub(crate) index: usize,
    pub(crate) name: String,
    /// An object.
    pub(crate) arguments: Value,
}

/// A token, its log probability and the most likely tokens in its place.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaLogprob")]
pub(crate) struct Logprob {
    #[serde(flatten)]
    token: TokenLogprob,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_logprobs: Vec<TokenLogprob>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaTokenLogprob")]
struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl From<TokenText> for Logprob {
    fn from(token: TokenText) -> Self {
        let of = |bytes: Vec<u8>, logprob| TokenLogprob {
            token: String::from_utf8_lossy(&bytes).into_owned(),
            logprob,
            bytes,
        };
        let top_logprobs = token.top.into_iter().map(|(bytes, logprob)| of(bytes, logprob));
        Self { top_logprobs: top_logprobs.collect(), token: of(token.bytes, token.logprob) }
    }
}

/// What only the last line holds.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Ending {
    done_reason: &'static str,
    #[serde(flatten)]
    measures: Option<Measures>,
}

/// What a request has cost, durations in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct Measures {
    /// From the request's arrival to now; the sum of the three others.
    total_duration: u64,
    /// Until the engine first ran it.
    load_duration: u64,
    prompt_eval_count: u32,
    /// From there to the first output token.
    prompt_eval_duration: u64,
    eval_count: u32,
    /// From there to now.
    eval_duration: u64,
}

impl Ending {
    /// Ends an answer that had nothing to generate.
    pub(crate) const LOADED: Self = Self { done_reason: "load", measures: None };

    /// Ends the answer to a request that has just been finished.
    pub(crate) fn new(reason: WireFinishReason, usage: Usage, record: &RequestRecord) -> Self {
        let progress = record.progress();
        let (arrived_at, now) = (record.arrived_at(), Instant::now());
        let admitted_at = progress.admitted_at.unwrap_or(arrived_at);
        let first_token_at = progress.first_token_at.unwrap_or(now).max(admitted_at);
        let measures = Measures {
            total_duration: nanoseconds(now - arrived_at),
            load_duration: nanoseconds(admitted_at - arrived_at),
            prompt_eval_count: usage.prompt_tokens,
            prompt_eval_duration: nanoseconds(first_token_at - admitted_at),
            eval_count: usage.completion_tokens,
            eval_duration: nanoseconds(now - first_token_at),
        };
        let done_reason = match reason {
            WireFinishReason::Stop | WireFinishReason::ToolCalls => "stop",
            WireFinishReason::Length => "length",
        };
        Self { done_reason, measures: Some(measures) }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
