//! A validated HTTP request on its way into the engine.

use crate::choice_output::OutputReading;
use crate::client_limits::ClientPlace;
use crate::prefix_sharing::PrefixSharing;
use crate::request_record::RequestRecord;
use crate::sampler_options::TextOptions;
use crate::state::{AppState, InFlight, Serving};
use crate::wire::error::ApiError;
use crate::wire::refusal::Refusal;
use mini_infer_core::{Adapter, OutputConstraint, SamplingParams, TokenId};
use mini_infer_text::OutputStart;
use std::sync::Arc;
use std::time::Instant;

/// An HTTP request that was let in: it counts as in flight until this is dropped.
pub(crate) struct Arrival {
    pub(crate) state: AppState,
    pub(crate) arrived_at: Instant,
    /// What is known about the request, for others than its client.
    pub(crate) record: Arc<RequestRecord>,
    serving: Arc<Serving>,
    _in_flight: InFlight,
    _place: Option<ClientPlace>,
}

impl Arrival {
    /// Lets a request in.
    ///
    /// # Errors
    /// Refuses while loading and while shutting down, and a client that has too many requests.
    ///
    /// # Panics
    /// Outside of a request.
    pub(crate) fn now(state: &AppState) -> Result<Self, ApiError> {
        // Counted before the check, so that a shutdown either refuses it or waits for it.
        let in_flight = state.enter_flight();
        let serving = state.serving()?;
        let record = RequestRecord::current().expect("a layer around all routes makes it");
        let place = state.client_limits().enter(record.client());
        let place = place.map_err(|limit| Refusal::TooManyRequests { limit })?;
        Ok(Self {
            state: state.clone(),
            arrived_at: record.arrived_at(),
            record,
            serving,
            _in_flight: in_flight,
            _place: place,
        })
    }

    /// Waits for `work` until the request's deadline.
    ///
    /// # Errors
    /// Returns what the client is told when the deadline has passed.
    pub(crate) async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, ApiError> {
        self.record.in_time(work).await
    }

    /// Returns the model that serves the request.
    pub(crate) fn serving(&self) -> Arc<Serving> {
        Arc::clone(&self.serving)
    }
}

/// What one HTTP request asks the engine for: `sampling.n` sequences of each prompt, of which
/// `num_choices_per_prompt` are wanted.
pub(crate) struct Submission {
    /// Prompts, each of them one engine request.
    pub(crate) prompts: Vec<Vec<TokenId>>,
    /// Sequences of each prompt that the client gets: the best ones, if not all.
    pub(crate) num_choices_per_prompt: u32,
    /// How each of them is continued.
    pub(crate) sampling: SamplingParams,
    /// Whether all do so with the seed in there.
    pub(crate) seeds: PromptSeeds,
    /// Strings that end a sequence.
    pub(crate) stop: Vec<String>,
    /// How its text is written.
    pub(crate) text: TextOptions,
    /// What changes the model.
    pub(crate) adapter: Option<Adapter>,
    /// With whom KV is shared; its namespace tells adapters apart.
    pub(crate) sharing: PrefixSharing,
    /// What the outputs must be.
    pub(crate) constraint: Option<OutputConstraint>,
    /// How outputs are told apart into answer, reasoning and calls; `None` takes all as text.
    pub(crate) reading: Option<OutputReading>,
    /// What the outputs follow.
    pub(crate) start: OutputStart,
}

/// What the prompts of one request are sampled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptSeeds {
    /// The seed that the client gave: each gets what it would get alone.
    Same,
    /// Seeds of their own, so that equal prompts get different outputs.
    Different,
}

impl PromptSeeds {
    /// Returns the choice for a request with this seed of the client's.
    pub(crate) fn of(given: Option<i64>) -> Self {
        if given.is_some() { Self::Same } else { Self::Different }
    }

    /// Returns the seed of the prompt with this index, where the first has `seed`.
    pub(crate) fn seed(self, seed: u64, prompt_index: u64) -> u64 {
        match self {
            Self::Same => seed,
            // The engine mixes seeds, so neighbours have nothing in common.
            Self::Different => seed.wrapping_add(prompt_index),
        }
    }
}
