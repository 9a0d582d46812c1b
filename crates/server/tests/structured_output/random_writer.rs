//! A model without preferences, and an engine that runs it.

use crate::vocabulary;
use mini_infer_core::{
    Batch, BlockSize, EngineEvent, Executor, ExecutorError, FinishReason, KvTransfer, ManualClock,
    PrefixCaching, Request, RequestId, SamplingParams, mix64,
};
use mini_infer_engine::{BlockHashing, Engine, EngineConfig, KvAllocator, TargetItl};
use mini_infer_grammar::{GrammarError, GrammarSource, Grammars};
use mini_infer_text::Tokenizer;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most tokens of an output.
const MAX_TOKENS: u32 = 700;

/// Logits are a hash of the last token, its position and the sequence's first, and a little higher for
/// what closes a string, an object or a list, so that most outputs end.
struct RandomModel {
    closers: Vec<bool>,
}

impl Executor for RandomModel {
    fn vocab_size(&self) -> usize {
        self.closers.len()
    }

    fn transfer(&mut self, _transfers: &[KvTransfer]) {}

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        logits.clear();
        for &row in &batch.logits_rows {
            let (token, position) = (batch.tokens[row as usize], batch.positions[row as usize]);
            let state = mix64(u64::from(token) << 32 | u64::from(position));
            logits.extend(self.closers.iter().enumerate().map(|(id, closes)| {
                let uniform = (mix64(state ^ id as u64) >> 40) as f32 / (1_u32 << 24) as f32;
                4.0 * uniform + if *closes { 2.0 } else { 0.0 }
            }));
        }
        Ok(())
    }
}

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
        let ids = 0..u32::try_from(self.tokenizer.vocab_size()).unwrap();
        let closes = |id| {
            let bytes = self.tokenizer.token_bytes(id).unwrap();
            id == vocabulary::END || bytes.iter().all(|byte| b"\"}],:".contains(byte))
        };
        let model = RandomModel { closers: ids.map(closes).collect() };
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
