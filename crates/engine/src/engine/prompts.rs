//! Reports on prompts: what is read of the rows that a step keeps.
//!
//! Rows are read in groups of bounded size, whatever the chunk: logits of a whole chunk would take
//! more memory than the model has in some cases. A group may hold rows of several prompts, so that
//! short prompts are as quick as long ones.

use super::Engine;
use crate::prompt_scorer::ScoredToken;
use mini_infer_core::{Clock, EngineEvent, Executor, FinishReason, RowForm};

/// Logits that are read at once at most, 16 MiB: rows enough for a product that reads the output
/// head to be bound by arithmetic (85 with 49,152 tokens in the vocabulary, 16 with 262,144), and
/// little beside the memory that is kept for activations.
const MAX_LOGITS_AT_ONCE: usize = 4 << 20;

/// A row that the step kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptRow {
    /// Index of its sequence among the running ones.
    owner: usize,
    form: RowForm,
    wanted: ScoredToken,
}

impl<E: Executor, C: Clock> Engine<E, C> {
    /// Reads the rows that were kept of the plan's entries from `first_entry` on, in the order of
    /// their batch. A sequence whose rows cannot be read ends.
    pub(super) fn read_prompts(&mut self, first_entry: usize, num_kept_rows: usize) {
        self.list_kept_rows(first_entry);
        assert_eq!(self.kept_rows.len(), num_kept_rows, "rows of another step");
        let at_once = (MAX_LOGITS_AT_ONCE / self.executor.vocab_size()).max(1);
        let kept = std::mem::take(&mut self.kept_rows);
        let mut first = 0;
        for run in kept.chunk_by(|a, b| a.form == b.form) {
            for group in run.chunks(at_once) {
                let rows = first..first + group.len();
                first = rows.end;
                let values = &mut self.kept_values;
                match self.executor.read_kept_rows(rows, group[0].form, values) {
                    Ok(()) => match group[0].form {
                        RowForm::Logits => self.take_logits(group),
                        RowForm::HiddenState => self.take_states(group),
                    },
                    Err(error) => {
                        for row in group {
                            self.fail_prompt(row.owner, error.to_string());
                        }
                    }
                }
            }
        }
        self.kept_rows = kept;
    }

    /// Finds out whose rows are kept.
    fn list_kept_rows(&mut self, first_entry: usize) {
        self.kept_rows.clear();
        for entry in &self.plan.scheduled[first_entry..] {
            let owner = entry.running_index;
            let sequence = &self.scheduler.running()[owner];
            let Some(rows) = &sequence.prompt_rows else { continue };
            let (form, num_top) = (rows.form(), rows.num_top());
            self.kept_rows.extend(sequence.kept_positions(entry.num_tokens).map(|position| {
                // Where states are read, nobody looks at the token.
                let token = sequence.tokens.get(position as usize + 1).copied().unwrap_or(0);
                KeptRow { owner, form, wanted: ScoredToken { token, num_top } }
            }));
        }
    }

    fn take_logits(&mut self, group: &[KeptRow]) {
        let wanted: Vec<ScoredToken> = group.iter().map(|row| row.wanted).collect();
        self.prompt_scorer.score_all(&self.executor, &self.kept_values, &wanted);
        for (i, row) in group.iter().enumerate() {
            match self.prompt_scorer.take(i) {
                Ok(logprobs) => {
                    let rows = &mut self.scheduler.running_mut(row.owner).prompt_rows;
                    rows.as_mut().expect("it wants rows").push_logprobs(logprobs);
                }
                Err(error) => self.fail_prompt(row.owner, error.to_string()),
            }
        }
    }

    fn take_states(&mut self, group: &[KeptRow]) {
        let width = self.kept_values.len() / group.len();
        assert_eq!(self.kept_values.len(), group.len() * width, "the executor gave a wrong shape");
        for (i, row) in group.iter().enumerate() {
            let state = &self.kept_values[i * width..(i + 1) * width];
            if state.iter().all(|value| value.is_finite()) {
                let rows = &mut self.scheduler.running_mut(row.owner).prompt_rows;
                rows.as_mut().expect("it wants rows").push_state(state);
            } else {
                let message = "the forward pass gave hidden states that are not finite";
                self.fail_prompt(row.owner, message.to_owned());
            }
        }
    }

    fn fail_prompt(&mut self, owner: usize, message: String) {
        let sequence = self.scheduler.running_mut(owner);
        sequence.finish.get_or_insert(FinishReason::Error(message));
    }

    /// Tells what was found out about a prompt that is computed, and ends its sequence if nothing
    /// else is wanted.
    pub(super) fn tell_prompt(&mut self, index: usize, events: &mut Vec<EngineEvent>) {
        let sequence = self.scheduler.running_mut(index);
        let is_computed = sequence.table.num_computed_tokens() >= sequence.num_prompt_tokens;
        if !is_computed || sequence.finish.is_some() {
            return;
        }
        if let Some(rows) = sequence.prompt_rows.take() {
            events.push(rows.into_event(sequence.id));
        }
        if !sequence.wants_output() {
            sequence.finish = Some(FinishReason::Length);
        }
    }
}
