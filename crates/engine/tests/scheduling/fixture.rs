//! A small engine with a fake executor and a clock that moves by hand.

use mini_infer_core::{
    BlockSize, EngineEvent, Executor, FinishReason, ManualClock, PrefixCaching, Request, RequestId,
    SamplingParams, SequenceId, SequenceUsage, TokenId,
};
use mini_infer_engine::{
    BlockHashing, Engine, EngineConfig, FakeExecutor, KvAllocator, StepReport, TargetItl,
};
use std::collections::BTreeMap;

pub(crate) const VOCAB_SIZE: usize = 1000;

/// An engine with room for a few sequences.
pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        block_size: BlockSize::DEFAULT,
        num_blocks: 64,
        max_model_len: 512,
        max_num_seqs: 8,
        max_batched_tokens: 64,
        target_itl: TargetItl::Off,
        max_queue_len: 16,
        prefix_caching: PrefixCaching::On,
        block_hashing: BlockHashing::Chained,
        allocator: KvAllocator::Paged,
        window: None,
        content_hash: None,
    }
}

/// An engine and what it told.
pub(crate) struct Fixture<E = FakeExecutor> {
    pub(crate) engine: Engine<E, ManualClock>,
    pub(crate) clock: ManualClock,
    pub(crate) events: Vec<EngineEvent>,
}

impl Fixture {
    pub(crate) fn new(config: EngineConfig) -> Self {
        Self::with(config, |executor| executor)
    }

    /// With a fake executor that is changed first.
    pub(crate) fn with(
        config: EngineConfig,
        change: impl FnOnce(FakeExecutor) -> FakeExecutor,
    ) -> Self {
        let executor = FakeExecutor::new(VOCAB_SIZE, config.block_size, config.num_blocks);
        Self::on(config, change(executor), ManualClock::default())
    }
}

impl<E: Executor> Fixture<E> {
    /// With another executor, which may move the clock.
    pub(crate) fn on(config: EngineConfig, executor: E, clock: ManualClock) -> Self {
        let engine = Engine::new(config, executor, clock.clone()).unwrap();
        Self { engine, clock, events: Vec::new() }
    }

    pub(crate) fn submit(&mut self, request: Request) {
        self.engine.submit(request).unwrap();
    }

    pub(crate) fn step(&mut self) -> StepReport {
        let report = self.engine.step(&mut self.events);
        self.engine.check_invariants();
        report
    }

    pub(crate) fn run(&mut self) {
        while self.engine.has_work() {
            self.step();
        }
    }

    /// How many tokens of a request were told so far.
    pub(crate) fn num_tokens(&self, request: u64) -> usize {
        self.outputs().iter().filter(|(id, _)| id.request.0 == request).map(|(_, o)| o.len()).sum()
    }

    /// The tokens told so far.
    pub(crate) fn outputs(&self) -> BTreeMap<SequenceId, Vec<TokenId>> {
        let mut outputs: BTreeMap<SequenceId, Vec<TokenId>> = BTreeMap::new();
        for event in &self.events {
            if let EngineEvent::Token { sequence, token, .. } = event {
                outputs.entry(*sequence).or_default().push(*token);
            }
        }
        outputs
    }

    /// The tokens of one choice of a request.
    pub(crate) fn output(&self, request: u64, index: u32) -> Vec<TokenId> {
        let id = SequenceId { request: RequestId(request), index };
        self.outputs().remove(&id).unwrap_or_default()
    }

    /// The ends of sequences so far, in order.
    pub(crate) fn ends(&self) -> Vec<(u64, FinishReason, SequenceUsage)> {
        let end = |event: &EngineEvent| match event {
            EngineEvent::Finished { sequence, reason, usage } => {
                Some((sequence.request.0, reason.clone(), *usage))
            }
            EngineEvent::PromptLogprobs { .. }
            | EngineEvent::Embedding { .. }
            | EngineEvent::Token { .. } => None,
        };
        self.events.iter().filter_map(end).collect()
    }

    pub(crate) fn order_of_ends(&self) -> Vec<u64> {
        self.ends().into_iter().map(|(request, ..)| request).collect()
    }
}

/// A prompt of `length` tokens that shares no prefix with another id's.
pub(crate) fn prompt(id: u64, length: u64) -> Vec<TokenId> {
    (0..length).map(|i| TokenId::try_from((id * 131 + i * 7) % 1000).unwrap()).collect()
}

/// A request for the most likely tokens.
pub(crate) fn request(id: u64, prompt: Vec<TokenId>, max_tokens: u32) -> Request {
    Request::new(RequestId(id), prompt, SamplingParams::greedy(max_tokens))
}
