//! `POST /v1/completions`.

use crate::choice_search::SearchContext;
use crate::echo::Echo;
use crate::generation::{Generation, GenerationEvent, TextDelta};
use crate::json_body::{self, RawBody};
use crate::output_rule::OutputRule;
use crate::prefix_sharing::PrefixSharing;
use crate::served_model::{AskedModel, ServedModel};
use crate::sse::{self, ChunkFormat};
use crate::state::{AppState, Serving, unix_time};
use crate::submission::{Arrival, PromptSeeds, Submission};
use crate::token_text::TokenText;
use crate::validation::{self, Delivery, Prompt, SamplingContext, StreamUsage};
use crate::wire::completions::{
    CompletionChoice, CompletionLogprobs, CompletionRequest, CompletionResponse,
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
use mini_infer_core::TokenId;
use mini_infer_text::OutputStart;

/// The `object` of whole responses and chunks alike.
const OBJECT: &str = "text_completion";

/// What a validated body asks for.
struct CompletionPlan {
    model: String,
    delivery: Delivery,
    has_logprobs: bool,
    echo: Echo,
    submission: Submission,
    rule: Option<OutputRule>,
}

/// Continues prompts, whole or as a stream. The choice of sequence `i` of prompt `p` has the
/// index `p * n + i`.
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
    let format = CompletionFormat {
        id: state.response_id("cmpl"),
        created: unix_time(),
        model: plan.model,
        has_logprobs: plan.has_logprobs,
        echo: plan.echo,
    };
    if let Some(rule) = plan.rule.take() {
        let grammars = &arrival.serving().model.grammars;
        plan.submission.constraint = Some(rule.compile(grammars).await?);
    }
    let generation = Generation::start(arrival, plan.submission).await?;
    match plan.delivery {
        Delivery::Whole => whole(&format, generation).await,
        Delivery::Stream(usage) => {
            let format = CompletionStreamFormat { format, usage };
            Ok(sse::response(generation, format, usage, state.config().ping_interval))
        }
    }
}

/// Validates a body and turns its prompts into tokens.
fn plan(
    serving: &Serving,
    mut body: CompletionRequest,
    seed: u64,
) -> Result<CompletionPlan, ApiError> {
    let sampler = SamplerFields::take(&mut body.extra)?;
    field_rules::check("", &body.extra, field_rules::COMPLETIONS)?;
    let model = &serving.model;
    let AskedModel { name, adapter } = model.resolve(body.model.as_deref())?;
    let delivery = validation::delivery(body.stream, body.stream_options.take())?;
    let requested = validation::max_tokens(body.max_tokens, body.max_completion_tokens)?;
    let sharing = PrefixSharing::new(body.cache_salt.as_deref(), body.cache_prompt)?;
    let sharing = sharing.on(adapter.as_ref());
    let rule = OutputRule::read(body.take_output_fields())?;
    let mut fields = body.take_sampling();
    let stop = validation::stop_strings(fields.stop.take())?;
    let default = Some(validation::DEFAULT_COMPLETION_TOKENS);
    let mut sampling = validation::sampling_params(
        &fields,
        SamplingContext {
            max_tokens: requested.unwrap_or(validation::DEFAULT_COMPLETION_TOKENS),
            logprobs: body.logprobs,
            logprobs_field: "logprobs",
            fallback_seed: seed,
            stop_token_ids: &model.stop_token_ids,
        },
    )?;
    let text = sampler.apply(&mut sampling, model.tokens())?;
    let num_choices_per_prompt = sampling.n;
    body.search().apply(&mut sampling, SearchContext { delivery, stop: &stop })?;
    rule.as_ref().map_or(Ok(()), |rule| rule.check(&sampling))?;
    let prompts = validation::prompts(body.prompt.take(), model.vocab_size)?;
    let echo = if body.echo.unwrap_or(false) {
        Echo::new(&prompts, &model.tokenizer, body.logprobs, num_choices_per_prompt)?
    } else {
        Echo::default()
    };
    let suffix = body.suffix.as_deref().filter(|suffix| !suffix.is_empty());
    if suffix.is_some() && !body.ignores_eos() {
        sampling.stop_token_ids.extend(model.tokenizer.infill_end());
    }
    let prompts = encode(model, prompts, suffix)?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    sampling.max_tokens =
        validation::fit_context("prompt", longest, requested, default, model.max_model_len)?;
    validation::check_again(&sampling)?;
    let has_logprobs = body.logprobs.is_some();
    let submission = Submission {
        prompts,
        num_choices_per_prompt,
        sampling,
        seeds: PromptSeeds::of(fields.seed),
        stop,
        text,
        sharing,
        adapter: adapter.map(|loaded| loaded.adapter),
        constraint: None,
        reading: None,
        start: OutputStart::Continuation,
    };
    Ok(CompletionPlan { model: name, delivery, has_logprobs, echo, submission, rule })
}

/// Returns the tokens of prompts, the middle of which is to be filled where there is a suffix.
fn encode(
    model: &ServedModel,
    prompts: Vec<Prompt>,
    suffix: Option<&str>,
) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let encode = |prompt| match (prompt, suffix) {
        (Prompt::Text(text), None) => model.encode_text("prompt", &text),
        (Prompt::Text(text), Some(suffix)) => model.encode_infill(&text, suffix),
        (Prompt::Tokens(tokens), None) => Ok(tokens),
        (Prompt::Tokens(_), Some(_)) => {
            Err(ApiError::invalid("suffix", "needs prompts that are text"))
        }
    };
    prompts.into_iter().map(encode).collect()
}

/// Collects a generation into one response.
async fn whole(
    format: &CompletionFormat,
    mut generation: Generation,
) -> Result<Response, ApiError> {
    let empty = |index| CompletionChoice {
        index,
        text: String::new(),
        logprobs: format.has_logprobs.then(CompletionLogprobs::default),
        finish_reason: None,
    };
    let mut choices: Vec<CompletionChoice> = (0..generation.num_choices()).map(empty).collect();
    while let Some(event) = generation.next().await? {
        match event {
            GenerationEvent::Text(delta) => {
                let choice = &mut choices[delta.choice];
                choice.text.push_str(&delta.piece.text);
                if let Some(logprobs) = &mut choice.logprobs {
                    extend(logprobs, delta.piece.tokens);
                }
            }
            GenerationEvent::Finished { choice, reason } => {
                choices[choice].finish_reason = Some(reason);
            }
        }
    }
    let kept = generation.kept_choices().into_iter().enumerate();
    let kept = kept.map(|(index, i)| {
        let mut choice = std::mem::take(&mut choices[i]);
        choice.text.insert_str(0, format.echo.before(index));
        CompletionChoice { index, ..choice }
    });
    let usage = Some(Some(generation.usage()));
    Ok(Json(format.response(kept.collect(), usage)).into_response())
}

fn extend(logprobs: &mut CompletionLogprobs, tokens: Vec<TokenText>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for token in tokens {
        logprobs.tokens.push(text(&token.bytes));
        logprobs.token_logprobs.push(token.logprob);
        let top = token.top.iter().map(|(bytes, logprob)| (text(bytes), *logprob));
        logprobs.top_logprobs.push(top.collect());
        logprobs.text_offset.push(token.text_offset);
    }
}

/// What all parts of one response carry.
struct CompletionFormat {
    id: String,
    created: u64,
    model: String,
    has_logprobs: bool,
    echo: Echo,
}

impl CompletionFormat {
    fn response(
        &self,
        choices: Vec<CompletionChoice>,
        usage: Option<Option<Usage>>,
    ) -> CompletionResponse<'_> {
        CompletionResponse {
            id: &self.id,
            object: OBJECT,
            created: self.created,
            model: &self.model,
            choices,
            usage,
        }
    }
}

/// Chunks of a text completion stream.
struct CompletionStreamFormat {
    format: CompletionFormat,
    usage: StreamUsage,
}

impl CompletionStreamFormat {
    fn choice_chunk(&self, choice: CompletionChoice) -> Event {
        let usage = sse::usage_placeholder(self.usage);
        sse::chunk_event(&self.format.response(vec![choice], usage))
    }
}

impl ChunkFormat for CompletionStreamFormat {
    fn opening(&self, index: usize) -> Option<Event> {
        let text = self.format.echo.before(index);
        let choice = CompletionChoice { index, text: text.to_owned(), ..Default::default() };
        (!text.is_empty()).then(|| self.choice_chunk(choice))
    }

    fn text(&self, delta: TextDelta) -> Event {
        let logprobs = self.format.has_logprobs.then(|| {
            let mut logprobs = CompletionLogprobs::default();
            extend(&mut logprobs, delta.piece.tokens);
            logprobs
        });
        let (index, text) = (delta.choice, delta.piece.text);
        self.choice_chunk(CompletionChoice { index, text, logprobs, finish_reason: None })
    }

    fn finish(&self, index: usize, reason: WireFinishReason) -> Event {
        let (text, finish_reason) = (String::new(), Some(reason));
        self.choice_chunk(CompletionChoice { index, text, logprobs: None, finish_reason })
    }

    fn usage(&self, usage: Usage) -> Event {
        sse::chunk_event(&self.format.response(Vec::new(), Some(Some(usage))))
    }
}
