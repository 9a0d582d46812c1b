//! A validated HTTP request on its way into the engine.

use crate::choice_output::OutputReading;
use crate::prefix_sharing::PrefixSharing;
use crate::state::{AppState, InFlight, Serving};
use crate::wire::error::ApiError;
use mini_infer_core::{Adapter, SamplingParams, TokenId};
use mini_infer_text::OutputStart;
use std::sync::Arc;
use std::time::Instant;

/// An HTTP request that was let in: it counts as in flight until this is dropped.
pub(crate) struct Arrival {
    pub(crate) state: AppState,
    pub(crate) arrived_at: Instant,
    serving: Arc<Serving>,
    _in_flight: InFlight,
}

impl Arrival {
    /// Lets a request in.
    ///
    /// # Errors
    /// Refuses while loading and while shutting down.
    pub(crate) fn now(state: &AppState) -> Result<Self, ApiError> {
        // Counted before the check, so that a shutdown either refuses it or waits for it.
        let in_flight = state.enter_flight();
        let serving = state.serving()?;
        Ok(Self {
            state: state.clone(),
            arrived_at: Instant::now(),
            serving,
            _in_flight: in_flight,
        })
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
    /// Strings that end a sequence.
    pub(crate) stop: Vec<String>,
    /// What changes the model.
    pub(crate) adapter: Option<Adapter>,
    /// With whom KV is shared; its namespace tells adapters apart.
    pub(crate) sharing: PrefixSharing,
    /// How outputs are told apart into answer, reasoning and calls; `None` takes all as text.
    pub(crate) reading: Option<OutputReading>,
    /// What the outputs follow.
    pub(crate) start: OutputStart,
}
