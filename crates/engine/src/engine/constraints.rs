//! Constraints in the course of a step: what may come next is looked for while the executor runs.

use super::Engine;
use mini_infer_core::{Clock, Executor};

impl<E: Executor, C: Clock> Engine<E, C> {
    /// Begins to find what the sequences may write that are sampled, of the plan's entries from
    /// `first_entry` on.
    pub(super) fn prepare_constraints(&mut self, first_entry: usize) {
        for entry in self.plan.scheduled[first_entry..].iter().filter(|entry| entry.samples) {
            if let Some(constrained) =
                &mut self.scheduler.running_mut(entry.running_index).constrained
            {
                constrained.prepare();
            }
        }
    }

    /// Waits until it is known what those sequences may write, and tells whether there were any.
    pub(super) fn settle_constraints(&mut self, first_entry: usize) -> bool {
        let mut is_any = false;
        for entry in self.plan.scheduled[first_entry..].iter().filter(|entry| entry.samples) {
            if let Some(constrained) =
                &mut self.scheduler.running_mut(entry.running_index).constrained
            {
                constrained.settle();
                is_any = true;
            }
        }
        is_any
    }
}
