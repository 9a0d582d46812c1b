//! What one step computes, as data.
//!
//! The scheduler fills a plan and reserves the blocks it needs; the engine carries out its transfers,
//! turns it into a batch, and applies the results in the same order. Prompts that pass a few layers
//! at a time leave the plan before that, and come back behind all others in the step in which they
//! pass the last one. Invariants: the entries of each of the two groups rise in `running_index`;
//! tokens add up to no more than the budget.

use crate::chunk_limit::{ChunkPass, StepShape};
use crate::stats::AdmissionStatus;
use mini_infer_core::{KvTransfer, SequenceId};

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduledSequence {
    /// Index among the running sequences, valid until the step is applied.
    pub(crate) running_index: usize,
    /// Known tokens to compute, at least 1.
    pub(crate) num_tokens: u32,
    /// Whether these are the last known tokens, so that a new one is sampled.
    pub(crate) samples: bool,
}

impl ScheduledSequence {
    /// Tells whether these are not just the one token that a sequence in decode is behind.
    pub(crate) fn is_prompt(&self) -> bool {
        self.num_tokens > 1 || !self.samples
    }
}

/// A waiting sequence that runs from this step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// The sequence.
    pub(crate) sequence: SequenceId,
    /// Whether it runs for the first time; else it was preempted before.
    pub(crate) is_first: bool,
    /// Tokens in its prompt.
    pub(crate) num_prompt_tokens: u32,
    /// Known tokens whose KV came from the prefix cache or a tier.
    pub(crate) num_hit_tokens: u32,
    /// Those of them that came from a tier.
    pub(crate) num_restored_tokens: u32,
}

/// What one step computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepPlan {
    /// The sequences that take part.
    pub(crate) scheduled: Vec<ScheduledSequence>,
    /// How the prompts among them go through the layers.
    pub(crate) pass: ChunkPass,
    /// The sequences that were admitted, for the first time or again.
    pub(crate) admissions: Vec<Admission>,
    /// Sequences that lost their blocks.
    pub(crate) num_preempted: u32,
    /// Whether memory was the reason for which the first waiting sequence was not admitted.
    pub(crate) admission: AdmissionStatus,
    /// KV to move before the step runs, in order.
    pub(crate) transfers: Vec<KvTransfer>,
}

impl StepPlan {
    /// Returns the entries that are prompts.
    pub(crate) fn prompts(&self) -> impl Iterator<Item = &ScheduledSequence> {
        self.scheduled.iter().filter(|entry| entry.is_prompt())
    }

    /// Returns what is in the step.
    pub(crate) fn shape(&self) -> StepShape {
        let mut shape = StepShape { num_decodes: 0, num_prompt_tokens: 0 };
        for entry in &self.scheduled {
            match entry.num_tokens {
                1 => shape.num_decodes += 1,
                num_tokens => shape.num_prompt_tokens += num_tokens,
            }
        }
        shape
    }

    /// Empties the plan, keeping its memory.
    pub(crate) fn clear(&mut self) {
        self.scheduled.clear();
        self.pass = ChunkPass::default();
        self.admissions.clear();
        self.num_preempted = 0;
        self.admission = AdmissionStatus::NotRefused;
        debug_assert!(self.transfers.is_empty(), "the last plan's transfers were carried out");
    }
}
