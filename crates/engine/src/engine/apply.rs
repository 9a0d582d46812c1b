//! From logits to tokens: what a step makes of its rows.
//!
//! Rows come in the order of the plan. A sequence that samples gets its token; one that has just
//! computed the prompt of a request with `n > 1` also lends its row and its blocks to the others of
//! its request; a beam keeps the row's candidates until all beams of its search have theirs.

use super::Engine;
use crate::beam_search::BeamSearch;
use crate::sampler::SampledToken;
use crate::sequence::Sequence;
use crate::step_sampler::{Choice, StepRows};
use mini_infer_core::{Clock, EngineEvent, Executor, ExecutorError, FinishReason};

impl<E: Executor, C: Clock> Engine<E, C> {
    /// Makes the tokens of the plan's entries from `first_entry` on, which the logits are of, part
    /// of their sequences and returns how many were generated.
    pub(super) fn apply(&mut self, first_entry: usize, events: &mut Vec<EngineEvent>) -> u32 {
        let vocab_size = self.executor.vocab_size();
        if self.settle_constraints(first_entry) {
            self.end_part(|times| &mut times.masks);
        }
        let logits = std::mem::take(&mut self.logits);
        self.sample_rows(first_entry, &logits, vocab_size);
        self.end_part(|times| &mut times.sampling);
        let mut rows = logits.chunks_exact(vocab_size).enumerate();
        let mut num_told = 0;
        for i in first_entry..self.plan.scheduled.len() {
            let entry = self.plan.scheduled[i];
            self.scheduler.mark_computed(entry);
            self.tell_prompt(entry.running_index, events);
            if !entry.samples {
                continue;
            }
            let (i, row) = rows.next().expect("one row for each entry that samples");
            let choice = self.step_sampler.take(i);
            num_told += self.take_row(entry.running_index, choice, row, events);
        }
        self.logits = logits;
        self.counters.num_forks += self.forked.len() as u64;
        self.scheduler.add_forked(self.forked.drain(..));
        num_told
    }

    /// Chooses from the rows of all these sequences that sample but the beams.
    fn sample_rows(&mut self, first_entry: usize, logits: &[f32], vocab_size: usize) {
        let sampled = self.plan.scheduled[first_entry..].iter().filter(|entry| entry.samples);
        self.row_owners.clear();
        self.row_owners.extend(sampled.map(|entry| entry.running_index));
        let num_rows = self.row_owners.len();
        assert_eq!(logits.len(), num_rows * vocab_size, "the executor gave a wrong shape");
        let running = self.scheduler.running();
        let rows = StepRows { logits, vocab_size, owners: &self.row_owners, running };
        self.step_sampler.sample_all(&self.executor, rows);
    }

    /// Gives a row of logits and what was chosen from it to a running sequence, and returns how
    /// many tokens it made.
    #[inline]
    fn take_row(
        &mut self,
        index: usize,
        choice: Option<Choice>,
        row: &[f32],
        events: &mut Vec<EngineEvent>,
    ) -> u32 {
        let Some(choice) = choice else {
            self.take_beam_row(index, row);
            return 0;
        };
        let sequence = self.scheduler.running_mut(index);
        if sequence.finish.is_some() {
            // Its prompt could not be read.
            return 0;
        }
        let may_fork = sequence.num_output_tokens() == 0 && sequence.sampling.n > 1;
        match choice {
            Ok(sampled) => extend(sequence, sampled, events),
            Err(error) => {
                sequence.finish = Some(FinishReason::Error(error.to_string()));
                return 0;
            }
        }
        if may_fork { 1 + self.fork_siblings(index, row, events) } else { 1 }
    }

    /// Lets the waiting sequences of a request go on from the prompt of the running one at `index`,
    /// each with its own token from the same row. Returns how many tokens that made.
    fn fork_siblings(&mut self, index: usize, row: &[f32], events: &mut Vec<EngineEvent>) -> u32 {
        let mut num_forks = 0;
        while let Some(mut sibling) = self.scheduler.fork_sibling(index, self.forked.len()) {
            if let Some(constrained) = &mut sibling.constrained {
                constrained.settle();
            }
            let sampled = self.sampler.sample_next(row, &sibling);
            match sampled {
                Ok(sampled) => {
                    extend(&mut sibling, sampled, events);
                    num_forks += 1;
                }
                Err(error) => sibling.finish = Some(FinishReason::Error(error.to_string())),
            }
            self.forked.push(sibling);
        }
        num_forks
    }

    /// Keeps a row's candidates for a beam.
    fn take_beam_row(&mut self, index: usize, row: &[f32]) {
        let Sequence { id, sampling, beam, .. } = self.scheduler.running_mut(index);
        let live = self.requests.get_mut(&id.request).expect("its sequence is alive");
        let search = live.search.as_mut().expect("a beam has a search");
        let num_top = sampling.logprobs.unwrap_or(0);
        match self.sampler.beam_row(row, BeamSearch::num_candidates(sampling), num_top) {
            Ok(row) => {
                beam.as_mut().expect("the caller has seen it").row = Some(row);
                if search.count_row() {
                    self.ready_searches.push(id.request);
                }
            }
            Err(error) => {
                let reason = FinishReason::Error(error.to_string());
                self.failed_searches.push((id.request, reason));
            }
        }
    }

    /// Ends the sequences of the plan's entries from `first_entry` on, which the device could not
    /// compute; their new KV is undefined.
    pub(super) fn fail_batch(&mut self, first_entry: usize, error: &ExecutorError) -> u32 {
        for entry in &self.plan.scheduled[first_entry..] {
            let sequence = self.scheduler.running_mut(entry.running_index);
            let reason = FinishReason::Error(error.to_string());
            if sequence.beam.is_some() {
                self.failed_searches.push((sequence.id.request, reason));
            } else {
                sequence.finish = Some(reason);
            }
        }
        0
    }
}

/// Makes a token part of its sequence, and tells it.
#[inline]
fn extend(sequence: &mut Sequence, sampled: SampledToken, events: &mut Vec<EngineEvent>) {
    let SampledToken { token, logprobs } = sampled;
    sequence.extend(token);
    events.push(EngineEvent::Token { sequence: sequence.id, token, logprobs });
}
