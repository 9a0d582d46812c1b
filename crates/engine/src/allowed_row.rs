//! The part of a row of logits that a constraint allows.
//!
//! At temperature 0 the most likely allowed token is looked for in place. Otherwise the allowed logits
//! are copied side by side, so that whatever chooses from a row chooses from them as if the vocabulary
//! had no other tokens: filters count and weigh only them, and ties still go to the lower id. Nothing
//! becomes infinite, because nothing is masked with an infinity. Costs a pass over the row or, where
//! it is copied, the words of the mask and the allowed tokens. Log probabilities are still those of
//! the whole row: what the model thought, not what it was left with.

use crate::random::Draw;
use crate::sampler::Sampler;
use crate::softmax::{SPAN, finite_max, larger};
use mini_infer_core::{SamplingParams, TokenId, TokenMask};

/// Tokens of one word of a mask.
const WORD: usize = u32::BITS as usize;

/// Allowed logits and whose they are; keeps its memory between rows.
#[derive(Debug, Default)]
pub(crate) struct AllowedRow {
    /// Ascending by token, `[num_allowed]`.
    logits: Vec<f32>,
    tokens: Vec<TokenId>,
}

impl AllowedRow {
    /// Copies what `mask` allows out of `row`, `[vocab_size]`; allowed tokens beyond the row do not
    /// exist.
    fn gather(&mut self, row: &[f32], mask: &TokenMask) {
        self.logits.clear();
        self.tokens.clear();
        for ((start, chunk), &word) in (0..).step_by(WORD).zip(row.chunks(WORD)).zip(mask.words()) {
            if word == u32::MAX {
                self.logits.extend_from_slice(chunk);
                self.tokens.extend((start..).take(chunk.len()));
                continue;
            }
            let mut left = word;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let Some(&logit) = chunk.get(bit as usize) else { break };
                self.logits.push(logit);
                self.tokens.push(start + bit);
            }
        }
    }
}

/// Returns the first index of a finite row that holds the largest of the allowed logits, `None`
/// where none is allowed.
fn most_likely_allowed(row: &[f32], mask: &TokenMask) -> Option<usize> {
    let (mut max, mut found) = (f32::NEG_INFINITY, None);
    let spans = row.chunks(SPAN).zip(mask.words().chunks(SPAN / WORD));
    for (start, (span, words)) in (0..).step_by(SPAN).zip(spans) {
        let of_span = allowed_max(span, words);
        if of_span > max {
            (max, found) = (of_span, Some((start, span, words)));
        }
    }
    // Only the span that holds it is looked at again.
    let (start, span, words) = found?;
    let is_it = |i: &usize| span[*i] == max && words[i / WORD] >> (i % WORD) & 1 == 1;
    (0..span.len().min(words.len() * WORD)).find(is_it).map(|i| start + i)
}

/// Returns the largest allowed logit of a span, minus infinity where none is allowed.
fn allowed_max(span: &[f32], words: &[u32]) -> f32 {
    let (chunks, rest) = span.as_chunks::<WORD>();
    let mut maxima = [f32::NEG_INFINITY; WORD];
    // No branch and no shift by a variable, so that this is vector code.
    let allowed = |logit: f32, word: u32, i: usize| {
        if word & (1 << i) == 0 { f32::NEG_INFINITY } else { logit }
    };
    for (chunk, &word) in chunks.iter().zip(words) {
        for i in 0..WORD {
            maxima[i] = larger(allowed(chunk[i], word, i), maxima[i]);
        }
    }
    if let Some(&word) = words.get(chunks.len()) {
        for (i, &logit) in rest.iter().enumerate() {
            maxima[i] = larger(allowed(logit, word, i), maxima[i]);
        }
    }
    maxima.into_iter().fold(f32::NEG_INFINITY, larger)
}

impl Sampler {
    /// Chooses the index of one of the allowed tokens of a finite `row`, `[vocab_size]`; `None` when
    /// there are none.
    pub(crate) fn choose_allowed(
        &mut self,
        row: &[f32],
        mask: &TokenMask,
        params: &SamplingParams,
        draw: Draw,
    ) -> Option<usize> {
        if params.temperature == 0.0 {
            return most_likely_allowed(row, mask);
        }
        let mut allowed = std::mem::take(&mut self.allowed);
        allowed.gather(row, mask);
        let index =
            finite_max(&allowed.logits).map(|max| self.choose(&allowed.logits, max, params, draw));
        let token = index.map(|index| allowed.tokens[index] as usize);
        self.allowed = allowed;
        token
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::SampledToken;

    /// A row whose best tokens are at the end.
    fn row() -> Vec<f32> {
        (0..100_u8).map(|token| f32::from(token) / 10.0).collect()
    }

    fn sample(mask: &TokenMask, params: &SamplingParams, uniform: f64) -> Option<SampledToken> {
        sample_from(&row(), mask, params, uniform)
    }

    fn sample_from(
        row: &[f32],
        mask: &TokenMask,
        params: &SamplingParams,
        uniform: f64,
    ) -> Option<SampledToken> {
        let (mut sampler, max) = (Sampler::default(), finite_max(row).unwrap());
        let index = sampler.choose_allowed(row, mask, params, Draw { uniform, coin: 0.5 })?;
        Some(sampler.sampled(row, max, index, params))
    }

    #[test]
    fn only_allowed_tokens_count_for_the_filters() {
        let mask: TokenMask = [3, 40, 41, 42].into_iter().collect();
        let greedy = SamplingParams::greedy(1);
        assert_eq!(sample(&mask, &greedy, 0.5).unwrap().token, 42);
        let params = SamplingParams { temperature: 1.0, ..greedy };
        let reach = |params: &SamplingParams| -> Vec<TokenId> {
            let draws = (0..1000).map(|i| f64::from(i) / 1000.0);
            let mut tokens: Vec<TokenId> =
                draws.map(|uniform| sample(&mask, params, uniform).unwrap().token).collect();
            tokens.dedup();
            tokens
        };
        assert_eq!(reach(&SamplingParams { temperature: 2.0, ..params.clone() }), [3, 40, 41, 42]);
        assert_eq!(reach(&SamplingParams { top_k: Some(2), ..params.clone() }), [41, 42]);
        // Of 1, 0.9 and 0.82 relative to the best, the first two are 0.7 of the sum.
        assert_eq!(reach(&SamplingParams { top_p: 0.65, ..params.clone() }), [41, 42]);
        assert_eq!(reach(&SamplingParams { min_p: 0.95, ..params }), [42]);
    }

    #[test]
    fn a_mask_of_everything_changes_nothing() {
        let all: TokenMask = (0..200).collect();
        for params in [
            SamplingParams { logprobs: Some(3), ..SamplingParams::greedy(1) },
            SamplingParams { temperature: 1.3, top_p: 0.8, ..SamplingParams::greedy(1) },
            SamplingParams { temperature: 0.9, top_k: Some(7), ..SamplingParams::greedy(1) },
        ] {
            for uniform in [0.0, 0.3, 0.7, 0.999] {
                let plain = Sampler::default()
                    .sample(&row(), &params, Draw { uniform, coin: 0.5 })
                    .unwrap();
                assert_eq!(sample(&all, &params, uniform), Some(plain), "{params:?}");
            }
        }
    }

    #[test]
    fn log_probabilities_are_those_of_the_whole_row_and_finite() {
        let params = SamplingParams { logprobs: Some(20), ..SamplingParams::greedy(1) };
        let all: TokenMask = (0..100).collect();
        let whole = sample(&all, &params, 0.0).unwrap().logprobs.unwrap();
        let mask: TokenMask = [0].into_iter().collect();
        let sampled = sample(&mask, &params, 0.0).unwrap();
        let logprobs = sampled.logprobs.unwrap();
        assert_eq!((sampled.token, &logprobs.top), (0, &whole.top));
        assert!((logprobs.chosen - (whole.chosen - 9.9)).abs() < 1e-4);
        let extreme = [f32::MAX, f32::MIN];
        let last: TokenMask = [1].into_iter().collect();
        let sampled = sample_from(&extreme, &last, &params, 0.5);
        assert!(sampled.unwrap().logprobs.unwrap().chosen.is_finite());
    }

    #[test]
    fn the_most_likely_allowed_token_is_the_first_of_the_largest() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = mini_infer_core::mix64(state);
            state % below
        };
        for length in [1, 31, 32, 33, 1023, 1024, 1025, 5000] {
            for dense in [1, 2, 40] {
                let row: Vec<f32> = (0..length).map(|_| random(20) as f32 - 10.0).collect();
                let mask: TokenMask =
                    (0..3000).filter(|_| random(dense + 1) > 0 || random(9) == 0).collect();
                let allowed = mask.iter().filter(|&token| token < length);
                let logit = |token: TokenId| row[token as usize];
                let expected = allowed
                    .reduce(|best, token| if logit(token) > logit(best) { token } else { best });
                let found = most_likely_allowed(&row, &mask);
                let expected = expected.map(|token| token as usize);
                assert_eq!(found, expected, "{length} logits, {dense}");
            }
        }
    }

    #[test]
    fn without_an_allowed_token_there_is_no_choice() {
        let params = SamplingParams::greedy(1);
        assert_eq!(sample(&TokenMask::default(), &params, 0.5), None);
        let beyond: TokenMask = [100, 4000].into_iter().collect();
        assert_eq!(sample(&beyond, &params, 0.5), None);
    }
}
