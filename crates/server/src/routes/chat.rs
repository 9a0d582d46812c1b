//! `POST /v1/chat/completions`.

use crate::chat_rendering::RenderingFields;
use crate::generation::{Generation, GenerationEvent, TextDelta};
use crate::json_body::{self, RawBody};
use crate::output_rule::OutputRule;
use crate::prefix_sharing::PrefixSharing;
use crate::served_model::AskedModel;
use crate::sse::{self, ChunkFormat};
use crate::state::{AppState, Serving, unix_time};
use crate::submission::{Arrival, Submission};
use crate::token_text::TokenText;
use crate::validation::{self, Delivery, SamplingContext, StreamUsage};
use crate::wire::chat::{
    AssistantMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatLogprobs, ChatRequest,
    ChatResponse, ChatTokenLogprob, ChatTopLogprob,
};
use crate::wire::error::ApiError;
use crate::wire::field_rules;
use crate::wire::sampler_fields::SamplerFields;
use crate::wire::shared::WireFinishReason;
use crate::wire::usage::Usage;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use mini_infer_text::OutputStart;

/// What a validated body asks for.
struct ChatPlan {
    model: String,
    delivery: Delivery,
    has_logprobs: bool,
    submission: Submission,
    rule: Option<OutputRule>,
}

/// Answers a conversation, whole or as a stream.
pub(super) async fn create(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let arrival = Arrival::now(&state)?;
    let limit_bytes = state.config().max_body_bytes;
    let num_body_bytes = body.as_ref().map_or(0, |body| body.len());
    let (serving, fallback_seed) = (arrival.serving(), state.seeds().next_seed());
    let mut plan = super::off_the_reactor(num_body_bytes, move || {
        let body = json_body::parse(&headers, body, limit_bytes)?;
        plan(&serving, body, fallback_seed)
    })
    .await?;
    let id = state.response_id("chatcmpl");
    if let Some(rule) = plan.rule.take() {
        let grammars = &arrival.serving().model.grammars;
        plan.submission.constraint = Some(rule.compile(grammars).await?);
    }
    let generation = Generation::start(arrival, plan.submission).await?;
    let (model, created) = (plan.model, unix_time());
    match plan.delivery {
        Delivery::Whole => whole(id, created, model, plan.has_logprobs, generation).await,
        Delivery::Stream(usage) => {
            let format = ChatFormat { id, created, model, has_logprobs: plan.has_logprobs, usage };
            Ok(sse::response(generation, format, usage, state.config().ping_interval))
        }
    }
}

/// Validates a body and turns its conversation into tokens.
fn plan(serving: &Serving, mut body: ChatRequest, seed: u64) -> Result<ChatPlan, ApiError> {
    let rendering = RenderingFields::take(&mut body.extra)?;
    let sampler = SamplerFields::take(&mut body.extra)?;
    field_rules::check("", &body.extra, field_rules::CHAT)?;
    let model = &serving.model;
    let AskedModel { name, adapter } = model.resolve(body.model.as_deref())?;
    let delivery = validation::delivery(body.stream, body.stream_options.take())?;
    let requested = validation::max_tokens(body.max_tokens, body.max_completion_tokens)?;
    let sharing = PrefixSharing::new(body.cache_salt.as_deref(), body.cache_prompt)?;
    let sharing = sharing.on(adapter.as_ref());
    let logprobs = validation::chat_logprobs(body.logprobs, body.top_logprobs)?;
    let rule = OutputRule::read(body.take_output_fields())?;
    let mut fields = body.take_sampling();
    let stop = validation::stop_strings(fields.stop.take())?;
    let mut sampling = validation::sampling_params(
        &fields,
        SamplingContext {
            max_tokens: requested.unwrap_or(model.max_model_len),
            logprobs,
            logprobs_field: "top_logprobs",
            fallback_seed: seed,
            stop_token_ids: &model.stop_token_ids,
        },
    )?;
    let text = sampler.apply(&mut sampling, model.tokens())?;
    let messages = validation::messages(body.messages.take())?;
    let rendering = rendering.rendering(&messages)?;
    // A constrained output is text to the byte, so a space at its start is its own.
    let start = match &rule {
        None => rendering.output_start(),
        Some(_) => OutputStart::Continuation,
    };
    let prompt = model.encode_chat(&messages, rendering)?;
    let max_model_len = model.max_model_len;
    sampling.max_tokens =
        validation::fit_context("messages", prompt.len(), requested, None, max_model_len)?;
    validation::check_again(&sampling)?;
    let submission = Submission {
        prompts: vec![prompt],
        num_choices_per_prompt: sampling.n,
        sampling,
        stop,
        text,
        sharing,
        adapter: adapter.map(|loaded| loaded.adapter),
        constraint: None,
        start,
    };
    Ok(ChatPlan { model: name, delivery, has_logprobs: logprobs.is_some(), submission, rule })
}

/// Collects a generation into one response.
async fn whole(
    id: String,
    created: u64,
    model: String,
    has_logprobs: bool,
    mut generation: Generation,
) -> Result<Response, ApiError> {
    let empty = |index| ChatChoice {
        index,
        message: AssistantMessage { role: "assistant", content: String::new(), refusal: None },
        logprobs: has_logprobs.then(|| chat_logprobs(Vec::new())),
        finish_reason: WireFinishReason::Length,
    };
    let mut choices: Vec<ChatChoice> = (0..generation.num_choices()).map(empty).collect();
    while let Some(event) = generation.next().await? {
        match event {
            GenerationEvent::Text(delta) => {
                let choice = &mut choices[delta.choice];
                choice.message.content.push_str(&delta.piece.text);
                if let Some(logprobs) = &mut choice.logprobs {
                    logprobs.content.extend(delta.piece.tokens.into_iter().map(chat_logprob));
                }
            }
            GenerationEvent::Finished { choice, reason } => choices[choice].finish_reason = reason,
        }
    }
    let usage = generation.usage();
    let object = "chat.completion";
    Ok(Json(ChatResponse { id, object, created, model, choices, usage }).into_response())
}

fn chat_logprobs(tokens: Vec<TokenText>) -> ChatLogprobs {
    ChatLogprobs { content: tokens.into_iter().map(chat_logprob).collect(), refusal: None }
}

fn chat_logprob(token: TokenText) -> ChatTokenLogprob {
    let top_logprobs = token.top.into_iter().map(|(bytes, logprob)| top_logprob(bytes, logprob));
    ChatTokenLogprob {
        top_logprobs: top_logprobs.collect(),
        token: top_logprob(token.bytes, token.logprob),
    }
}

fn top_logprob(bytes: Vec<u8>, logprob: f32) -> ChatTopLogprob {
    ChatTopLogprob { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes }
}

/// Chunks of a chat stream.
struct ChatFormat {
    id: String,
    created: u64,
    model: String,
    has_logprobs: bool,
    usage: StreamUsage,
}

impl ChatFormat {
    fn chunk(&self, choices: Vec<ChatChunkChoice>, usage: Option<Option<Usage>>) -> Event {
        sse::chunk_event(&ChatChunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage,
        })
    }

    fn choice_chunk(&self, choice: ChatChunkChoice) -> Event {
        self.chunk(vec![choice], sse::usage_placeholder(self.usage))
    }
}

impl ChunkFormat for ChatFormat {
    fn opening(&self, index: usize) -> Option<Event> {
        let delta = ChatDelta { role: Some("assistant"), content: Some(String::new()) };
        let choice = ChatChunkChoice { index, delta, logprobs: None, finish_reason: None };
        Some(self.choice_chunk(choice))
    }

    fn text(&self, delta: TextDelta) -> Event {
        self.choice_chunk(ChatChunkChoice {
            index: delta.choice,
            delta: ChatDelta { role: None, content: Some(delta.piece.text) },
            logprobs: self.has_logprobs.then(|| chat_logprobs(delta.piece.tokens)),
            finish_reason: None,
        })
    }

    fn finish(&self, index: usize, reason: WireFinishReason) -> Event {
        let (delta, finish_reason) = (ChatDelta::default(), Some(reason));
        self.choice_chunk(ChatChunkChoice { index, delta, logprobs: None, finish_reason })
    }

    fn usage(&self, usage: Usage) -> Event {
        self.chunk(Vec::new(), Some(Some(usage)))
    }
}
