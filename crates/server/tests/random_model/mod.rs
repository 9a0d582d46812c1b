//! A model without preferences: only what its outputs are constrained to makes sense of them.

use mini_infer_core::{Batch, Executor, ExecutorError, KvTransfer, TokenId, mix64};
use mini_infer_text::Tokenizer;

/// Logits are a hash of the last token and its position, and a little higher for what closes
/// strings, objects or lists, so that most outputs end.
pub(crate) struct RandomModel {
    /// What is added to each token's logit.
    biases: Vec<f32>,
}

impl RandomModel {
    /// Makes a model that likes tokens of `closers` alone more, and those of `ends`, by `bias`.
    pub(crate) fn new(tokenizer: &Tokenizer, closers: &str, ends: &[TokenId], bias: f32) -> Self {
        let ids = 0..TokenId::try_from(tokenizer.vocab_size()).unwrap();
        let closes = |id| {
            let bytes = tokenizer.token_bytes(id).unwrap();
            ends.contains(&id) || bytes.iter().all(|byte| closers.as_bytes().contains(byte))
        };
        Self { biases: ids.map(|id| if closes(id) { bias } else { 0.0 }).collect() }
    }
}

impl Executor for RandomModel {
    fn vocab_size(&self) -> usize {
        self.biases.len()
    }

    fn transfer(&mut self, _transfers: &[KvTransfer]) {}

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        logits.clear();
        for &row in &batch.logits_rows {
            let (token, position) = (batch.tokens[row as usize], batch.positions[row as usize]);
            let state = mix64(u64::from(token) << 32 | u64::from(position));
            logits.extend(self.biases.iter().enumerate().map(|(id, bias)| {
                let uniform = (mix64(state ^ id as u64) >> 40) as f32 / (1_u32 << 24) as f32;
                4.0 * uniform + bias
            }));
        }
        Ok(())
    }
}
