//! The slots of the fake executor: what was written where, and of which prefix.
//!
//! One array stands for the layers that attend to everything, and in a model with a sliding window a
//! second one for the layers that do not see far back. Slots without meaningful content hold
//! rubbish, and reading that fails an assertion; so does reading a slot that does not follow from
//! the slot before it. Beside the content it knows which parts of blocks would have memory: those
//! written to since they were last given back.

use super::extend;
use mini_infer_core::{Batch, BlockId, BlockSize, KvPart, SequenceSpan, SlotId, TokenId};
use std::ops::Range;

/// What one slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    position: u32,
    token: TokenId,
    /// Hash of all tokens up to this one.
    prefix: u64,
}

/// A slot that was never written, was given back, or was written by a step that failed.
const RUBBISH: Stored = Stored { position: u32::MAX, token: TokenId::MAX, prefix: 0 };

/// Layers that see `num_tokens` positions back, the token's own included.
#[derive(Clone, Debug)]
struct Window {
    num_tokens: usize,
    slots: Vec<Stored>,
    is_committed: Vec<bool>,
}

/// All slots of the fake executor.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    block_size: BlockSize,
    full: Vec<Stored>,
    is_committed: Vec<bool>,
    window: Option<Window>,
}

impl Storage {
    /// Creates a storage full of rubbish.
    pub(super) fn new(block_size: BlockSize, num_blocks: u32) -> Self {
        let num_slots = num_blocks as usize * block_size.tokens() as usize;
        let is_committed = vec![false; num_blocks as usize];
        Self { block_size, full: vec![RUBBISH; num_slots], is_committed, window: None }
    }

    /// Adds layers with a sliding window.
    pub(super) fn add_window(&mut self, num_tokens: u32) {
        let num_tokens = num_tokens as usize;
        let slots = vec![RUBBISH; self.full.len()];
        let is_committed = vec![false; self.is_committed.len()];
        self.window = Some(Window { num_tokens, slots, is_committed });
    }

    /// Returns how many blocks have memory for this part.
    pub(super) fn num_committed_blocks(&self, part: KvPart) -> usize {
        let is_committed = match part {
            KvPart::FullAttention => Some(&self.is_committed),
            KvPart::SlidingWindow => self.window.as_ref().map(|window| &window.is_committed),
        };
        is_committed.into_iter().flatten().filter(|&&is_committed| is_committed).count()
    }

    /// Returns the block size.
    pub(super) fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Writes the KV of one sequence's tokens; the prefix hash comes from the slot before, or is
    /// `root` before the first.
    pub(super) fn write(&mut self, batch: &Batch, span: SequenceSpan<'_>, root: u64) {
        for row in span.first_row..span.first_row + span.num_tokens {
            let (token, position) = (batch.tokens[row], batch.positions[row]);
            let before = match position.checked_sub(1) {
                Some(last) => self.full[self.slot_of(span, last).index()].prefix,
                None => root,
            };
            let slot = batch.slot_mapping[row];
            assert_eq!(slot, self.slot_of(span, position));
            self.put(slot, Stored { position, token, prefix: extend(before, token) });
        }
    }

    /// Makes rubbish of one slot.
    pub(super) fn spoil(&mut self, slot: SlotId) {
        self.put(slot, RUBBISH);
    }

    /// Checks that nobody has written to a slot since it was spoilt.
    pub(super) fn check_spoilt(&self, slot: SlotId) {
        assert_eq!(self.full[slot.index()], RUBBISH, "{slot:?} was written to by another step");
    }

    /// Makes rubbish of one block, which has memory from then on.
    pub(super) fn spoil_block(&mut self, block: BlockId) {
        let range = self.range(block);
        self.full[range.clone()].fill(RUBBISH);
        if let Some(window) = &mut self.window {
            window.slots[range].fill(RUBBISH);
        }
        self.commit(block);
    }

    /// Makes rubbish of one part of a block and gives back its memory.
    pub(super) fn discard(&mut self, block: BlockId, part: KvPart) {
        let range = self.range(block);
        match (part, &mut self.window) {
            (KvPart::FullAttention, _) => {
                self.full[range].fill(RUBBISH);
                self.is_committed[block.index()] = false;
            }
            (KvPart::SlidingWindow, Some(window)) => {
                window.slots[range].fill(RUBBISH);
                window.is_committed[block.index()] = false;
            }
            (KvPart::SlidingWindow, None) => panic!("no layer has a window"),
        }
    }

    /// Copies the first `num_tokens` slots of a block and makes rubbish of the others.
    pub(super) fn copy(&mut self, from: BlockId, to: BlockId, num_tokens: u32) {
        assert!(num_tokens > 0 && num_tokens <= self.block_size.tokens() && from != to);
        self.spoil_block(to);
        let (source, target) = (self.range(from).start, self.range(to).start);
        let copied = source..source + num_tokens as usize;
        self.full.copy_within(copied.clone(), target);
        if let Some(window) = &mut self.window {
            window.slots.copy_within(copied, target);
        }
    }

    /// Returns the content of a block that is to be saved, having checked that all of it is there.
    pub(super) fn whole_block(&self, block: BlockId) -> Vec<Stored> {
        let range = self.range(block);
        let content = &self.full[range.clone()];
        let first = content[0];
        assert_eq!(first.position % self.block_size.tokens(), 0, "a block starts elsewhere");
        for (position, pair) in (first.position + 1..).zip(content.windows(2)) {
            let follows = Stored {
                position,
                token: pair[1].token,
                prefix: extend(pair[0].prefix, pair[1].token),
            };
            assert_eq!(pair[1], follows, "block {} is saved without being full", block.0);
        }
        if let Some(window) = &self.window {
            assert_eq!(&window.slots[range], content, "block {} is saved in part", block.0);
        }
        content.to_vec()
    }

    /// Fills a block with what was saved.
    pub(super) fn restore(&mut self, block: BlockId, content: &[Stored]) {
        self.commit(block);
        let range = self.range(block);
        self.full[range.clone()].copy_from_slice(content);
        if let Some(window) = &mut self.window {
            window.slots[range].copy_from_slice(content);
        }
    }

    /// Reads one sequence's context as attention does and returns the hash of its prefix, which
    /// begins with `root`. Tells `seen` each position with the hash up to there.
    pub(super) fn read(
        &self,
        span: SequenceSpan<'_>,
        root: u64,
        mut seen: impl FnMut(u32, u64),
    ) -> u64 {
        let mut prefix = root;
        let mut position = 0;
        // The first of the step's tokens sees furthest back.
        let first_seen = match &self.window {
            Some(window) => {
                (span.context_len + 1 - span.num_tokens).saturating_sub(window.num_tokens)
            }
            None => 0,
        };
        for &block in span.block_table {
            let start = self.range(block).start;
            let num_left = span.context_len - position as usize;
            let num_read = num_left.min(self.block_size.tokens() as usize);
            for slot in start..start + num_read {
                let stored = self.full[slot];
                assert_eq!(stored.position, position, "a slot holds another position");
                prefix = extend(prefix, stored.token);
                assert_eq!(stored.prefix, prefix, "position {position} follows another prefix");
                if let Some(window) = &self.window
                    && position as usize >= first_seen
                {
                    assert_eq!(window.slots[slot], stored, "window of {}", span.context_len);
                }
                seen(position, prefix);
                position += 1;
            }
        }
        assert_eq!(position as usize, span.context_len, "the block table is too short");
        prefix
    }

    fn put(&mut self, slot: SlotId, stored: Stored) {
        self.full[slot.index()] = stored;
        if let Some(window) = &mut self.window {
            window.slots[slot.index()] = stored;
        }
        self.commit(self.block_size.split(slot).0);
    }

    fn commit(&mut self, block: BlockId) {
        self.is_committed[block.index()] = true;
        if let Some(window) = &mut self.window {
            window.is_committed[block.index()] = true;
        }
    }

    fn range(&self, block: BlockId) -> Range<usize> {
        let start = self.block_size.slot(block, 0).index();
        start..start + self.block_size.tokens() as usize
    }

    fn slot_of(&self, span: SequenceSpan<'_>, position: u32) -> SlotId {
        let block = span.block_table[(position / self.block_size.tokens()) as usize];
        self.block_size.slot(block, position % self.block_size.tokens())
    }
}
