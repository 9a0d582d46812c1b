//! The model as the engine sees it: batches in, logits out, and KV moved as it is told.

use crate::ops::Ops;
use crate::transformer::Transformer;
use mini_infer_core::{
    Batch, BlockId, BlockKey, BlockTier, Executor, ExecutorError, KvPart, KvTransfer, RowForm,
};
use std::ops::Range;
use std::time::Duration;

/// Runs batches through a transformer, and owns the KV that their slots name.
pub struct ModelExecutor<O: Ops> {
    transformer: Transformer<O>,
    kv: O::Kv,
    /// Where evicted blocks go, if anywhere.
    tier: Option<Box<dyn BlockTier>>,
    /// Bytes of the block that moves to or from the tier; kept to reuse its memory.
    scratch: Vec<u8>,
}

impl<O: Ops> ModelExecutor<O> {
    /// Joins a transformer with KV storage, which must be made for the model's layers and heads.
    #[must_use]
    pub fn new(transformer: Transformer<O>, kv: O::Kv) -> Self {
        Self { transformer, kv, tier: None, scratch: Vec::new() }
    }

    /// Keeps evicted blocks in `tier`.
    #[must_use]
    pub fn with_tier(mut self, tier: Box<dyn BlockTier>) -> Self {
        self.tier = Some(tier);
        self
    }

    /// Returns the transformer.
    #[must_use]
    pub fn transformer(&self) -> &Transformer<O> {
        &self.transformer
    }

    /// Checks what the operations rely on.
    ///
    /// # Panics
    /// As [`Executor::forward`] of this type says.
    fn check(&self, batch: &Batch) {
        let vocab_size = self.vocab_size();
        let highest = batch.tokens.iter().max().copied().unwrap_or(0);
        assert!((highest as usize) < vocab_size, "token {highest} of {vocab_size}");
        let max_model_len = self.transformer.max_model_len();
        let last = batch.positions.iter().max().copied().unwrap_or(0);
        assert!((last as usize) < max_model_len, "position {last} of {max_model_len}");
    }

    fn save(&mut self, block: BlockId, key: &BlockKey) {
        if let Some(tier) = &mut self.tier {
            let ops = self.transformer.ops();
            tier.save(key, ops.export_block(&self.kv, block, &mut self.scratch));
        }
    }

    /// Gives memory back in as few and as long stretches as possible: neighbours share the
    /// operating system's pages at their borders, and each stretch is a system call.
    fn discard(&mut self, transfers: &[KvTransfer]) {
        for wanted in [KvPart::FullAttention, KvPart::SlidingWindow] {
            let mut blocks: Vec<BlockId> = transfers
                .iter()
                .filter_map(|transfer| match *transfer {
                    KvTransfer::Discard { block, part } if part == wanted => Some(block),
                    KvTransfer::Discard { .. }
                    | KvTransfer::Copy { .. }
                    | KvTransfer::Save { .. } => None,
                })
                .collect();
            blocks.sort_unstable();
            blocks.dedup();
            for run in blocks.chunk_by(|a, b| a.0 + 1 == b.0) {
                let num_blocks = u32::try_from(run.len()).expect("ids are 32 bits wide");
                self.transformer.ops().discard(&mut self.kv, wanted, run[0], num_blocks);
            }
        }
    }
}

impl<O: Ops> Executor for ModelExecutor<O> {
    fn vocab_size(&self) -> usize {
        self.transformer.config().vocab_size
    }

    /// See [`Executor::forward`].
    ///
    /// # Panics
    /// When the batch names tokens outside the vocabulary, positions beyond the length that the
    /// model was loaded for, or slots outside the KV storage: requests are checked before they
    /// become a batch.
    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        self.check(batch);
        self.transformer.forward(batch, &mut self.kv, logits);
        Ok(())
    }

    fn num_layers(&self) -> usize {
        self.transformer.config().num_layers
    }

    fn advance(
        &mut self,
        batch: &Batch,
        layers: Range<usize>,
        logits: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        self.check(batch);
        self.transformer.advance(batch, layers, &mut self.kv, logits);
        Ok(())
    }

    fn read_kept_rows(
        &mut self,
        rows: Range<usize>,
        form: RowForm,
        out: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        self.transformer.read_kept_rows(rows, form, out);
        Ok(())
    }

    fn compute_parts(&self, num_parts: usize, compute: &(dyn Fn(usize) + Sync)) {
        self.transformer.ops().compute_parts(num_parts, compute);
    }

    fn transfer(&mut self, transfers: &[KvTransfer]) {
        let is_discard = |transfer: &KvTransfer| matches!(transfer, KvTransfer::Discard { .. });
        // Discards that follow one another go together, everything else by itself.
        for group in transfers.chunk_by(|a, b| is_discard(a) && is_discard(b)) {
            match group[0] {
                // The whole block: cheaper than picking slots out of every layer's strips, and
                // nobody reads the slots behind.
                KvTransfer::Copy { from, to, .. } => {
                    self.transformer.ops().copy_block(&mut self.kv, from, to);
                }
                KvTransfer::Save { block, key } => self.save(block, &key),
                KvTransfer::Discard { .. } => self.discard(group),
            }
        }
    }

    fn holds(&self, key: &BlockKey) -> bool {
        self.tier.as_ref().is_some_and(|tier| tier.holds(key))
    }

    fn restore(&mut self, key: &BlockKey, block: BlockId) -> bool {
        let Some(tier) = &mut self.tier else { return false };
        let ops = self.transformer.ops();
        self.scratch.resize(ops.block_bytes(&self.kv), 0);
        let is_restored = tier.restore(key, &mut self.scratch);
        if is_restored {
            ops.import_block(&mut self.kv, block, &self.scratch);
        }
        is_restored
    }

    fn restore_time(&self) -> Duration {
        self.tier.as_ref().map_or(Duration::ZERO, |tier| tier.restore_time())
    }
}
