//! The inputs of one embedding request on their way through the engine.
//!
//! Each input is an engine request without output, so inputs share steps with each other and with
//! everybody else, and whatever else is served changes no bit of their vectors. They go in waves:
//! many inputs of one client must not fill the queue that others wait in. Their KV is kept for
//! nobody. Dropping the run drops the events' receiver, which is how the engine learns that the
//! client is gone.

use crate::engine_thread::SubmitFailure;
use crate::generation;
use crate::prefix_sharing::PrefixSharing;
use crate::state::LifeCycle;
use crate::submission::Arrival;
use crate::wire::error::ApiError;
use mini_infer_core::{
    Adapter, EngineEvent, FinishReason, Pooling, PrefixCaching, PromptReport, Request, RequestId,
    SamplingParams, TokenId,
};
use mini_infer_engine::SubmitError;
use tokio::sync::mpsc;

/// Inputs that one request has in the engine at once: as many sequences as run by default, which
/// fills its steps.
const MAX_WAVE: usize = 64;

/// What all inputs of a request have in common.
pub(crate) struct EmbeddingRun {
    /// The HTTP request.
    pub(crate) arrival: Arrival,
    /// How an input becomes one vector.
    pub(crate) pooling: Pooling,
    /// What changes the model.
    pub(crate) adapter: Option<Adapter>,
    /// The namespace that tells adapters apart.
    pub(crate) sharing: PrefixSharing,
}

impl EmbeddingRun {
    /// Returns the pooled hidden states of each input, in order, `[hidden_size]` each.
    ///
    /// # Errors
    /// Returns what ended the request early; what the engine took is aborted.
    pub(crate) async fn vectors(&self, inputs: &[Vec<TokenId>]) -> Result<Vec<Vec<f32>>, ApiError> {
        self.arrival.record.note_prompt(inputs.iter().map(Vec::len).sum());
        let mut vectors = Vec::with_capacity(inputs.len());
        let mut wave = MAX_WAVE;
        while vectors.len() < inputs.len() {
            let rest = &inputs[vectors.len()..];
            let asked = rest.len().min(wave);
            let found = self.wave(&rest[..asked]).await?;
            // Where the queue has no room for a whole wave, the next one is as large as that room.
            wave = if found.len() < asked { found.len() } else { (2 * wave).min(MAX_WAVE) };
            vectors.extend(found);
        }
        Ok(vectors)
    }

    /// Returns the vectors of the first of `inputs`: those that the queue has room for.
    async fn wave(&self, inputs: &[Vec<TokenId>]) -> Result<Vec<Vec<f32>>, ApiError> {
        let engine = self.arrival.serving().engine.clone();
        // Two events for each input.
        let (sender, mut events) = mpsc::channel(2 * inputs.len());
        let first = engine.reserve_requests(inputs.len() as u64);
        let mut pending = Vec::with_capacity(inputs.len());
        for (id, input) in (first.0..).zip(inputs) {
            let request = self.request(RequestId(id), input.clone());
            pending.push(engine.submit(request, sender.clone()).map_err(generation::refusal)?);
        }
        drop(sender);
        let mut num_taken = 0;
        for submit in pending {
            match self.arrival.in_time(submit.accepted()).await? {
                Ok(()) => num_taken += 1,
                Err(SubmitFailure::Refused(SubmitError::QueueFull { .. })) if num_taken > 0 => {
                    break;
                }
                Err(failure) => return Err(generation::refusal(failure)),
            }
        }
        self.collect(first, num_taken, &mut events).await
    }

    /// Waits for the vectors of the first `num_taken` requests.
    async fn collect(
        &self,
        first: RequestId,
        num_taken: usize,
        events: &mut mpsc::Receiver<EngineEvent>,
    ) -> Result<Vec<Vec<f32>>, ApiError> {
        let mut vectors = vec![Vec::new(); num_taken];
        let mut num_running = num_taken;
        while num_running > 0 {
            match self.arrival.in_time(events.recv()).await? {
                Some(EngineEvent::Embedding { sequence, values }) => {
                    let index = usize::try_from(sequence.request.0 - first.0);
                    let index = index.expect("requests of one wave have consecutive ids");
                    // What was taken behind a refusal is computed again.
                    if let Some(vector) = vectors.get_mut(index) {
                        *vector = values;
                    }
                }
                Some(EngineEvent::Finished { sequence, reason, .. }) => match reason {
                    FinishReason::Stop | FinishReason::Length => {
                        let is_counted = sequence.request.0 - first.0 < num_taken as u64;
                        num_running -= usize::from(is_counted);
                    }
                    FinishReason::Error(message) => return Err(ApiError::Engine { message }),
                    FinishReason::Abort => return Err(self.aborted()),
                },
                Some(EngineEvent::Token { .. } | EngineEvent::PromptLogprobs { .. }) => {
                    unreachable!("only embeddings were asked for")
                }
                None => return Err(self.aborted()),
            }
        }
        Ok(vectors)
    }

    fn request(&self, id: RequestId, input: Vec<TokenId>) -> Request {
        Request {
            report: PromptReport::Embedding(self.pooling),
            client: self.arrival.state.client_limits().number(self.arrival.record.client()),
            namespace: self.sharing.namespace,
            adapter: self.adapter.clone(),
            prefix_caching: PrefixCaching::Off,
            ..Request::new(id, input, SamplingParams::greedy(0))
        }
    }

    /// Returns the error for inputs that were aborted while their client still waits.
    fn aborted(&self) -> ApiError {
        match self.arrival.state.life_cycle() {
            LifeCycle::ShuttingDown => ApiError::ShuttingDown,
            LifeCycle::Loading | LifeCycle::Ready | LifeCycle::Stalled => {
                ApiError::Engine { message: "the request was aborted".to_owned() }
            }
        }
    }
}
