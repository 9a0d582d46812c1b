//! An engine that runs the random model under constraints.

use crate::random_model::RandomModel;
use crate::vocabulary;
use mini_infer_core::{
    BlockSize, EngineEvent, FinishReason, ManualClock, PrefixCaching, Request, RequestId,
    SamplingParams,
};
use mini_infer_engine::{BlockHashing, Engine, EngineConfig, KvAllocator, TargetItl};
use mini_infer_grammar::{GrammarError, GrammarSource, Grammars};
use mini_infer_text::Tokenizer;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most tokens of an output.
const MAX_TOKENS: u32 = 700;

/// One output.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) reason: FinishReason,
}

/// Writes outputs under constraints.
pub(crate) struct RandomWriter {
    tokenizer: Arc<Tokenizer>,
    grammars: Grammars,
}

impl RandomWriter {
    pub(crate) fn new() -> Self {
        let tokenizer = vocabulary::tokenizer();
        let grammars = Grammars::new(Arc::clone(&tokenizer), vec![vocabulary::END], 2).unwrap();
        Self { tokenizer, grammars }
    }

    pub(crate) fn grammars(&self) -> &Grammars {
        &self.grammars
    }

    /// Writes an output for each seed, all side by side.
    pub(crate) fn write(
        &self,
        source: &GrammarSource,
        seeds: std::ops::Range<u64>,
    ) -> Result<Vec<Output>, GrammarError> {
        let constraint = self.grammars.compile(source)?;
        let mut engine = self.engine();
        for seed in seeds.clone() {
            let sampling = SamplingParams {
                temperature: 1.0,
                seed,
                stop_token_ids: vec![vocabulary::END],
                ..SamplingParams::greedy(MAX_TOKENS)
            };
            let prompt = vec![u32::try_from(seed % 200).unwrap()];
            let mut request = Request::new(RequestId(seed), prompt, sampling);
            request.constraint = Some(constraint.clone());
            engine.submit(request).unwrap();
        }
        let mut events = Vec::new();
        while engine.has_work() {
            engine.step(&mut events);
        }
        Ok(self.outputs(events))
    }

    fn engine(&self) -> Engine<RandomModel, ManualClock> {
        let config = EngineConfig {
            block_size: BlockSize::DEFAULT,
            num_blocks: 2_000,
            max_model_len: 1_000,
            max_num_seqs: 16,
            max_batched_tokens: 64,
            target_itl: TargetItl::Off,
            max_queue_len: 1_000,
            prefix_caching: PrefixCaching::Off,
            block_hashing: BlockHashing::Chained,
            allocator: KvAllocator::Paged,
            window: None,
            content_hash: None,
        };
        let model = RandomModel::new(&self.tokenizer, "\"}],:", &[vocabulary::END], 2.0);
        Engine::new(config, model, ManualClock::default()).unwrap()
    }

    fn outputs(&self, events: Vec<EngineEvent>) -> Vec<Output> {
        let mut tokens: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut outputs = Vec::new();
        for event in events {
            match event {
                EngineEvent::Token { sequence, token, .. } => {
                    tokens.entry(sequence).or_default().push(token);
                }
                EngineEvent::PromptLogprobs { .. } | EngineEvent::Embedding { .. } => {
                    panic!("nobody asked about the prompt")
                }
                EngineEvent::Finished { sequence, reason, .. } => {
                    let text =
                        self.tokenizer.detokenize(&tokens.remove(&sequence).unwrap_or_default());
                    outputs.push(Output { text, reason });
                }
            }
        }
        outputs
    }
}
