//! Changes a row of logits before a token is chosen from it: biases, penalties, forbidden ends.
//!
//! Owns the counts of one sequence's tokens that penalties need. They are a function of its tokens,
//! so a sequence that is preempted and computed again keeps them. In this order, as in vLLM (0.11):
//! `logit_bias` is added; the repetition penalty divides positive logits and multiplies negative
//! ones of every token in prompt or output; the frequency penalty is subtracted for each occurrence
//! in the output, the presence penalty once; the DRY penalty of a repetition is. Before `min_tokens` output tokens, stop tokens are
//! then put so far below all others that they are not drawn.
//!
//! A row costs O(distinct tokens that occurred + biases), for DRY O(last tokens), and a pass over the row while stop tokens
//! are forbidden. What is finite stays finite, and what is not is left for the sampler to refuse.

use crate::dry::{self, DryRoom};
use mini_infer_core::{FixedHashMap, Penalties, SamplingParams, TokenId};
use std::sync::Arc;

/// The tokens of a prompt, each once, in ascending order; empty where no penalty asks for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PromptTokens(Arc<[TokenId]>);

/// How far below all others a forbidden token lies at least: at the highest temperature, 2, the
/// exponential of half of it is 0 in single precision.
const FORBIDDEN_DEPTH: f32 = 1000.0;

impl PromptTokens {
    /// Returns those of `prompt`, if `sampling` needs them. Costs O(prompt + vocabulary / 64).
    pub(crate) fn of(prompt: &[TokenId], sampling: &SamplingParams) -> Self {
        if sampling.penalties.repetition == Penalties::NONE.repetition {
            return Self::default();
        }
        let largest = prompt.iter().copied().max().unwrap_or(0) as usize;
        let mut words = vec![0_u64; largest / 64 + 1];
        for &token in prompt {
            words[token as usize / 64] |= 1 << (token % 64);
        }
        let of_word = |(first, &word): (TokenId, &u64)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        };
        Self((0..).step_by(64).zip(&words).flat_map(of_word).collect())
    }

    fn contains(&self, token: TokenId) -> bool {
        self.0.binary_search(&token).is_ok()
    }
}

/// Changes the rows of one sequence.
#[derive(Debug)]
pub(crate) struct LogitsProcessor {
    sampling: Arc<SamplingParams>,
    prompt: PromptTokens,
    num_output_tokens: u32,
    /// How often each token was generated; empty without penalties.
    counts: FixedHashMap<TokenId, u32>,
}

impl LogitsProcessor {
    /// Creates that of a sequence without output, `None` when its logits stay as they are.
    pub(crate) fn new(sampling: &Arc<SamplingParams>, prompt: &PromptTokens) -> Option<Box<Self>> {
        let processor = || Self {
            sampling: Arc::clone(sampling),
            prompt: prompt.clone(),
            num_output_tokens: 0,
            counts: FixedHashMap::default(),
        };
        sampling.changes_logits().then(|| Box::new(processor()))
    }

    /// Takes a generated token into account.
    pub(crate) fn push(&mut self, token: TokenId) {
        self.num_output_tokens += 1;
        if self.sampling.penalties != Penalties::NONE {
            *self.counts.entry(token).or_default() += 1;
        }
    }

    /// Changes the row that is to follow `tokens`, prompt and output of the sequence;
    /// `[vocab_size]`. `room` is to work in.
    pub(crate) fn process(&self, tokens: &[TokenId], row: &mut [f32], room: &mut DryRoom) {
        for &(token, bias) in &self.sampling.logit_bias {
            change(row, token, |logit| logit + bias);
        }
        self.penalize(row);
        if let Some(params) = &self.sampling.dry {
            for (token, penalty) in dry::penalties(params, tokens, room) {
                change(row, token, |logit| logit - penalty);
            }
        }
        let stops = &self.sampling.stop_token_ids;
        if self.num_output_tokens < self.sampling.min_tokens && !stops.is_empty() {
            forbid(row, stops);
        }
    }

    fn penalize(&self, row: &mut [f32]) {
        let Penalties { repetition, presence, frequency } = self.sampling.penalties;
        let repeated =
            |logit: f32| if logit > 0.0 { logit / repetition } else { logit * repetition };
        for &token in self.prompt.0.iter() {
            change(row, token, repeated);
        }
        for (&token, &count) in &self.counts {
            let is_repeated = self.prompt.contains(token);
            change(row, token, |logit| {
                let logit = if is_repeated { logit } else { repeated(logit) };
                logit - frequency * count as f32 - presence
            });
        }
    }
}

/// Changes the logit of a token; one that is finite stays so.
fn change(row: &mut [f32], token: TokenId, changed: impl Fn(f32) -> f32) {
    // Stop tokens may be unknown to the model, which then never gives them.
    if let Some(logit) = row.get_mut(token as usize)
        && logit.is_finite()
    {
        *logit = changed(*logit).clamp(f32::MIN, f32::MAX);
    }
}

/// Puts tokens below all others, however these are spread.
fn forbid(row: &mut [f32], tokens: &[TokenId]) {
    for &token in tokens {
        change(row, token, |_| f32::MIN);
    }
    let highest = row.iter().copied().fold(f32::MIN, f32::max);
    // No lower than needed: sums over the row stay exact, and searches in it short.
    let lowest = highest - highest.abs().max(FORBIDDEN_DEPTH);
    for &token in tokens {
        change(row, token, |_| lowest);
    }
}

#[cfg(test)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small made-up numbers"
)]
mod tests {
    use super::*;
    use crate::random::RandomStream;
    use crate::softmax::finite_max;
    use mini_infer_core::DryParams;

    /// What the row should become, one token after the other, in double precision.
    fn oracle(
        row: &[f32],
        sampling: &SamplingParams,
        prompt: &[TokenId],
        output: &[TokenId],
    ) -> Vec<f64> {
        let Penalties { repetition, presence, frequency } = sampling.penalties;
        let is_forbidden = |token: TokenId| {
            output.len() < sampling.min_tokens as usize && sampling.stop_token_ids.contains(&token)
        };
        (0..)
            .zip(row)
            .map(|(token, &logit)| {
                let mut logit = f64::from(logit);
                for &(biased, bias) in &sampling.logit_bias {
                    logit += if biased == token { f64::from(bias) } else { 0.0 };
                }
                let count = output.iter().filter(|&&given| given == token).count();
                if count > 0 || prompt.contains(&token) {
                    let factor = f64::from(repetition);
                    logit = if logit > 0.0 { logit / factor } else { logit * factor };
                }
                logit -= f64::from(frequency) * count as f64;
                logit -= if count > 0 { f64::from(presence) } else { 0.0 };
                if is_forbidden(token) { f64::NEG_INFINITY } else { logit }
            })
            .collect()
    }

    fn processed(
        row: &[f32],
        sampling: &SamplingParams,
        prompt: &[TokenId],
        output: &[TokenId],
    ) -> Vec<f32> {
        let sampling = Arc::new(sampling.clone());
        let prompt_tokens = PromptTokens::of(prompt, &sampling);
        let mut row = row.to_vec();
        if let Some(mut processor) = LogitsProcessor::new(&sampling, &prompt_tokens) {
            output.iter().for_each(|&token| processor.push(token));
            let tokens = [prompt, output].concat();
            processor.process(&tokens, &mut row, &mut DryRoom::default());
        }
        row
    }

    fn check(sampling: &SamplingParams) {
        let stream = RandomStream::new(3, 4);
        for len in [1, 7, 64, 65, 300_u16] {
            let row: Vec<f32> =
                (0..len).map(|i| (stream.uniform_at(i.into()) * 20.0 - 10.0) as f32).collect();
            let token = |i: u32| (stream.uniform_at(1000 + i) * f64::from(len)) as TokenId;
            let tokens: Vec<TokenId> = (0..200).map(token).collect();
            for (num_prompt, num_output) in [(1, 0), (1, 1), (90, 3), (40, 160)] {
                let (prompt, output) = tokens[..num_prompt + num_output].split_at(num_prompt);
                let got = processed(&row, sampling, prompt, output);
                let expected = oracle(&row, sampling, prompt, output);
                let best = expected.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                for (&got, expected) in got.iter().zip(expected) {
                    assert!(got.is_finite());
                    if expected.is_finite() {
                        assert!((f64::from(got) - expected).abs() < 1e-4, "{got} {expected}");
                    } else if best.is_finite() {
                        assert!(f64::from(got) <= best - 900.0, "{got} beside {best}");
                    }
                }
            }
        }
    }

    fn params() -> SamplingParams {
        SamplingParams::greedy(1000)
    }

    #[test]
    fn each_change_is_that_of_the_plain_loop() {
        let penalties = Penalties::NONE;
        check(&params());
        check(&SamplingParams { logit_bias: vec![(0, 100.0), (5, -100.0)], ..params() });
        for repetition in [0.5, 1.3, 10.0] {
            check(&SamplingParams { penalties: Penalties { repetition, ..penalties }, ..params() });
        }
        for amount in [-2.0, 0.7, 2.0] {
            let presence = Penalties { presence: amount, ..penalties };
            check(&SamplingParams { penalties: presence, ..params() });
            let frequency = Penalties { frequency: amount, ..penalties };
            check(&SamplingParams { penalties: frequency, ..params() });
        }
        check(&SamplingParams { min_tokens: 2, stop_token_ids: vec![3, 0, 900_000], ..params() });
    }

    #[test]
    fn changes_apply_one_after_the_other() {
        check(&SamplingParams {
            logit_bias: vec![(2, 30.0), (3, -4.0), (0, 100.0)],
            penalties: Penalties { repetition: 1.5, presence: 0.5, frequency: -0.25 },
            min_tokens: 4,
            stop_token_ids: vec![0, 6],
            ..params()
        });
    }

    #[test]
    fn repetitions_cost_what_dry_says() {
        let dry = DryParams {
            multiplier: 0.5,
            base: 2.0,
            allowed_length: 2,
            num_last_tokens: u32::MAX,
            breakers: Arc::default(),
        };
        let sampling = SamplingParams { dry: Some(dry), ..params() };
        let row = processed(&[1.0; 6], &sampling, &[1, 2, 3, 4], &[5, 1, 2, 3]);
        assert_eq!(row, [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn rows_stay_finite_at_the_ends_of_single_precision() {
        let sampling = SamplingParams {
            logit_bias: vec![(0, 100.0), (1, -100.0)],
            penalties: Penalties { repetition: 1e-30, presence: -2.0, frequency: -2.0 },
            min_tokens: 9,
            stop_token_ids: vec![2],
            ..params()
        };
        let row = processed(&[f32::MAX, f32::MIN, 0.0, 1.0], &sampling, &[0, 1], &[0, 1, 3]);
        assert!(row.iter().all(|logit| logit.is_finite()), "{row:?}");
        assert_eq!(row[0], f32::MAX);
        let all = SamplingParams { stop_token_ids: vec![0, 1], ..sampling };
        assert!(finite_max(&processed(&[1.0, 2.0], &all, &[], &[])).is_some());
    }

    #[test]
    fn a_row_that_is_not_finite_is_left_to_be_refused() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let sampling = SamplingParams {
                logit_bias: vec![(0, 5.0)],
                min_tokens: 9,
                stop_token_ids: vec![0],
                ..params()
            };
            assert_eq!(finite_max(&processed(&[bad, 1.0], &sampling, &[], &[])), None);
        }
    }

    #[test]
    fn the_tokens_of_a_prompt_are_told_once_and_in_order() {
        let penalties = Penalties { repetition: 1.1, ..Penalties::NONE };
        let sampling = SamplingParams { penalties, ..params() };
        let tokens = |prompt: &[TokenId]| PromptTokens::of(prompt, &sampling).0.to_vec();
        assert_eq!(tokens(&[200, 3, 63, 64, 3, 127, 0]), [0, 3, 63, 64, 127, 200]);
        assert_eq!(PromptTokens::of(&[1, 2], &params()).0.to_vec(), [], "nobody asks for them");
    }
}
