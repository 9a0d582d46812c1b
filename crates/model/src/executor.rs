//! The model as the engine sees it: batches in, logits out.

use crate::ops::Ops;
use crate::transformer::Transformer;
use mini_infer_core::{Batch, Executor, ExecutorError, KvTransfer};

/// Runs batches through a transformer, and owns the KV that their slots name.
pub struct ModelExecutor<O: Ops> {
    transformer: Transformer<O>,
    kv: O::Kv,
}

impl<O: Ops> ModelExecutor<O> {
    /// Joins a transformer with KV storage, which must be made for the model's layers and heads.
    #[must_use]
    pub fn new(transformer: Transformer<O>, kv: O::Kv) -> Self {
        Self { transformer, kv }
    }

    /// Returns the transformer.
    #[must_use]
    pub fn transformer(&self) -> &Transformer<O> {
        &self.transformer
    }
}

impl<O: Ops> Executor for ModelExecutor<O> {
    fn vocab_size(&self) -> usize {
        self.transformer.config().vocab_size
    }

    fn transfer(&mut self, transfers: &[KvTransfer]) {
        assert!(transfers.is_empty(), "nothing is transferred yet");
    }

    /// See [`Executor::forward`].
    ///
    /// # Panics
    /// When the batch names tokens outside the vocabulary, positions beyond the length that the
    /// model was loaded for, or slots outside the KV storage: requests are checked before they
    /// become a batch.
    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        let vocab_size = self.vocab_size();
        let highest = batch.tokens.iter().max().copied().unwrap_or(0);
        assert!((highest as usize) < vocab_size, "token {highest} of {vocab_size}");
        let max_model_len = self.transformer.max_model_len();
        let last = batch.positions.iter().max().copied().unwrap_or(0);
        assert!((last as usize) < max_model_len, "position {last} of {max_model_len}");
        self.transformer.forward(batch, &mut self.kv, logits);
        Ok(())
    }
}
