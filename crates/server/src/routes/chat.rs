//! `POST /v1/chat/completions`.

use crate::answer_rule::AnswerRule;
use crate::chat_rendering::RenderingFields;
use crate::choice_output::OutputReading;
use crate::choice_text::{Piece, PieceKind};
use crate::generation::{Generation, GenerationEvent, TextDelta};
use crate::json_body::RawBody;
use crate::output_rule::OutputRule;
use crate::prefix_sharing::PrefixSharing;
use crate::prompt_logprobs::{self, RankedPrompts};
use crate::sampler_options::TextOptions;
use crate::served_model::{AskedModel, ChatPrompt, ServedModel};
use crate::sse::{self, ChunkFormat};
use crate::state::{AppState, Serving, unix_time};
use crate::submission::{Arrival, PromptSeeds, Submission};
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
use crate::wire::tools::{
    CallIdStyle, CallIds, FunctionCall, FunctionDelta, ToolCall, ToolCallDelta, Tools,
};
use crate::wire::usage::Usage;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use mini_infer_core::{PromptReport, SamplingParams};
use mini_infer_text::{OutputFormat, OutputStart, ToolFormat};

/// What a validated body asks for.
pub(super) struct ChatPlan {
    pub(super) model: String,
    pub(super) delivery: Delivery,
    has_logprobs: bool,
    /// The content that a message opens with: `null` where it may have none.
    opening: Option<String>,
    pub(super) call_id_style: CallIdStyle,
    pub(super) submission: Submission,
    pub(super) rule: Option<AnswerRule>,
    /// What is to be told about the prompt.
    ranked: Option<RankedPrompts>,
    report: PromptReport,
}

impl ChatPlan {
    /// Compiles what the output must be, if it is constrained.
    ///
    /// # Errors
    /// Refuses what cannot be followed, naming its place.
    pub(super) async fn compile_rule(&mut self, serving: &Serving) -> Result<(), ApiError> {
        if let Some(rule) = self.rule.take() {
            self.submission.constraint = Some(rule.compile(&serving.model.grammars).await?);
        }
        Ok(())
    }
}

/// Answers a conversation, whole or as a stream.
pub(super) async fn create(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let arrival = Arrival::now(&state)?;
    let seed = state.seeds().next_seed();
    let plan = move |serving: &Serving, body| plan(serving, body, seed);
    let mut plan = super::read_body(&arrival, headers, body, plan).await?;
    let id = state.response_id("chatcmpl");
    plan.compile_rule(&arrival.serving()).await?;
    let generation = Generation::start_reporting(arrival, plan.submission, plan.report).await?;
    let head = AnswerHead {
        call_ids: CallIds::new(&id, plan.call_id_style),
        id,
        created: unix_time(),
        model: plan.model,
        has_logprobs: plan.has_logprobs,
        opening: plan.opening,
    };
    match plan.delivery {
        Delivery::Whole => whole(head, plan.ranked, generation).await,
        Delivery::Stream(usage) => {
            let format = ChatFormat { head, usage };
            Ok(sse::response(generation, format, usage, state.config().ping_interval))
        }
    }
}

/// Validates a body and turns its conversation into tokens.
///
/// # Errors
/// Refuses what is not served, naming the field.
pub(super) fn plan(
    serving: &Serving,
    mut body: ChatRequest,
    seed: u64,
) -> Result<ChatPlan, ApiError> {
    let model = &serving.model;
    let fields = ChatFields::read(model, &mut body, seed)?;
    let ChatFields { tools, rendering, asked, delivery, requested, num_ranked, .. } = fields;
    let ChatFields { sharing, rule, stop, mut sampling, text, .. } = fields;
    let AskedModel { name, adapter } = asked;
    let messages = validation::messages(body.messages.take())?;
    let rendering = rendering.rendering(&messages)?;
    // A constrained output is text to the byte, so a space at its start is its own.
    let start = match &rule {
        None => rendering.output_start(),
        Some(_) => OutputStart::Continuation,
    };
    let ChatPrompt { tokens: prompt, reasoning } =
        model.encode_chat(&messages, &tools.items, rendering)?;
    let is_text = rule.is_some() && tools.names.is_empty();
    let rule = AnswerRule::new(rule, &tools, &model.output_format, reasoning);
    // All of a constrained output is the answer where there are no calls to tell it from.
    let reading =
        if is_text { None } else { OutputReading::new(&model.output_format, tools, reasoning) };
    let reading = match rule.as_ref().and_then(AnswerRule::heads) {
        Some(heads) => reading.map(|reading| reading.told_by_heads(heads)),
        None => reading,
    };
    let opening = if reading.is_some() { None } else { Some(String::new()) };
    let call_id_style = call_id_style(&model.output_format);
    let max_model_len = model.max_model_len;
    sampling.max_tokens =
        validation::fit_context("messages", prompt.len(), requested, None, max_model_len)?;
    validation::check_again(&sampling)?;
    let prompts = vec![prompt];
    let ranked = num_ranked.map(|num| RankedPrompts::new(&model.tokenizer, &prompts, num));
    let report = prompt_logprobs::report(num_ranked);
    let submission = Submission {
        prompts,
        num_choices_per_prompt: sampling.n,
        sampling,
        seeds: PromptSeeds::Same,
        stop,
        text,
        sharing,
        adapter: adapter.map(|loaded| loaded.adapter),
        constraint: None,
        reading,
        start,
    };
    let has_logprobs = submission.sampling.logprobs.is_some();
    Ok(ChatPlan {
        model: name,
        delivery,
        has_logprobs,
        opening,
        call_id_style,
        submission,
        rule,
        ranked,
        report,
    })
}

/// Returns the number of tokens that a conversation has as a prompt, whether it fits the context or
/// not. What is not counted is judged all the same, as where the model runs.
///
/// # Errors
/// Refuses what is not served, naming the field.
pub(super) fn count_tokens(serving: &Serving, mut body: ChatRequest) -> Result<usize, ApiError> {
    let model = &serving.model;
    let ChatFields { tools, rendering, .. } = ChatFields::read(model, &mut body, 0)?;
    let messages = validation::messages(body.messages.take())?;
    let rendering = rendering.rendering(&messages)?;
    Ok(model.encode_chat(&messages, &tools.items, rendering)?.tokens.len())
}

/// Judges all of a body but its conversation, for one that asks nothing.
///
/// # Errors
/// Refuses what is not served, naming the field.
pub(super) fn check_fields(serving: &Serving, mut body: ChatRequest) -> Result<(), ApiError> {
    ChatFields::read(&serving.model, &mut body, 0).map(drop)
}

/// All of a body but its conversation, judged.
struct ChatFields {
    tools: Tools,
    rendering: RenderingFields,
    asked: AskedModel,
    delivery: Delivery,
    /// The output limit that the client set.
    requested: Option<u32>,
    /// How many likely tokens are told in each place of the prompt.
    num_ranked: Option<u32>,
    sharing: PrefixSharing,
    rule: Option<OutputRule>,
    stop: Vec<String>,
    /// With the whole context as limit where the client set none.
    sampling: SamplingParams,
    text: TextOptions,
}

impl ChatFields {
    /// Takes the fields out of a body.
    ///
    /// # Errors
    /// Refuses what is not served, naming the field.
    fn read(model: &ServedModel, body: &mut ChatRequest, seed: u64) -> Result<Self, ApiError> {
        let tools = Tools::take(&mut body.extra)?;
        let rendering = RenderingFields::take(&mut body.extra)?;
        let sampler = SamplerFields::take(&mut body.extra)?;
        field_rules::check("", &body.extra, field_rules::CHAT)?;
        let asked = model.resolve(body.model.as_deref())?;
        let delivery = validation::delivery(body.stream, body.stream_options.take())?;
        let num_ranked = prompt_logprobs::read(body.prompt_logprobs, delivery)?;
        let requested = validation::max_tokens(body.max_tokens, body.max_completion_tokens)?;
        let sharing = PrefixSharing::new(body.cache_salt.as_deref(), body.cache_prompt)?;
        let sharing = sharing.on(asked.adapter.as_ref());
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
        Ok(Self {
            tools,
            rendering,
            asked,
            delivery,
            requested,
            num_ranked,
            sharing,
            rule,
            stop,
            sampling,
            text,
        })
    }
}

/// Returns how calls are named; Mistral's templates take nothing but short names.
fn call_id_style(format: &OutputFormat) -> CallIdStyle {
    match format.tools() {
        Some(ToolFormat::Mistral) => CallIdStyle::Short,
        _ => CallIdStyle::Prefixed,
    }
}

/// What an answer is told with, whole or in chunks.
struct AnswerHead {
    id: String,
    created: u64,
    model: String,
    has_logprobs: bool,
    opening: Option<String>,
    call_ids: CallIds,
}

/// Collects a generation into one response.
async fn whole(
    head: AnswerHead,
    ranked: Option<RankedPrompts>,
    mut generation: Generation,
) -> Result<Response, ApiError> {
    let empty = |index| ChatChoice {
        index,
        message: AssistantMessage {
            role: "assistant",
            content: head.opening.clone(),
            refusal: None,
            reasoning_content: String::new(),
            tool_calls: Vec::new(),
        },
        logprobs: head.has_logprobs.then(|| chat_logprobs(Vec::new())),
        finish_reason: WireFinishReason::Length,
    };
    let mut choices: Vec<ChatChoice> = (0..generation.num_choices()).map(empty).collect();
    while let Some(event) = generation.next().await? {
        match event {
            GenerationEvent::Text(TextDelta { choice, piece }) => {
                let Piece { kind, text, tokens } = piece;
                let index = choice;
                let choice = &mut choices[choice];
                choice.message.add(kind, &text, |call| head.call_ids.id(index, call));
                if let Some(logprobs) = &mut choice.logprobs {
                    logprobs.content.extend(tokens.into_iter().map(chat_logprob));
                }
            }
            GenerationEvent::Finished { choice, reason } => choices[choice].finish_reason = reason,
        }
    }
    let AnswerHead { id, created, model, .. } = head;
    let usage = generation.usage();
    let object = "chat.completion";
    let scored = generation.take_scored_prompt();
    let prompt_logprobs =
        ranked.zip(scored).map(|(ranked, scored)| ranked.tell(scored.prompt, &scored.logprobs));
    let response = ChatResponse { id, object, created, model, choices, usage, prompt_logprobs };
    Ok(Json(response).into_response())
}

impl AssistantMessage {
    /// Adds a piece of the output; `id` names its calls.
    fn add(&mut self, kind: PieceKind, text: &str, id: impl Fn(usize) -> String) {
        match kind {
            PieceKind::Content => {
                self.content.get_or_insert_default().push_str(text);
            }
            PieceKind::Reasoning => self.reasoning_content.push_str(text),
            PieceKind::CallBegun { index, name } => self.tool_calls.push(ToolCall {
                id: id(index),
                kind: "function",
                function: FunctionCall { name, arguments: String::new() },
            }),
            PieceKind::Arguments { index } => {
                self.tool_calls[index].function.arguments.push_str(text);
            }
        }
    }
}

fn chat_logprobs(tokens: Vec<TokenText>) -> ChatLogprobs {
    ChatLogprobs { content: tokens.into_iter().map(chat_logprob).collect(), refusal: None }
}

/// Returns a token of the answer as clients see it.
pub(super) fn chat_logprob(token: TokenText) -> ChatTokenLogprob {
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
    head: AnswerHead,
    usage: StreamUsage,
}

impl ChatFormat {
    fn chunk(&self, choices: Vec<ChatChunkChoice>, usage: Option<Option<Usage>>) -> Event {
        sse::chunk_event(&ChatChunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            choices,
            usage,
        })
    }

    fn choice_chunk(&self, choice: ChatChunkChoice) -> Event {
        self.chunk(vec![choice], sse::usage_placeholder(self.usage))
    }

    fn delta(&self, choice: usize, kind: PieceKind, text: String) -> ChatDelta {
        let call = |index, id: Option<String>, name, arguments| ToolCallDelta {
            index,
            kind: id.is_some().then_some("function"),
            id,
            function: FunctionDelta { name, arguments },
        };
        let mut delta = ChatDelta::default();
        match kind {
            PieceKind::Content => delta.content = Some(Some(text)),
            PieceKind::Reasoning => delta.reasoning_content = Some(text),
            PieceKind::CallBegun { index, name } => {
                let id = self.head.call_ids.id(choice, index);
                delta.tool_calls = Some([call(index, Some(id), Some(name), String::new())]);
            }
            PieceKind::Arguments { index } => {
                delta.tool_calls = Some([call(index, None, None, text)]);
            }
        }
        delta
    }
}

impl ChunkFormat for ChatFormat {
    fn opening(&self, index: usize) -> Option<Event> {
        let content = Some(self.head.opening.clone());
        let delta = ChatDelta { role: Some("assistant"), content, ..ChatDelta::default() };
        let choice = ChatChunkChoice { index, delta, logprobs: None, finish_reason: None };
        Some(self.choice_chunk(choice))
    }

    fn text(&self, delta: TextDelta) -> Event {
        let TextDelta { choice: index, piece: Piece { kind, text, tokens } } = delta;
        self.choice_chunk(ChatChunkChoice {
            index,
            delta: self.delta(index, kind, text),
            logprobs: self.head.has_logprobs.then(|| chat_logprobs(tokens)),
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
