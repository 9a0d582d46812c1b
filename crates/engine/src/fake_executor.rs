//! An executor without a model, which notices every mistake in KV bookkeeping.
//!
//! For each slot it keeps which token at which position was written, and a hash of the whole prefix
//! up to there. A step first writes the KV of all its tokens, then reads each sequence's context
//! back through its block table, as attention does, and asserts that every slot holds what follows
//! from the slot before. Logits are a function of that hash: a block that was overwritten,
//! mixed up or stale either fails an assertion or changes the output.
//!
//! Costs O(context) for each sequence of a step, and O(vocabulary) for each row of logits.

use mini_infer_core::{
    Batch, BlockSize, Executor, ExecutorError, KvTransfer, SequenceSpan, SlotId, TokenId, mix64,
};

/// A failure to be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The step with this number, counted from 0, fails after having written rubbish.
    StepFails {
        /// Number of the step.
        step: u64,
    },
    /// The first row of logits of the step with this number, counted from 0, is not finite.
    RowIsNotFinite {
        /// Number of the step.
        step: u64,
    },
}

/// What one slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stored {
    position: u32,
    token: TokenId,
    prefix: u64,
}

/// A slot that was never written, or by a step that failed.
const RUBBISH: Stored = Stored { position: u32::MAX, token: TokenId::MAX, prefix: 0 };

/// Range of the logits: wide enough for a clear favourite, narrow enough for surprises.
const LOGIT_RANGE: f32 = 8.0;

/// Computes hashes in place of a model.
#[derive(Clone, Debug)]
pub struct FakeExecutor {
    vocab_size: usize,
    block_size: BlockSize,
    slots: Vec<Stored>,
    num_steps: u64,
    fault: Option<Fault>,
}

impl FakeExecutor {
    /// Creates an executor for a pool of `num_blocks` blocks of `block_size` tokens.
    #[must_use]
    pub fn new(vocab_size: usize, block_size: BlockSize, num_blocks: u32) -> Self {
        let num_slots = num_blocks as usize * block_size.tokens() as usize;
        Self { vocab_size, block_size, slots: vec![RUBBISH; num_slots], num_steps: 0, fault: None }
    }

    /// Returns the executor with a failure to come.
    #[must_use]
    pub fn with_fault(self, fault: Fault) -> Self {
        Self { fault: Some(fault), ..self }
    }

    /// Writes the KV of one sequence's tokens; the prefix hash comes from the slot before.
    fn write(&mut self, batch: &Batch, span: SequenceSpan<'_>) {
        for row in span.first_row..span.first_row + span.num_tokens {
            let (token, position) = (batch.tokens[row], batch.positions[row]);
            let before = match position.checked_sub(1) {
                Some(last) => self.slots[self.slot_of(span, last).index()].prefix,
                None => 0,
            };
            assert_eq!(batch.slot_mapping[row], self.slot_of(span, position));
            self.slots[batch.slot_mapping[row].index()] =
                Stored { position, token, prefix: extend(before, token) };
        }
    }

    /// Reads one sequence's context as attention does and returns the hash of its prefix.
    fn read(&self, span: SequenceSpan<'_>) -> u64 {
        let mut prefix = 0;
        let mut position = 0;
        for &block in span.block_table {
            let first = self.block_size.slot(block, 0).index();
            let num_left = span.context_len - position as usize;
            let num_read = num_left.min(self.block_size.tokens() as usize);
            for stored in &self.slots[first..first + num_read] {
                assert_eq!(stored.position, position, "a slot holds another position");
                prefix = extend(prefix, stored.token);
                assert_eq!(stored.prefix, prefix, "position {position} follows another prefix");
                position += 1;
            }
        }
        assert_eq!(position as usize, span.context_len, "the block table is too short");
        prefix
    }

    fn slot_of(&self, span: SequenceSpan<'_>, position: u32) -> SlotId {
        let block = span.block_table[(position / self.block_size.tokens()) as usize];
        self.block_size.slot(block, position % self.block_size.tokens())
    }

    /// Appends the logits that follow a prefix.
    fn push_logits(&self, prefix: u64, logits: &mut Vec<f32>) {
        logits.extend((0..self.vocab_size as u64).map(|token| {
            // The upper 24 bits are exact in an f32.
            let bits = mix64(prefix ^ mix64(token)) >> 40;
            let share = bits as f32 / (1_u32 << 24) as f32;
            share * LOGIT_RANGE
        }));
    }
}

impl Executor for FakeExecutor {
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn transfer(&mut self, transfers: &[KvTransfer]) {
        assert!(transfers.is_empty(), "nothing is transferred yet");
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        batch.check_invariants(self.block_size);
        let step = self.num_steps;
        self.num_steps += 1;
        logits.clear();
        if self.fault == Some(Fault::StepFails { step }) {
            for slot in &batch.slot_mapping {
                self.slots[slot.index()] = RUBBISH;
            }
            return Err(ExecutorError { message: format!("fault injected into step {step}") });
        }
        for i in 0..batch.num_seqs() {
            self.write(batch, batch.sequence(i));
        }
        let mut rows = batch.logits_rows.iter().peekable();
        for i in 0..batch.num_seqs() {
            let span = batch.sequence(i);
            let prefix = self.read(span);
            let last_row = span.first_row + span.num_tokens - 1;
            if rows.next_if(|&&row| row as usize == last_row).is_some() {
                self.push_logits(prefix, logits);
            }
        }
        assert_eq!(rows.next(), None, "logits are wanted inside a chunk");
        if self.fault == Some(Fault::RowIsNotFinite { step }) && !logits.is_empty() {
            logits[self.vocab_size / 2] = f32::NAN;
        }
        Ok(())
    }
}

/// Extends the hash of a prefix by one token.
fn extend(prefix: u64, token: TokenId) -> u64 {
    mix64(prefix ^ mix64(u64::from(token) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_core::BlockId;

    const SIZE: BlockSize = BlockSize::DEFAULT;

    fn run(executor: &mut FakeExecutor, tokens: &[u32], start: u32, table: &[u32]) -> Vec<f32> {
        let table: Vec<BlockId> = table.iter().map(|&id| BlockId(id)).collect();
        let mut batch = Batch::default();
        batch.push_sequence(tokens, start, &table, SIZE, true);
        let mut logits = Vec::new();
        executor.forward(&batch, &mut logits).unwrap();
        logits
    }

    #[test]
    fn logits_depend_on_the_tokens_and_not_on_chunks_or_blocks() {
        let mut executor = FakeExecutor::new(9, SIZE, 4);
        let tokens: Vec<u32> = (0..20).collect();
        let whole = run(&mut executor, &tokens, 0, &[0, 1]);
        run(&mut executor, &tokens[..7], 0, &[3]);
        assert_eq!(run(&mut executor, &tokens[7..], 7, &[3, 2]), whole);
        let other: Vec<u32> = (1..21).collect();
        assert_ne!(run(&mut executor, &other, 0, &[0, 1]), whole);
    }

    #[test]
    #[should_panic(expected = "follows another prefix")]
    fn a_context_with_an_overwritten_slot_is_noticed() {
        let mut executor = FakeExecutor::new(9, SIZE, 1);
        run(&mut executor, &[1, 2, 3], 0, &[0]);
        run(&mut executor, &[7], 0, &[0]);
        run(&mut executor, &[4], 3, &[0]);
    }

    #[test]
    #[should_panic(expected = "holds another position")]
    fn a_stale_block_is_noticed() {
        let mut executor = FakeExecutor::new(9, SIZE, 2);
        let tokens: Vec<u32> = (0..16).collect();
        run(&mut executor, &tokens, 0, &[0]);
        run(&mut executor, &[4], 16, &[1, 0]);
    }
}
