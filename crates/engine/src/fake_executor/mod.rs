//! An executor without a model, which notices every mistake in KV bookkeeping.
//!
//! For each slot it keeps which token at which position was written, and a hash of the whole prefix
//! up to there. A step first writes the KV of all its tokens, then reads each sequence's context
//! back through its block table, as attention does, and asserts that every slot holds what follows
//! from the slot before. Logits are a function of that hash: a block that was overwritten,
//! mixed up, stale, given back or restored from elsewhere either fails an assertion or changes the
//! output. An adapter, a number here, is where the hash of its sequences begins. Transfers move slots as they would move KV, and what they leave undefined is rubbish.
//!
//! Costs O(context) for each sequence of a step, and O(vocabulary) for each row of logits.

mod storage;
mod tier;

pub use tier::FakeTier;

use mini_infer_core::{
    Batch, BlockId, BlockKey, BlockSize, Executor, ExecutorError, KvPart, KvTransfer, RowForm,
    TokenId, mix64,
};
use std::ops::Range;
use std::time::Duration;
use storage::Storage;

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
    /// The first row that is read of what the step with this number kept, counted from 0, is not
    /// finite.
    KeptRowIsNotFinite {
        /// Number of the step.
        step: u64,
    },
}

/// Range of the logits: wide enough for a clear favourite, narrow enough for surprises.
const LOGIT_RANGE: f32 = 8.0;

/// Width of a hidden state, which is a row of logits over so many tokens.
const HIDDEN_SIZE: usize = 3;

/// Computes hashes in place of a model.
#[derive(Clone, Debug)]
pub struct FakeExecutor {
    vocab_size: usize,
    storage: Storage,
    tier: Option<FakeTier>,
    num_layers: usize,
    /// The step that is in the middle of its layers, and the next one of them.
    advancing: Option<(Batch, usize)>,
    /// Hashes of the prefixes up to the rows that the last batch kept.
    kept: Vec<u64>,
    num_steps: u64,
    fault: Option<Fault>,
}

impl FakeExecutor {
    /// Creates an executor for a pool whose block ids are `0..num_blocks`, of `block_size` tokens.
    #[must_use]
    pub fn new(vocab_size: usize, block_size: BlockSize, num_blocks: u32) -> Self {
        let storage = Storage::new(block_size, num_blocks);
        Self {
            vocab_size,
            storage,
            tier: None,
            num_layers: 1,
            advancing: None,
            kept: Vec::new(),
            num_steps: 0,
            fault: None,
        }
    }

    /// Returns the executor with a failure to come.
    #[must_use]
    pub fn with_fault(self, fault: Fault) -> Self {
        Self { fault: Some(fault), ..self }
    }

    /// Returns the executor with layers that see `num_tokens` positions back, their own included.
    #[must_use]
    pub fn with_window(mut self, num_tokens: u32) -> Self {
        self.storage.add_window(num_tokens);
        self
    }

    /// Returns the executor with so many layers, at least 1, through which chunks can pass one by
    /// one.
    #[must_use]
    pub fn with_layers(self, num_layers: usize) -> Self {
        Self { num_layers, ..self }
    }

    /// Returns the executor with a tier for evicted blocks.
    #[must_use]
    pub fn with_tier(self, tier: FakeTier) -> Self {
        Self { tier: Some(tier), ..self }
    }

    /// Returns how many blocks would have memory for this part: written to since they were last given
    /// back.
    #[must_use]
    pub fn num_committed_blocks(&self, part: KvPart) -> usize {
        self.storage.num_committed_blocks(part)
    }

    /// Appends the logits of the tokens below `width` that follow a prefix.
    fn push_logits(prefix: u64, width: usize, logits: &mut Vec<f32>) {
        logits.extend((0..width as u64).map(|token| {
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

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        batch.check_invariants(self.storage.block_size());
        let step = self.num_steps;
        self.num_steps += 1;
        logits.clear();
        if self.fault == Some(Fault::StepFails { step }) {
            for &slot in &batch.slot_mapping {
                self.storage.spoil(slot);
            }
            return Err(ExecutorError { message: format!("fault injected into step {step}") });
        }
        for i in 0..batch.num_seqs() {
            self.storage.write(batch, batch.sequence(i), root(batch, i));
        }
        let mut rows = batch.logits_rows.iter().peekable();
        let mut kept_rows = batch.kept_rows.iter().peekable();
        self.kept.clear();
        for i in 0..batch.num_seqs() {
            let span = batch.sequence(i);
            let last_row = span.first_row + span.num_tokens - 1;
            let prefix = self.storage.read(span, root(batch, i), |position, prefix| {
                // Rows of positions before the step's would lie before the batch.
                let row = (position as usize + 1 + last_row).checked_sub(span.context_len);
                if kept_rows.next_if(|&&kept| Some(kept as usize) == row).is_some() {
                    self.kept.push(prefix);
                }
            });
            if rows.next_if(|&&row| row as usize == last_row).is_some() {
                Self::push_logits(prefix, self.vocab_size, logits);
            }
        }
        assert_eq!(rows.next(), None, "logits are wanted inside a chunk");
        assert_eq!(kept_rows.next(), None, "a row is kept that is none of the step's");
        if self.fault == Some(Fault::RowIsNotFinite { step }) && !logits.is_empty() {
            logits[self.vocab_size / 2] = f32::NAN;
        }
        Ok(())
    }

    fn num_layers(&self) -> usize {
        self.num_layers
    }

    /// The KV of some layers is rubbish to all others: until the last layer, nobody may read a slot.
    fn advance(
        &mut self,
        batch: &Batch,
        layers: Range<usize>,
        logits: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        batch.check_invariants(self.storage.block_size());
        assert!(layers.start < layers.end && layers.end <= self.num_layers, "{layers:?}");
        match self.advancing.take() {
            _ if layers.start == 0 => {
                for &slot in &batch.slot_mapping {
                    self.storage.spoil(slot);
                }
            }
            Some((known, next)) => {
                assert_eq!((&known, next), (batch, layers.start), "the step goes on as it was");
            }
            None => panic!("layers {layers:?} follow none"),
        }
        if layers.end == self.num_layers {
            for &slot in &batch.slot_mapping {
                self.storage.check_spoilt(slot);
            }
            return self.forward(batch, logits);
        }
        self.advancing = Some((batch.clone(), layers.end));
        Ok(())
    }

    fn read_kept_rows(
        &mut self,
        rows: Range<usize>,
        form: RowForm,
        out: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        let width = match form {
            RowForm::Logits => self.vocab_size,
            RowForm::HiddenState => HIDDEN_SIZE,
        };
        out.clear();
        let is_first = rows.start == 0;
        for &prefix in &self.kept[rows] {
            Self::push_logits(prefix, width, out);
        }
        let step = self.num_steps - 1;
        if is_first && self.fault == Some(Fault::KeptRowIsNotFinite { step }) {
            out[width / 2] = f32::NAN;
        }
        Ok(())
    }

    fn transfer(&mut self, transfers: &[KvTransfer]) {
        for transfer in transfers {
            match *transfer {
                KvTransfer::Copy { from, to, num_tokens } => {
                    self.storage.copy(from, to, num_tokens);
                }
                KvTransfer::Save { block, key } => {
                    let content = self.storage.whole_block(block);
                    if let Some(tier) = &mut self.tier {
                        tier.save(key, content);
                    }
                }
                KvTransfer::Discard { block, part } => self.storage.discard(block, part),
            }
        }
    }

    fn holds(&self, key: &BlockKey) -> bool {
        self.tier.as_ref().is_some_and(|tier| tier.holds(key))
    }

    fn restore(&mut self, key: &BlockKey, block: BlockId) -> bool {
        let content = self.tier.as_mut().and_then(|tier| tier.restore(key));
        match &content {
            Some(content) => self.storage.restore(block, content),
            None => self.storage.spoil_block(block),
        }
        content.is_some()
    }

    fn restore_time(&self) -> Duration {
        self.tier.as_ref().map_or(Duration::ZERO, FakeTier::restore_time)
    }
}

/// Returns the hash of no tokens at all for sequence `i`: its adapter's number, which no other
/// adapter and no sequence without one begins with.
///
/// # Panics
/// When the adapter is of another executor.
fn root(batch: &Batch, i: usize) -> u64 {
    let adapter = batch.adapters[i].as_ref();
    adapter.map_or(0, |adapter| *adapter.weights::<u64>().expect("the fake's adapters are u64"))
}

/// Extends the hash of a prefix by one token.
fn extend(prefix: u64, token: TokenId) -> u64 {
    mix64(prefix ^ mix64(u64::from(token) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: BlockSize = BlockSize::DEFAULT;

    fn run(executor: &mut FakeExecutor, tokens: &[u32], start: u32, table: &[u32]) -> Vec<f32> {
        let table: Vec<BlockId> = table.iter().map(|&id| BlockId(id)).collect();
        let mut batch = Batch::default();
        batch.push_sequence(tokens, start, &table, SIZE, true);
        let mut logits = Vec::new();
        executor.forward(&batch, &mut logits).unwrap();
        logits
    }

    fn tokens(num: u32) -> Vec<u32> {
        (0..num).collect()
    }

    #[test]
    fn logits_depend_on_the_tokens_and_not_on_chunks_or_blocks() {
        let mut executor = FakeExecutor::new(9, SIZE, 4);
        let tokens = tokens(20);
        let whole = run(&mut executor, &tokens, 0, &[0, 1]);
        run(&mut executor, &tokens[..7], 0, &[3]);
        assert_eq!(run(&mut executor, &tokens[7..], 7, &[3, 2]), whole);
        let other: Vec<u32> = (1..21).collect();
        assert_ne!(run(&mut executor, &other, 0, &[0, 1]), whole);
    }

    #[test]
    fn logits_do_not_depend_on_copies_and_restores() {
        let key = BlockKey([7; 32]);
        let mut executor = FakeExecutor::new(9, SIZE, 5).with_tier(FakeTier::new(Duration::ZERO));
        let whole = run(&mut executor, &tokens(20), 0, &[0, 1]);
        executor.transfer(&[KvTransfer::Copy { from: BlockId(1), to: BlockId(2), num_tokens: 3 }]);
        assert_eq!(run(&mut executor, &[19], 19, &[0, 2]).len(), 9, "slot 18 was copied");
        executor.transfer(&[KvTransfer::Save { block: BlockId(0), key }]);
        assert!(executor.holds(&key) && executor.restore(&key, BlockId(3)));
        assert_eq!(run(&mut executor, &[16, 17, 18, 19], 16, &[3, 4]), whole);
    }

    #[test]
    fn kept_rows_are_those_that_would_give_logits() {
        let mut executor = FakeExecutor::new(9, SIZE, 4);
        let tokens = tokens(20);
        let last = run(&mut executor, &tokens[..6], 0, &[3]);
        let mut batch = Batch::default();
        batch.push_sequence(&tokens[4..9], 4, &[BlockId(3)], SIZE, false);
        batch.keep_of_last(5..8);
        let mut rows = Vec::new();
        executor.forward(&batch, &mut rows).unwrap();
        executor.read_kept_rows(0..3, RowForm::Logits, &mut rows).unwrap();
        assert_eq!((rows.len(), &rows[..9]), (3 * 9, &last[..]));
        let third = rows.split_off(18);
        executor.read_kept_rows(2..3, RowForm::HiddenState, &mut rows).unwrap();
        assert_eq!(rows, third[..HIDDEN_SIZE]);
    }

    #[test]
    fn a_damaged_block_is_held_until_it_is_asked_for() {
        let key = BlockKey([7; 32]);
        // One of one is lost, and the number of a loss is always 0.
        let tier = FakeTier::new(Duration::ZERO);
        let lost = tier.clone().with_losses(1, 0);
        let damaged = (0..).map(|seed| tier.clone().with_losses(2, seed)).find_map(|tier| {
            let mut executor = FakeExecutor::new(9, SIZE, 1).with_tier(tier);
            run(&mut executor, &tokens(16), 0, &[0]);
            executor.transfer(&[KvTransfer::Save { block: BlockId(0), key }]);
            executor.holds(&key).then_some(executor)
        });
        let mut executor = damaged.unwrap();
        assert!(!executor.restore(&key, BlockId(0)) && !executor.holds(&key));
        let mut executor = FakeExecutor::new(9, SIZE, 1).with_tier(lost);
        run(&mut executor, &tokens(16), 0, &[0]);
        executor.transfer(&[KvTransfer::Save { block: BlockId(0), key }]);
        assert!(!executor.holds(&key));
    }

    #[test]
    fn a_window_may_be_discarded_once_no_later_token_sees_it() {
        let mut executor = FakeExecutor::new(9, SIZE, 3).with_window(4);
        run(&mut executor, &tokens(19), 0, &[0, 1]);
        let discard = KvTransfer::Discard { block: BlockId(0), part: KvPart::SlidingWindow };
        executor.transfer(&[discard]);
        run(&mut executor, &[19], 19, &[0, 1]);
    }

    #[test]
    #[should_panic(expected = "window of 19")]
    fn a_window_that_is_discarded_too_early_is_noticed() {
        let mut executor = FakeExecutor::new(9, SIZE, 3).with_window(4);
        run(&mut executor, &tokens(18), 0, &[0, 1]);
        let discard = KvTransfer::Discard { block: BlockId(0), part: KvPart::SlidingWindow };
        executor.transfer(&[discard]);
        run(&mut executor, &[18], 18, &[0, 1]);
    }

    #[test]
    fn a_step_in_parts_gives_what_it_gives_at_once() {
        let mut executor = FakeExecutor::new(9, SIZE, 4).with_layers(3);
        let whole = run(&mut executor, &tokens(20), 0, &[0, 1]);
        let mut batch = Batch::default();
        batch.push_sequence(&tokens(20), 0, &[BlockId(2), BlockId(3)], SIZE, true);
        let mut logits = Vec::new();
        executor.advance(&batch, 0..1, &mut logits).unwrap();
        run(&mut executor, &[20], 20, &[0, 1]);
        executor.advance(&batch, 1..2, &mut logits).unwrap();
        assert!(logits.is_empty());
        executor.advance(&batch, 2..3, &mut logits).unwrap();
        assert_eq!(logits, whole);
    }

    #[test]
    #[should_panic(expected = "written to by another step")]
    fn another_step_that_writes_to_the_slots_of_one_in_parts_is_noticed() {
        let mut executor = FakeExecutor::new(9, SIZE, 2).with_layers(2);
        let mut batch = Batch::default();
        batch.push_sequence(&tokens(3), 0, &[BlockId(1)], SIZE, true);
        let mut logits = Vec::new();
        executor.advance(&batch, 0..1, &mut logits).unwrap();
        run(&mut executor, &[7], 0, &[1]);
        executor.advance(&batch, 1..2, &mut logits).unwrap();
    }

    #[test]
    #[should_panic(expected = "is saved without being full")]
    fn a_block_that_is_not_full_cannot_be_saved() {
        let mut executor = FakeExecutor::new(9, SIZE, 1);
        run(&mut executor, &tokens(15), 0, &[0]);
        executor.transfer(&[KvTransfer::Save { block: BlockId(0), key: BlockKey([7; 32]) }]);
    }

    #[test]
    #[should_panic(expected = "holds another position")]
    fn reading_what_was_not_copied_is_noticed() {
        let mut executor = FakeExecutor::new(9, SIZE, 2);
        run(&mut executor, &tokens(16), 0, &[0]);
        executor.transfer(&[KvTransfer::Copy { from: BlockId(0), to: BlockId(1), num_tokens: 8 }]);
        run(&mut executor, &[9], 9, &[1]);
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
        run(&mut executor, &tokens(16), 0, &[0]);
        run(&mut executor, &[4], 16, &[1, 0]);
    }
}
