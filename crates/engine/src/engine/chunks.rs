//! Prompts that pass a few layers in each step: beginning, going on, and ending.

use super::Engine;
use crate::chunk_limit::Demand;
use crate::step_plan::ScheduledSequence;
use crate::suspended_chunk::SuspendedSequence;
use mini_infer_core::{Clock, EngineEvent, Executor};

impl<E: Executor, C: Clock> Engine<E, C> {
    /// Takes the prompts out of a plan that wants them to pass a few layers at a time.
    pub(super) fn suspend_prompts(&mut self) {
        debug_assert!(self.chunk.is_empty(), "one chunk is suspended at a time");
        self.scheduler.build_batch(self.plan.prompts(), &mut self.chunk.batch);
        for entry in self.plan.prompts() {
            let sequence = self.scheduler.running_mut(entry.running_index);
            sequence.num_suspended_tokens = entry.num_tokens;
            let &ScheduledSequence { num_tokens, samples, .. } = entry;
            let suspended = SuspendedSequence { rank: sequence.rank, num_tokens, samples };
            self.chunk.sequences.push(suspended);
        }
        self.plan.scheduled.retain(|entry| !entry.is_prompt());
        self.counters.num_suspended_chunks += 1;
    }

    /// Takes those out of the suspended chunk that have lost their blocks or have ended. The others
    /// begin anew with the same tokens, in the slots that they have.
    pub(super) fn drop_stale_sequences(&mut self) {
        let scheduler = &self.scheduler;
        let num_before = self.chunk.sequences.len();
        self.chunk.sequences.retain(|known| scheduler.suspended_index(known.rank).is_some());
        if self.chunk.sequences.len() == num_before {
            return;
        }
        self.counters.num_dropped_chunks += 1;
        self.chunk.begin_anew();
        let entries: Vec<ScheduledSequence> = self
            .chunk
            .sequences
            .iter()
            .map(|known| {
                let index = scheduler.suspended_index(known.rank);
                known.scheduled(index.expect("the others were taken out"))
            })
            .collect();
        self.scheduler.build_batch(&entries, &mut self.chunk.batch);
    }

    /// Takes the suspended chunk through as many layers as the step has time for, and returns how
    /// many tokens were generated when that were the last ones.
    pub(super) fn advance_chunk(&mut self, events: &mut Vec<EngineEvent>) -> u32 {
        let num_layers = self.executor.num_layers();
        let first = self.chunk.next_layer;
        let num_tokens = self.chunk.num_tokens();
        let num_decodes = super::narrow(self.plan.scheduled.len());
        let num_prompts = super::narrow(self.chunk.sequences.len());
        let demand = Demand { num_decodes, num_prompts };
        let share = self.chunk_limit.num_layers(demand, num_tokens);
        let end = num_layers.min(first.saturating_add(share));
        let is_last = end == num_layers;
        let first_entry = self.plan.scheduled.len();
        if is_last {
            self.resume_prompts();
            self.prepare_constraints(first_entry);
        }
        self.end_part(|times| &mut times.output);
        let result = self.executor.advance(&self.chunk.batch, first..end, &mut self.logits);
        if is_last && result.is_ok() {
            self.read_prompts(first_entry, self.chunk.batch.kept_rows.len());
        }
        let elapsed = self.end_part(|times| &mut times.prefill);
        self.chunk_limit.observe_layers(num_tokens, end - first, elapsed);
        self.chunk.next_layer = end;
        self.chunk.elapsed += elapsed;
        match result {
            Ok(()) if !is_last => 0,
            Ok(()) => {
                let batch = &self.chunk.batch;
                self.pace.observe(batch.num_tokens(), batch.num_seqs(), self.chunk.elapsed);
                self.chunk.clear();
                self.apply(first_entry, events)
            }
            Err(error) => {
                if !is_last {
                    self.resume_prompts();
                }
                self.chunk.clear();
                self.fail_batch(first_entry, &error)
            }
        }
    }

    /// Makes the suspended sequences part of the plan again, behind what it has.
    fn resume_prompts(&mut self) {
        for suspended in &self.chunk.sequences {
            let index = self.scheduler.suspended_index(suspended.rank);
            let index = index.expect("stale sequences were taken out");
            self.scheduler.running_mut(index).num_suspended_tokens = 0;
            self.plan.scheduled.push(suspended.scheduled(index));
        }
    }
}
