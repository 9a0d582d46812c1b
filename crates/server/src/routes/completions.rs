//! `POST /v1/completions`.

use crate::choice_search::SearchContext;
use crate::echo::Echo;
use crate::generation::{Generation, GenerationEvent, ScoredPrompt, TextDelta};
use crate::json_body::RawBody;
use crate::output_rule::OutputRule;
use crate::prefix_sharing::PrefixSharing;
use crate::prompt_logprobs::{self, RankedPrompts};
use crate::served_model::{AskedModel, ServedModel};
use crate::sse::{self, ChunkFormat};
use crate::state::{AppState, Serving, unix_time};
use crate::submission::{Arrival, PromptSeeds, Submission};
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
use mini_infer_core::{PromptReport, SamplingParams, TokenId};
use mini_infer_text::OutputStart;
use std::collections::BTreeMap;
use std::iter;

/// The `object` of whole responses and chunks alike.
const OBJECT: &str = "text_completion";

/// What a validated body asks for.
pub(super) struct CompletionPlan {
    model: String,
    pub(super) delivery: Delivery,
    has_logprobs: bool,
    told: ToldPrompts,
    pub(super) submission: Submission,
    pub(super) rule: Option<OutputRule>,
}

/// What is to be told about the prompts.
struct ToldPrompts {
    echo: Echo,
    ranked: Option<RankedPrompts>,
    /// What has to be found out for both.
    report: PromptReport,
}

/// Continues prompts, whole or as a stream. The choice of sequence `i` of prompt `p` has the
/// index `p * n + i`.
pub(super) async fn create(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let arrival = Arrival::now(&state)?;
    let seed = state.seeds().next_seed();
    let plan = move |serving: &Serving, body| plan(serving, body, seed);
    let mut plan = super::read_body(&arrival, headers, body, plan).await?;
    let format = CompletionFormat {
        id: state.response_id("cmpl"),
        created: unix_time(),
        model: plan.model,
        has_logprobs: plan.has_logprobs,
        echo: plan.told.echo,
    };
    if let Some(rule) = plan.rule.take() {
        let grammars = &arrival.serving().model.grammars;
        plan.submission.constraint = Some(rule.compile(grammars).await?);
    }
    let generation =
        Generation::start_reporting(arrival, plan.submission, plan.told.report).await?;
    match plan.delivery {
        Delivery::Whole => whole(&format, plan.told.ranked, generation).await,
        Delivery::Stream(usage) => {
            let format = CompletionStreamFormat { format, usage };
            Ok(sse::response(generation, format, usage, state.config().ping_interval))
        }
    }
}

/// Validates a body and turns its prompts into tokens.
///
/// # Errors
/// Refuses what is not served, naming the field.
pub(super) fn plan(
    serving: &Serving,
    mut body: CompletionRequest,
    seed: u64,
) -> Result<CompletionPlan, ApiError> {
    let sampler = SamplerFields::take(&mut body.extra)?;
    field_rules::check("", &body.extra, field_rules::COMPLETIONS)?;
    let model = &serving.model;
    let AskedModel { name, adapter } = model.resolve(body.model.as_deref())?;
    let delivery = validation::delivery(body.stream, body.stream_options.take())?;
    let num_ranked = prompt_logprobs::read(body.prompt_logprobs, delivery)?;
    let requested = body.output_limit()?;
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
    let max_num_seqs = serving.engine.max_num_seqs();
    body.search().apply(&mut sampling, SearchContext { delivery, stop: &stop, max_num_seqs })?;
    rule.as_ref().map_or(Ok(()), |rule| rule.check(&sampling))?;
    let prompts = validation::prompts(body.prompt.take(), model.vocab_size)?;
    let mut echo = echo(&body, &prompts, model, num_choices_per_prompt);
    let suffix = body.suffix.as_deref().filter(|suffix| !suffix.is_empty());
    let num_echoed = body.echoed_logprobs();
    let report = prompt_logprobs::report(num_echoed.max(num_ranked));
    check_report(report, &body, &sampling, suffix)?;
    if suffix.is_some() && !body.ignores_eos() {
        sampling.stop_token_ids.extend(model.tokenizer.infill_end());
    }
    let prompts = encode(model, prompts, suffix)?;
    if let Some(num_top) = num_echoed {
        echo = echo.with_scores(&model.tokenizer, &prompts, num_top);
    }
    let ranked = num_ranked.map(|num| RankedPrompts::new(&model.tokenizer, &prompts, num));
    let told = ToldPrompts { echo, ranked, report };
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
    Ok(CompletionPlan { model: name, delivery, has_logprobs, told, submission, rule })
}

/// Returns what comes before the outputs.
fn echo(
    body: &CompletionRequest,
    prompts: &[Prompt],
    model: &ServedModel,
    num_choices_per_prompt: u32,
) -> Echo {
    match body.echo {
        Some(true) => Echo::new(prompts, &model.tokenizer, num_choices_per_prompt),
        Some(false) | None => Echo::default(),
    }
}

/// Checks what is to be told about each prompt.
///
/// # Errors
/// Refuses what does not go with log probabilities of prompts.
fn check_report(
    report: PromptReport,
    body: &CompletionRequest,
    sampling: &SamplingParams,
    suffix: Option<&str>,
) -> Result<(), ApiError> {
    if report == PromptReport::Nothing {
        return Ok(());
    }
    let refuse = |param, message: &str| Err(ApiError::invalid(param, message));
    if suffix.is_some() {
        return refuse("suffix", "does not go with log probabilities of prompts");
    }
    if sampling.beam.is_some() {
        return refuse("use_beam_search", "does not go with log probabilities of prompts");
    }
    if sampling.max_tokens == 0 && sampling.n > 1 {
        let param = if body.best_of().is_some() { "best_of" } else { "n" };
        return refuse(param, "must be 1 where `max_tokens` is 0");
    }
    Ok(())
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
    ranked: Option<RankedPrompts>,
    mut generation: Generation,
) -> Result<Response, ApiError> {
    let empty = |index| CompletionChoice {
        index,
        text: String::new(),
        logprobs: format.has_logprobs.then(CompletionLogprobs::default),
        finish_reason: None,
        prompt_logprobs: None,
    };
    let mut choices: Vec<CompletionChoice> = (0..generation.num_choices()).map(empty).collect();
    while let Some(event) = generation.next().await? {
        match event {
            GenerationEvent::Text(delta) => {
                let choice = &mut choices[delta.choice];
                choice.text.push_str(&delta.piece.text);
                if let Some(logprobs) = &mut choice.logprobs {
                    logprobs.extend(delta.piece.tokens, 0);
                }
            }
            GenerationEvent::Finished { choice, reason } => {
                choices[choice].finish_reason = Some(reason);
            }
        }
    }
    let scored: BTreeMap<usize, ScoredPrompt> =
        iter::from_fn(|| generation.take_scored_prompt().map(|it| (it.prompt, it))).collect();
    let all_kept = generation.kept_choices();
    let num_per_prompt = generation.num_choices_per_prompt();
    let kept = all_kept.into_iter().enumerate();
    let kept = kept.map(|(index, i)| {
        let mut choice = std::mem::take(&mut choices[i]);
        choice.text.insert_str(0, format.echo.before(index));
        let scored = scored.get(&(index / num_per_prompt));
        choice.prompt_logprobs = ranked
            .as_ref()
            .zip(scored)
            .map(|(ranked, scored)| ranked.tell(scored.prompt, &scored.logprobs));
        if let Some(ScoredPrompt { prompt, logprobs }) = scored.filter(|_| format.echo.is_scored())
        {
            let mut all = format.echo.logprobs(*prompt, logprobs);
            let mut of_output = choice.logprobs.take().unwrap_or_default();
            of_output.move_by(format.echo.output_offset(index));
            all.append(of_output);
            choice.logprobs = Some(all);
        }
        CompletionChoice { index, ..choice }
    });
    let usage = Some(Some(generation.usage()));
    Ok(Json(format.response(kept.collect(), usage)).into_response())
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
        let echo = &self.format.echo;
        let text = echo.before(index);
        let choice = CompletionChoice { index, text: text.to_owned(), ..Default::default() };
        (!text.is_empty() && !echo.is_scored()).then(|| self.choice_chunk(choice))
    }

    fn prompt(&self, scored: &ScoredPrompt) -> Vec<Event> {
        let echo = &self.format.echo;
        let chunk = |index| {
            let logprobs = Some(echo.logprobs(scored.prompt, &scored.logprobs));
            let text = echo.before(index).to_owned();
            self.choice_chunk(CompletionChoice { index, text, logprobs, ..Default::default() })
        };
        echo.choices_of(scored.prompt).map(chunk).collect()
    }

    fn text(&self, delta: TextDelta) -> Event {
        let logprobs = self.format.has_logprobs.then(|| {
            let mut logprobs = CompletionLogprobs::default();
            logprobs.extend(delta.piece.tokens, self.format.echo.output_offset(delta.choice));
            logprobs
        });
        let (index, text) = (delta.choice, delta.piece.text);
        self.choice_chunk(CompletionChoice { index, text, logprobs, ..Default::default() })
    }

    fn finish(&self, index: usize, reason: WireFinishReason) -> Event {
        let (text, finish_reason) = (String::new(), Some(reason));
        self.choice_chunk(CompletionChoice { index, text, finish_reason, ..Default::default() })
    }

    fn usage(&self, usage: Usage) -> Event {
        sse::chunk_event(&self.format.response(Vec::new(), Some(Some(usage))))
    }
}
