//! The flat inputs of one step.
//!
//! All tokens of the step lie in one row, sequence after sequence, decodes and prefill chunks
//! alike. Invariants, checked by [`Batch::check_invariants`]: `query_start_loc` rises strictly
//! from 0 to `num_tokens`; each sequence's block table covers its context length; no slot is
//! written twice.

use crate::{Adapter, BlockId, BlockSize, SlotId, TokenId};
use std::ops::Range;

/// The flat inputs of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Tokens to compute, `[num_tokens]`.
    pub tokens: Vec<TokenId>,
    /// Index of each token in its sequence, `[num_tokens]`.
    pub positions: Vec<u32>,
    /// Where each token's KV is written, `[num_tokens]`.
    pub slot_mapping: Vec<SlotId>,
    /// Prefix sums of tokens per sequence (also known as `cu_seqlens`), `[num_seqs + 1]`.
    pub query_start_loc: Vec<u32>,
    /// KV length that the last token of each sequence attends to, this step's tokens included,
    /// `[num_seqs]`.
    pub context_lens: Vec<u32>,
    /// Block tables of all sequences one after the other; see `block_table_start_loc`.
    pub block_tables: Vec<BlockId>,
    /// Prefix sums of block table lengths, `[num_seqs + 1]`.
    pub block_table_start_loc: Vec<u32>,
    /// What changes the model for each sequence, `[num_seqs]`.
    pub adapters: Vec<Option<Adapter>>,
    /// Rows of `tokens` whose logits are wanted, ascending, `[num_logits_rows]`.
    pub logits_rows: Vec<u32>,
    /// Rows of `tokens` that can be read after the step, ascending, `[num_kept_rows]`.
    pub kept_rows: Vec<u32>,
}

/// One sequence's part of a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct SequenceSpan<'a> {
    /// First row of the sequence's tokens in the batch.
    pub first_row: usize,
    /// Number of tokens that this step computes for the sequence.
    pub num_tokens: usize,
    /// KV length after this step.
    pub context_len: usize,
    /// The sequence's blocks in order.
    pub block_table: &'a [BlockId],
}

impl Batch {
    /// Empties the batch, keeping its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slot_mapping.clear();
        self.query_start_loc.clear();
        self.context_lens.clear();
        self.block_tables.clear();
        self.block_table_start_loc.clear();
        self.adapters.clear();
        self.logits_rows.clear();
        self.kept_rows.clear();
    }

    /// Appends one sequence: `tokens` at positions `start..start + tokens.len()`, whose slots come
    /// from `block_table`. With `wants_logits`, the last token's row is added to `logits_rows`.
    ///
    /// # Panics
    /// When `tokens` is empty or `block_table` does not reach the last position.
    pub fn push_sequence(
        &mut self,
        tokens: &[TokenId],
        start: u32,
        block_table: &[BlockId],
        block_size: BlockSize,
        wants_logits: bool,
    ) {
        assert!(!tokens.is_empty(), "a scheduled sequence computes at least one token");
        if self.query_start_loc.is_empty() {
            self.query_start_loc.push(0);
            self.block_table_start_loc.push(0);
        }
        let end = start + count(tokens.len());
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(start..end);
        self.slot_mapping.extend((start..end).map(|position| {
            let (place, offset) = block_size.place(position);
            block_size.slot(block_table[place as usize], offset)
        }));
        self.block_tables.extend_from_slice(&block_table[..block_size.blocks_for(end) as usize]);
        self.block_table_start_loc.push(count(self.block_tables.len()));
        self.query_start_loc.push(count(self.tokens.len()));
        self.context_lens.push(end);
        self.adapters.push(None);
        if wants_logits {
            self.logits_rows.push(count(self.tokens.len() - 1));
        }
    }

    /// Lets `adapter` change the model for the sequence that was appended last.
    ///
    /// # Panics
    /// When the batch is empty.
    pub fn adapt_last(&mut self, adapter: Option<&Adapter>) {
        *self.adapters.last_mut().expect("a sequence was appended") = adapter.cloned();
    }

    /// Keeps the rows of some tokens of the sequence that was appended last, which are given by
    /// their positions.
    ///
    /// # Panics
    /// When the batch is empty, or computes others.
    pub fn keep_of_last(&mut self, positions: Range<u32>) {
        let span = self.sequence(self.num_seqs().checked_sub(1).expect("a sequence was appended"));
        let start = count(span.context_len - span.num_tokens);
        if !positions.is_empty() {
            assert!(positions.start >= start && positions.end as usize <= span.context_len);
            let first_row = count(span.first_row);
            self.kept_rows.extend(positions.map(|position| first_row + position - start));
        }
    }

    /// Returns the number of tokens in the step.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the number of sequences in the step.
    #[must_use]
    pub fn num_seqs(&self) -> usize {
        self.context_lens.len()
    }

    /// Returns the part of sequence `i`.
    #[must_use]
    pub fn sequence(&self, i: usize) -> SequenceSpan<'_> {
        let first_row = self.query_start_loc[i] as usize;
        let first_block = self.block_table_start_loc[i] as usize;
        let end_block = self.block_table_start_loc[i + 1] as usize;
        SequenceSpan {
            first_row,
            num_tokens: self.query_start_loc[i + 1] as usize - first_row,
            context_len: self.context_lens[i] as usize,
            block_table: &self.block_tables[first_block..end_block],
        }
    }

    /// Checks the invariants in the module header.
    ///
    /// # Panics
    /// When one does not hold: a bug of whoever built the batch.
    pub fn check_invariants(&self, block_size: BlockSize) {
        assert_eq!(self.tokens.len(), self.positions.len());
        assert_eq!(self.tokens.len(), self.slot_mapping.len());
        if self.num_seqs() == 0 {
            assert!(self.tokens.is_empty(), "tokens without a sequence");
            return;
        }
        assert_eq!(self.query_start_loc.len(), self.num_seqs() + 1);
        assert_eq!(self.block_table_start_loc.len(), self.num_seqs() + 1);
        assert_eq!(self.adapters.len(), self.num_seqs());
        for i in 0..self.num_seqs() {
            let span = self.sequence(i);
            assert!(span.num_tokens > 0, "sequence {i} computes nothing");
            let last = span.first_row + span.num_tokens - 1;
            assert_eq!(self.positions[last] as usize + 1, span.context_len);
            let needed = span.context_len.div_ceil(block_size.tokens() as usize);
            assert_eq!(span.block_table.len(), needed, "block table of sequence {i}");
        }
        let mut slots = self.slot_mapping.clone();
        slots.sort_unstable();
        assert!(slots.windows(2).all(|pair| pair[0] != pair[1]), "a slot is written twice");
        for rows in [&self.logits_rows, &self.kept_rows] {
            assert!(rows.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(rows.last().is_none_or(|&last| (last as usize) < self.num_tokens()));
        }
    }
}

/// Converts a length to the width that batches use.
fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a step holds fewer than 2^32 tokens and blocks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_continues_in_the_block_where_the_last_one_ended() {
        let table = [BlockId(7), BlockId(2)];
        let mut batch = Batch::default();
        batch.push_sequence(&[10, 11, 12], 15, &table, BlockSize::DEFAULT, true);
        batch.check_invariants(BlockSize::DEFAULT);
        assert_eq!(batch.slot_mapping, [SlotId(7 * 16 + 15), SlotId(2 * 16), SlotId(2 * 16 + 1)]);
        assert_eq!(batch.context_lens, [18]);
        assert_eq!(batch.logits_rows, [2]);
    }

    #[test]
    fn kept_rows_are_found_by_their_positions() {
        let table = [BlockId(0), BlockId(1)];
        let mut batch = Batch::default();
        batch.push_sequence(&[1, 2], 0, &table, BlockSize::DEFAULT, true);
        batch.push_sequence(&[3, 4, 5], 9, &[BlockId(2)], BlockSize::DEFAULT, false);
        batch.keep_of_last(10..12);
        batch.keep_of_last(0..0);
        batch.check_invariants(BlockSize::DEFAULT);
        assert_eq!(batch.kept_rows, [3, 4]);
        batch.clear();
        assert_eq!(batch, Batch::default());
    }

    #[test]
    fn sequences_see_only_the_blocks_they_use() {
        let mut batch = Batch::default();
        batch.push_sequence(&[1], 0, &[BlockId(0), BlockId(1)], BlockSize::DEFAULT, false);
        batch.push_sequence(&[2], 16, &[BlockId(5), BlockId(6)], BlockSize::DEFAULT, true);
        batch.check_invariants(BlockSize::DEFAULT);
        assert_eq!(batch.sequence(0).block_table, [BlockId(0)]);
        assert_eq!(batch.sequence(1).block_table, [BlockId(5), BlockId(6)]);
        assert_eq!(batch.sequence(1).first_row, 1);
    }
}
