//! A running HTTP request: the engine's events as text.
//!
//! Runs on the request's own task, never on the engine thread: detokenizes, looks for stop
//! strings, and tells the engine to end a sequence that met one. Dropping a generation drops the
//! event receiver, which is how the engine learns that the client is gone.

use crate::choice_output::{ChoiceOutput, OutputStatus};
use crate::choice_text::{ChoiceText, OutputText, Piece};
use crate::engine_thread::{EngineHandle, SubmitFailure};
use crate::state::LifeCycle;
use crate::submission::{Arrival, Submission};
use crate::validation;
use crate::wire::error::ApiError;
use crate::wire::shared::WireFinishReason;
use crate::wire::usage::Usage;
use mini_infer_core::{
    EngineEvent, FinishReason, PromptReport, RankedLogprobs, Request, RequestId, SamplingParams,
    SequenceId, SequenceUsage, TokenId, TokenLogprobs,
};
use mini_infer_engine::SubmitError;
use mini_infer_text::{StopText, Tokenizer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Events that wait for one sequence's client at most: how far a client may fall behind before
/// its request is aborted. The kernel's socket buffers come on top. A beam search tells all its
/// tokens at once, so its channel holds as many as there can be.
const MAX_EVENTS_PER_SEQUENCE: usize = 1024;

/// Something for the client.
#[derive(Debug)]
pub(crate) enum GenerationEvent {
    /// A choice's text grew.
    Text(TextDelta),
    /// A choice ended; no text of it follows.
    Finished { choice: usize, reason: WireFinishReason },
}

/// What a choice's text grew by.
#[derive(Debug, PartialEq)]
pub(crate) struct TextDelta {
    /// Index of the choice.
    pub(crate) choice: usize,
    /// The text and its tokens.
    pub(crate) piece: Piece,
}

/// The log probabilities of a prompt's tokens.
#[derive(Debug)]
pub(crate) struct ScoredPrompt {
    /// Number of the prompt.
    pub(crate) prompt: usize,
    /// Those of its tokens from the second on.
    pub(crate) logprobs: Vec<RankedLogprobs>,
}

/// A running HTTP request.
pub(crate) struct Generation {
    arrival: Arrival,
    engine: EngineHandle,
    events: mpsc::Receiver<EngineEvent>,
    first_request: RequestId,
    num_seqs_per_prompt: u32,
    num_choices_per_prompt: u32,
    /// Whether the text of a stop token is told.
    stop_text: StopText,
    /// Whether tokens come as they are generated, so that gaps between them mean something.
    has_gaps: bool,
    choices: Vec<Choice>,
    num_running: usize,
    ready: VecDeque<GenerationEvent>,
    scored_prompts: VecDeque<ScoredPrompt>,
    num_prompt_tokens: u32,
    num_output_tokens: u32,
    num_hit_tokens: u32,
    /// Output tokens inside reasoning, where that is looked for.
    num_reasoning_tokens: Option<u32>,
    has_first_token: bool,
}

/// One sequence and its text.
struct Choice {
    output: ChoiceOutput,
    stop_token_ids: Vec<TokenId>,
    num_output_tokens: u32,
    /// Sum of the log probabilities of the tokens counted above, where the engine tells them.
    logprob_sum: f64,
    has_ended: bool,
    first_token_at: Option<Instant>,
    last_token_at: Option<Instant>,
}

impl Choice {
    fn logprob_per_token(&self) -> f64 {
        self.logprob_sum / f64::from(self.num_output_tokens.max(1))
    }
}

impl Generation {
    /// Submits all prompts and waits until the engine took them.
    ///
    /// # Errors
    /// Refuses when the engine does; prompts that it already took are aborted.
    pub(crate) async fn start(arrival: Arrival, submission: Submission) -> Result<Self, ApiError> {
        Self::start_reporting(arrival, submission, PromptReport::Nothing).await
    }

    /// As [`Self::start`], and has `report` made on each prompt, which is no embedding.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) async fn start_reporting(
        arrival: Arrival,
        submission: Submission,
        report: PromptReport,
    ) -> Result<Self, ApiError> {
        let serving = arrival.serving();
        let engine = serving.engine.clone();
        arrival.record.note_prompt(submission.prompts.iter().map(Vec::len).sum());
        let choices = choices(&submission, &serving.model.tokenizer)?;
        let num_choices = choices.len();
        let stop_text = submission.text.stop_text;
        let Submission { prompts, num_choices_per_prompt, sampling, .. } = submission;
        let Submission { adapter, sharing, constraint, reading, seeds, .. } = submission;
        let num_events = match sampling.beam {
            Some(_) => sampling.max_tokens as usize + 1,
            None => MAX_EVENTS_PER_SEQUENCE,
        };
        let (sender, events) = mpsc::channel(num_choices * num_events);
        let first_request = engine.reserve_requests(prompts.len() as u64);
        let client = arrival.state.client_limits().number(arrival.record.client());
        let mut pending = Vec::with_capacity(prompts.len());
        let mut id = first_request;
        for (index, prompt) in (0..).zip(prompts) {
            let seed = seeds.seed(sampling.seed, index);
            let request = Request {
                report,
                client,
                namespace: sharing.namespace,
                adapter: adapter.clone(),
                constraint: constraint.clone(),
                prefix_caching: sharing.prefix_caching,
                ..Request::new(id, prompt, SamplingParams { seed, ..sampling.clone() })
            };
            pending.push(engine.submit(request, sender.clone()).map_err(refusal)?);
            id = RequestId(id.0 + 1);
        }
        for submit in pending {
            arrival.in_time(submit.accepted()).await?.map_err(refusal)?;
        }
        Ok(Self {
            choices,
            arrival,
            engine,
            events,
            first_request,
            num_seqs_per_prompt: sampling.n,
            num_choices_per_prompt,
            stop_text,
            has_gaps: sampling.beam.is_none(),
            num_running: num_choices,
            ready: VecDeque::new(),
            scored_prompts: VecDeque::new(),
            num_prompt_tokens: 0,
            num_output_tokens: 0,
            num_hit_tokens: 0,
            num_reasoning_tokens: reading
                .is_some_and(|reading| reading.parser.looks_for_reasoning())
                .then_some(0),
            has_first_token: false,
        })
    }

    /// Takes the next prompt whose log probabilities are known: all of them are before the first
    /// event about one of its choices.
    pub(crate) fn take_scored_prompt(&mut self) -> Option<ScoredPrompt> {
        self.scored_prompts.pop_front()
    }

    /// Returns the number of choices, those that will not be kept included.
    pub(crate) fn num_choices(&self) -> usize {
        self.choices.len()
    }

    /// Returns how many choices of each prompt the client gets.
    pub(crate) fn num_choices_per_prompt(&self) -> usize {
        self.num_choices_per_prompt as usize
    }

    /// Returns which choices the client gets, in its order, once all have ended. Where more were
    /// generated than wanted, these are the ones of each prompt with the highest log probability
    /// per token, best first; of equal ones, the one generated first.
    pub(crate) fn kept_choices(&self) -> Vec<usize> {
        let num_seqs = self.num_seqs_per_prompt as usize;
        let num_kept = self.num_choices_per_prompt as usize;
        let mut kept = Vec::with_capacity(self.choices.len() / num_seqs * num_kept);
        for first in (0..self.choices.len()).step_by(num_seqs) {
            let mut indexes: Vec<usize> = (first..first + num_seqs).collect();
            if num_kept < num_seqs {
                let score = |i: usize| self.choices[i].logprob_per_token();
                indexes.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
            }
            kept.extend_from_slice(&indexes[..num_kept]);
        }
        kept
    }

    /// Returns the index among the request's stop strings of the one that ended a choice.
    pub(crate) fn stop_string(&self, choice: usize) -> Option<usize> {
        self.choices[choice].output.stop_string()
    }

    /// Returns the token counts; complete once [`Generation::next`] returned `None`.
    pub(crate) fn usage(&self) -> Usage {
        Usage::new(self.num_prompt_tokens, self.num_output_tokens, self.num_hit_tokens)
            .with_reasoning(self.num_reasoning_tokens)
    }

    /// Waits for the next thing to tell the client; `None` after the last one.
    ///
    /// # Errors
    /// Returns what ended the request early; nothing follows it.
    pub(crate) async fn next(&mut self) -> Result<Option<GenerationEvent>, ApiError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.num_running == 0 {
                return Ok(None);
            }
            let event = match self.arrival.in_time(self.events.recv()).await {
                Ok(event) => event,
                Err(error) => {
                    // Aborts the request at once, not when the client has read this.
                    self.events.close();
                    return Err(error);
                }
            };
            match event {
                Some(EngineEvent::Token { sequence, token, logprobs }) => {
                    self.take_token(sequence, token, logprobs.as_ref()).await;
                }
                Some(EngineEvent::PromptLogprobs { sequence, logprobs }) => {
                    let prompt = self.prompt_index(sequence);
                    self.scored_prompts.push_back(ScoredPrompt { prompt, logprobs });
                }
                Some(EngineEvent::Embedding { .. }) => {
                    unreachable!("a generation asks for no embedding")
                }
                Some(EngineEvent::Finished { sequence, reason, usage }) => {
                    self.take_finish(sequence, reason, usage)?;
                }
                None => return Err(self.aborted()),
            }
        }
    }

    async fn take_token(
        &mut self,
        sequence: SequenceId,
        token: TokenId,
        logprobs: Option<&TokenLogprobs>,
    ) {
        let index = self.choice_index(sequence);
        self.observe_token(index);
        let drops_stop = self.stop_text == StopText::Dropped;
        let choice = &mut self.choices[index];
        if choice.has_ended {
            return;
        }
        choice.num_output_tokens += 1;
        self.arrival.record.note_token(Instant::now());
        choice.logprob_sum += logprobs.map_or(0.0, |logprobs| f64::from(logprobs.chosen));
        if drops_stop && choice.stop_token_ids.contains(&token) {
            return;
        }
        let (pieces, status) = choice.output.push(token, logprobs);
        let num_output_tokens = choice.num_output_tokens;
        self.give(index, pieces);
        if status == OutputStatus::Ended {
            self.end_choice(index, WireFinishReason::Stop);
            self.engine.finish_sequence(sequence, num_output_tokens).await;
        }
    }

    fn take_finish(
        &mut self,
        sequence: SequenceId,
        reason: FinishReason,
        usage: SequenceUsage,
    ) -> Result<(), ApiError> {
        let index = self.choice_index(sequence);
        let reason = match reason {
            FinishReason::Stop => WireFinishReason::Stop,
            FinishReason::Length => WireFinishReason::Length,
            FinishReason::Abort => return Err(self.aborted()),
            FinishReason::Error(message) => return Err(ApiError::Engine { message }),
        };
        self.num_running -= 1;
        if sequence.index == 0 {
            self.num_prompt_tokens += usage.num_prompt_tokens;
            self.num_hit_tokens += usage.num_hit_tokens;
        }
        let choice = &mut self.choices[index];
        if let (Some(first), Some(last), true) =
            (choice.first_token_at, choice.last_token_at, self.has_gaps)
        {
            let num_gaps = usage.num_output_tokens.saturating_sub(1);
            self.arrival.state.metrics().latencies().observe_tpot(last - first, num_gaps);
        }
        self.num_output_tokens += choice.num_output_tokens;
        if let Some(num_reasoning_tokens) = &mut self.num_reasoning_tokens {
            *num_reasoning_tokens += choice.output.num_reasoning_tokens();
        }
        if !choice.has_ended {
            let (pieces, status) = choice.output.finish();
            let met_stop = status == OutputStatus::Ended;
            self.give(index, pieces);
            self.end_choice(index, if met_stop { WireFinishReason::Stop } else { reason });
        }
        if self.num_running == 0 {
            self.arrival.state.metrics().latencies().observe_e2e(self.arrival.arrived_at.elapsed());
        }
        Ok(())
    }

    fn give(&mut self, choice: usize, pieces: Vec<Piece>) {
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            self.ready.push_back(GenerationEvent::Text(TextDelta { choice, piece }));
        }
    }

    fn end_choice(&mut self, index: usize, reason: WireFinishReason) {
        let choice = &mut self.choices[index];
        choice.has_ended = true;
        let reason = choice.output.finish_reason(reason);
        self.ready.push_back(GenerationEvent::Finished { choice: index, reason });
    }

    /// Returns the index of a sequence among the choices of all prompts.
    fn choice_index(&self, sequence: SequenceId) -> usize {
        self.prompt_index(sequence) * self.num_seqs_per_prompt as usize + sequence.index as usize
    }

    /// Returns the number of the prompt that a sequence continues.
    fn prompt_index(&self, sequence: SequenceId) -> usize {
        usize::try_from(sequence.request.0 - self.first_request.0)
            .expect("requests of one generation have consecutive ids")
    }

    fn observe_token(&mut self, index: usize) {
        let now = Instant::now();
        let latencies = self.arrival.state.metrics().latencies();
        if !self.has_first_token {
            self.has_first_token = true;
            latencies.observe_ttft(now - self.arrival.arrived_at);
            if let Some(admitted_at) = self.arrival.record.progress().admitted_at {
                latencies.observe_queue(admitted_at - self.arrival.arrived_at);
            }
        }
        let choice = &mut self.choices[index];
        choice.first_token_at.get_or_insert(now);
        let last = choice.last_token_at.replace(now);
        if let (Some(last), true) = (last, self.has_gaps) {
            latencies.observe_itl(now - last);
        }
    }

    /// Returns the error for a request that was aborted while its client still listens.
    fn aborted(&self) -> ApiError {
        match self.arrival.state.life_cycle() {
            LifeCycle::ShuttingDown => ApiError::ShuttingDown,
            LifeCycle::Loading | LifeCycle::Ready | LifeCycle::Stalled => ApiError::Engine {
                message: "the request was aborted because its events were not read in time"
                    .to_owned(),
            },
        }
    }
}

/// Returns the choices of all prompts, before their first tokens.
fn choices(submission: &Submission, tokenizer: &Arc<Tokenizer>) -> Result<Vec<Choice>, ApiError> {
    let Submission { prompts, sampling, reading, .. } = submission;
    let output = OutputText {
        start: submission.start,
        stop: &submission.stop,
        num_unwatched_tokens: sampling.min_tokens,
        options: submission.text,
    };
    let choice = |_| {
        let text = ChoiceText::new(tokenizer, output);
        let text = text.map_err(|error| ApiError::invalid("stop", error.to_string()))?;
        Ok(Choice {
            output: ChoiceOutput::new(text, reading.clone()),
            stop_token_ids: sampling.stop_token_ids.clone(),
            num_output_tokens: 0,
            logprob_sum: 0.0,
            has_ended: false,
            first_token_at: None,
            last_token_at: None,
        })
    };
    (0..prompts.len() * sampling.n as usize).map(choice).collect()
}

/// Returns the answer to a request that did not reach the engine.
pub(crate) fn refusal(failure: SubmitFailure) -> ApiError {
    let error = match failure {
        SubmitFailure::Busy => return ApiError::QueueFull,
        SubmitFailure::Stopped => return ApiError::ShuttingDown,
        SubmitFailure::Refused(error) => error,
    };
    match error {
        SubmitError::QueueFull { .. } => ApiError::QueueFull,
        SubmitError::Params(error) => validation::param_error(&error, "logprobs"),
        SubmitError::BiasOutOfVocab { .. } => ApiError::invalid("logit_bias", error.to_string()),
        SubmitError::EmptyPrompt
        | SubmitError::PromptTooLong { .. }
        | SubmitError::TokenOutOfVocab { .. } => ApiError::invalid("prompt", error.to_string()),
        SubmitError::TooManyBeams { .. } | SubmitError::BeamsExceedVocab { .. } => {
            ApiError::invalid("best_of", error.to_string())
        }
        SubmitError::TooManyPromptLogprobs { .. } => {
            ApiError::invalid("logprobs", error.to_string())
        }
        SubmitError::NoOutput => ApiError::invalid("max_tokens", error.to_string()),
        SubmitError::ReportWithBeams => ApiError::invalid("use_beam_search", error.to_string()),
        SubmitError::ConstrainedBeams => ApiError::invalid("use_beam_search", error.to_string()),
        SubmitError::DuplicateId { .. } => ApiError::Engine { message: error.to_string() },
    }
}
