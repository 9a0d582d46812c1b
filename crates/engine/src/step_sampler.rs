//! Chooses the tokens of all rows of a step, on the threads that the executor lends.
//!
//! Each row is chosen from on its own, by a function of nothing but the row, its sequence's
//! parameters and position, so it does not matter which thread does it.

use crate::sampler::{self, NonFiniteLogits, SampledToken};
use crate::sampler_pool::SamplerPool;
use crate::sequence::Sequence;
use mini_infer_core::{ConstraintError, Executor};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What was chosen from a row.
pub(crate) type Choice = Result<SampledToken, NoChoice>;

/// Why no token can be chosen from a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoChoice {
    /// The device failed.
    NonFinite(NonFiniteLogits),
    /// It is not known what may come next.
    Unknown(ConstraintError),
    /// None of the row's tokens may come next.
    NoneAllowed,
}

impl From<NonFiniteLogits> for NoChoice {
    fn from(error: NonFiniteLogits) -> Self {
        Self::NonFinite(error)
    }
}

impl fmt::Display for NoChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NonFinite(error) => error.fmt(f),
            Self::Unknown(error) => error.fmt(f),
            Self::NoneAllowed => write!(f, "the constraint on the output allows no token here"),
        }
    }
}

/// The rows of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRows<'a> {
    /// `[num_rows, vocab_size]`.
    pub(crate) logits: &'a [f32],
    pub(crate) vocab_size: usize,
    /// Index of each row's sequence in `running`, `[num_rows]`.
    pub(crate) owners: &'a [usize],
    pub(crate) running: &'a [Sequence],
}

/// Samples the rows of one step after the other; keeps its buffers.
#[derive(Debug, Default)]
pub(crate) struct StepSampler {
    samplers: SamplerPool,
    choices: Vec<Mutex<Option<Choice>>>,
}

impl StepSampler {
    /// Chooses from every row whose sequence is not a beam.
    pub(crate) fn sample_all<E: Executor>(&mut self, executor: &E, rows: StepRows<'_>) {
        let num_rows = rows.owners.len();
        if self.choices.len() < num_rows {
            self.choices.resize_with(num_rows, Mutex::default);
        }
        let (samplers, choices) = (&self.samplers, &self.choices);
        executor.compute_parts(num_rows, &|i| {
            let logits = &rows.logits[i * rows.vocab_size..(i + 1) * rows.vocab_size];
            let sequence = &rows.running[rows.owners[i]];
            let choice = sequence.beam.is_none().then(|| choose(samplers, sequence, logits));
            *choices[i].lock().unwrap_or_else(PoisonError::into_inner) = choice;
        });
    }

    /// Takes what was chosen from row `i`, `None` for a beam.
    pub(crate) fn take(&mut self, i: usize) -> Option<Choice> {
        self.choices[i].get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Chooses the next token of a sequence from its row.
fn choose(samplers: &SamplerPool, sequence: &Sequence, row: &[f32]) -> Choice {
    let is_plain = sequence.processor.is_none() && sequence.constrained.is_none();
    if is_plain && sampler::takes_most_likely(&sequence.sampling) {
        return Ok(SampledToken { token: sampler::most_likely(row)?, logprobs: None });
    }
    samplers.lend(|sampler| sampler.sample_next(row, sequence))
}
