//! The device that runs a step.

use crate::{Batch, BlockId, BlockKey, KvTransfer, RowForm};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// Runs batches on a device and owns the KV bytes that their slots name.
pub trait Executor {
    /// Returns the number of logits in a row.
    fn vocab_size(&self) -> usize;

    /// Computes one step: writes the KV of every token of `batch` into its slot and replaces
    /// `logits` with `[num_logits_rows, vocab_size]` values, row-major, in the order of
    /// `batch.logits_rows`.
    ///
    /// A row's logits depend only on its sequence's tokens, never on the rest of the batch.
    ///
    /// # Errors
    /// Returns [`ExecutorError`] when the device failed; the KV of the batch's tokens is then
    /// undefined and `logits` must not be read.
    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError>;

    /// Returns the number of layers that [`Self::advance`] goes through.
    fn num_layers(&self) -> usize {
        1
    }

    /// Computes some layers of a step, of which one at a time can be on its way besides those of
    /// [`Self::forward`], with none of its sequences in them. Its first call takes the layers from 0
    /// on, forgetting a step that has not come to its end; each other one goes on where the last one
    /// stopped, with an equal `batch`. The call that computes the last layer replaces `logits` as
    /// `forward` would; the others leave them alone.
    ///
    /// # Errors
    /// As [`Self::forward`]; the step is then forgotten.
    fn advance(
        &mut self,
        batch: &Batch,
        layers: Range<usize>,
        logits: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        debug_assert_eq!(layers, 0..1, "whoever has more layers goes through them");
        self.forward(batch, logits)
    }

    /// Replaces `out` with some of the rows that the batch kept whose last layer was computed last,
    /// which are numbered in the order of `batch.kept_rows`: `[num_rows, width]`, row-major, the
    /// width being that of the form. May be called any number of times until the next call of
    /// [`Self::forward`] or [`Self::advance`], so that nobody has to hold all logits of a prompt at
    /// once.
    ///
    /// As with [`Self::forward`], a row depends on its sequence's tokens alone.
    ///
    /// # Errors
    /// When the device failed, or is one that keeps no rows.
    fn read_kept_rows(
        &mut self,
        rows: Range<usize>,
        form: RowForm,
        out: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        let _ = (rows, form, out);
        Err(ExecutorError { message: "this device keeps no rows of a step".to_owned() })
    }

    /// Calls `compute` once with each of `0..num_parts`, in any order, on the threads that the
    /// executor computes with; the work must not depend on which thread does it.
    fn compute_parts(&self, num_parts: usize, compute: &(dyn Fn(usize) + Sync)) {
        (0..num_parts).for_each(compute);
    }

    /// Moves KV, in order. A `Save` may be declined: tiers are a help and never a duty.
    fn transfer(&mut self, transfers: &[KvTransfer]);

    /// Tells whether the tier says that it holds `key`; cheap, and no promise.
    fn holds(&self, key: &BlockKey) -> bool {
        let _ = key;
        false
    }

    /// Fills `block` with what the tier holds under `key`; `false`, with the block's content
    /// undefined, when it is gone or damaged.
    fn restore(&mut self, key: &BlockKey, block: BlockId) -> bool {
        let _ = (key, block);
        false
    }

    /// Returns how long one [`Self::restore`] is expected to take.
    fn restore_time(&self) -> Duration {
        Duration::ZERO
    }
}

impl<E: Executor + ?Sized> Executor for &mut E {
    fn vocab_size(&self) -> usize {
        (**self).vocab_size()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        (**self).forward(batch, logits)
    }

    fn num_layers(&self) -> usize {
        (**self).num_layers()
    }

    fn advance(
        &mut self,
        batch: &Batch,
        layers: Range<usize>,
        logits: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        (**self).advance(batch, layers, logits)
    }

    fn read_kept_rows(
        &mut self,
        rows: Range<usize>,
        form: RowForm,
        out: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        (**self).read_kept_rows(rows, form, out)
    }

    fn compute_parts(&self, num_parts: usize, compute: &(dyn Fn(usize) + Sync)) {
        (**self).compute_parts(num_parts, compute);
    }

    fn transfer(&mut self, transfers: &[KvTransfer]) {
        (**self).transfer(transfers);
    }

    fn holds(&self, key: &BlockKey) -> bool {
        (**self).holds(key)
    }

    fn restore(&mut self, key: &BlockKey, block: BlockId) -> bool {
        (**self).restore(key, block)
    }

    fn restore_time(&self) -> Duration {
        (**self).restore_time()
    }
}

/// A step that the device could not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorError {
    /// What went wrong, for the log and the client.
    pub message: String,
}

impl fmt::Display for ExecutorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the forward pass failed: {}", self.message)
    }
}

impl std::error::Error for ExecutorError {}
