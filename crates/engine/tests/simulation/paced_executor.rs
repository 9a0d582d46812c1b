//! The fake executor with a step time of its own, which passes on the manual clock.

use mini_infer_core::{
    Batch, BlockId, BlockKey, Executor, ExecutorError, KvTransfer, ManualClock, RowForm,
};
use mini_infer_engine::FakeExecutor;
use std::ops::Range;
use std::time::Duration;

/// How long a step takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Whatever is in it.
    pub(crate) step: Duration,
    /// For each of its tokens.
    pub(crate) token: Duration,
}

/// An executor whose steps take time.
#[derive(Clone, Debug)]
pub(crate) struct PacedExecutor {
    pub(crate) inner: FakeExecutor,
    pub(crate) clock: ManualClock,
    pub(crate) pace: Pace,
}

impl Executor for PacedExecutor {
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        let num_tokens = u32::try_from(batch.num_tokens()).unwrap();
        self.clock.advance(self.pace.step + self.pace.token * num_tokens);
        self.inner.forward(batch, logits)
    }

    fn num_layers(&self) -> usize {
        self.inner.num_layers()
    }

    fn advance(
        &mut self,
        batch: &Batch,
        layers: Range<usize>,
        logits: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        let num_tokens = u32::try_from(batch.num_tokens()).unwrap();
        let share = layers.len() as f64 / self.num_layers() as f64;
        self.clock.advance((self.pace.step + self.pace.token * num_tokens).mul_f64(share));
        self.inner.advance(batch, layers, logits)
    }

    fn read_kept_rows(
        &mut self,
        rows: Range<usize>,
        form: RowForm,
        out: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        self.inner.read_kept_rows(rows, form, out)
    }

    fn transfer(&mut self, transfers: &[KvTransfer]) {
        self.inner.transfer(transfers);
    }

    fn holds(&self, key: &BlockKey) -> bool {
        self.inner.holds(key)
    }

    fn restore(&mut self, key: &BlockKey, block: BlockId) -> bool {
        self.inner.restore(key, block)
    }

    fn restore_time(&self) -> Duration {
        self.inner.restore_time()
    }
}
