//! Finds the log probabilities of prompt tokens in the rows before them, on the threads that the
//! executor lends.
//!
//! A row's result is a function of the row, the token and the number of alternatives, so neither the
//! thread nor the group that a row comes in matters.

use crate::sampler::NonFiniteLogits;
use crate::sampler_pool::SamplerPool;
use crate::softmax::finite_max;
use mini_infer_core::{Executor, RankedLogprobs, TokenId, TokenLogprobs};
use std::sync::{Mutex, PoisonError};

/// What is found in a row.
pub(crate) type Score = Result<RankedLogprobs, NonFiniteLogits>;

/// What is looked for in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoredToken {
    /// The token that follows in the prompt.
    pub(crate) token: TokenId,
    /// How many of the likeliest tokens are told.
    pub(crate) num_top: u32,
}

/// Scores one group of rows after the other; keeps its buffers.
#[derive(Debug, Default)]
pub(crate) struct PromptScorer {
    samplers: SamplerPool,
    scores: Vec<Mutex<Option<Score>>>,
}

impl PromptScorer {
    /// Looks into all rows of `logits`, `[wanted.len(), vocab_size]`.
    pub(crate) fn score_all<E: Executor>(
        &mut self,
        executor: &E,
        logits: &[f32],
        wanted: &[ScoredToken],
    ) {
        let vocab_size = executor.vocab_size();
        assert_eq!(logits.len(), wanted.len() * vocab_size, "the executor gave a wrong shape");
        self.scores.resize_with(wanted.len().max(self.scores.len()), Mutex::default);
        let (samplers, scores) = (&self.samplers, &self.scores);
        executor.compute_parts(wanted.len(), &|i| {
            let row = &logits[i * vocab_size..(i + 1) * vocab_size];
            let score = score(samplers, row, wanted[i]);
            *scores[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(score);
        });
    }

    /// Takes what was found in row `i`.
    ///
    /// # Panics
    /// When there was no such row, or it was taken.
    pub(crate) fn take(&mut self, i: usize) -> Score {
        let score = self.scores[i].get_mut().unwrap_or_else(PoisonError::into_inner).take();
        score.expect("every row was looked into")
    }
}

fn score(samplers: &SamplerPool, row: &[f32], wanted: ScoredToken) -> Score {
    let max = finite_max(row).ok_or(NonFiniteLogits)?;
    let ScoredToken { token, num_top } = wanted;
    let chosen = token as usize;
    let found = samplers.lend(|sampler| sampler.logprobs(row, max, chosen, num_top));
    let TokenLogprobs { chosen: logprob, top } = found;
    Ok(RankedLogprobs { rank: rank(row, chosen), chosen: logprob, top })
}

/// Returns how many tokens of a row come before one, and 1: those with a higher logit, and of equal
/// ones those with a lower id.
fn rank(row: &[f32], token: usize) -> u32 {
    let (before, rest) = row.split_at(token);
    let logit = rest[0];
    let num_before = before.iter().filter(|&&other| other >= logit).count();
    let num_behind = rest.iter().filter(|&&other| other > logit).count();
    1 + u32::try_from(num_before + num_behind).expect("token ids are u32s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_counts_what_is_likelier_and_of_equals_what_comes_first() {
        let row = [1.0, 3.0, -2.0, 3.0, 1.0];
        let ranks: Vec<u32> = (0..row.len()).map(|token| rank(&row, token)).collect();
        assert_eq!(ranks, [3, 1, 5, 2, 4]);
    }
}
