//! Prompt tokens on their way through the layers, a few of which they pass in each step.
//!
//! Beside sequences that decode, a prompt gets a small part of each step. To give it few tokens
//! makes every one of them dear: each part reads all weights and all keys and values of its
//! context. To give it few layers of many tokens reads them once for all of those. Between
//! its parts the chunk's sequences keep their blocks, and count as not computed.

use crate::sequence::Rank;
use crate::step_plan::ScheduledSequence;
use mini_infer_core::Batch;
use std::time::Duration;

/// One sequence's share of a suspended chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SuspendedSequence {
    /// Its place in the order, by which it is found among the running ones.
    pub(crate) rank: Rank,
    /// Known tokens that are being computed, at least 1.
    pub(crate) num_tokens: u32,
    /// Whether these are the last known tokens, so that a new one is sampled.
    pub(crate) samples: bool,
}

impl SuspendedSequence {
    /// Returns the entry of a plan for the sequence, which is at `running_index`.
    pub(crate) fn scheduled(self, running_index: usize) -> ScheduledSequence {
        let Self { num_tokens, samples, .. } = self;
        ScheduledSequence { running_index, num_tokens, samples }
    }
}

/// A step's prompts, which the executor has taken through some of its layers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SuspendedChunk {
    /// The sequences in order; empty where nothing is suspended.
    pub(crate) sequences: Vec<SuspendedSequence>,
    /// Their tokens as the executor sees them.
    pub(crate) batch: Batch,
    /// The layer to compute next.
    pub(crate) next_layer: usize,
    /// Time spent so far.
    pub(crate) elapsed: Duration,
}

impl SuspendedChunk {
    /// Tells whether nothing is suspended.
    pub(crate) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Returns the number of tokens on their way.
    pub(crate) fn num_tokens(&self) -> u32 {
        self.sequences.iter().map(|sequence| sequence.num_tokens).sum()
    }

    /// Forgets what was computed.
    pub(crate) fn begin_anew(&mut self) {
        self.next_layer = 0;
        self.elapsed = Duration::ZERO;
    }

    /// Forgets the chunk, keeping its memory.
    pub(crate) fn clear(&mut self) {
        self.sequences.clear();
        self.begin_anew();
    }
}
