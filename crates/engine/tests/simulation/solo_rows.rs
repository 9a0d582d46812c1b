//! Log probabilities of tokens that run alone, for references that know no engine.

use crate::scenario::{Scenario, SimEngine};
use mini_infer_core::{Adapter, EngineEvent, Request, RequestId, SamplingParams, TokenId};

/// Tells what may follow tokens that run alone.
pub(crate) struct SoloRows {
    engine: SimEngine,
    adapter: Option<Adapter>,
    num_asked: u64,
}

impl SoloRows {
    /// Prepares to run what a request of a scenario may know.
    pub(crate) fn new(scenario: &Scenario, request: &Request) -> Self {
        let adapter = request.adapter.clone();
        Self { engine: scenario.solo_engine(), adapter, num_asked: 0 }
    }

    /// Returns the log probabilities of all tokens after `prompt`, most likely first.
    pub(crate) fn logprobs_after(&mut self, prompt: Vec<TokenId>) -> Vec<(TokenId, f32)> {
        let all = Some(SamplingParams::MAX_LOGPROBS);
        let sampling = SamplingParams { logprobs: all, ..SamplingParams::greedy(1) };
        let adapter = self.adapter.clone();
        let request = Request::new(RequestId(self.num_asked), prompt, sampling);
        self.engine.submit(Request { adapter, ..request }).unwrap();
        self.num_asked += 1;
        let mut events = Vec::new();
        while self.engine.has_work() {
            self.engine.step(&mut events);
        }
        let EngineEvent::Token { logprobs, .. } = events.swap_remove(0) else {
            panic!("a token comes first");
        };
        logprobs.unwrap().top
    }
}
