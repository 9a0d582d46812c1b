//! Chooses a token from a row of logits.
//!
//! The result is a function of the row, the parameters and the random number alone. Temperature 0
//! takes the largest logit, ties to the lowest id. Otherwise, in this order, as in Hugging Face's
//! transformers: `temperature` divides the logits; `top_k` keeps the k best; `top_p` keeps the
//! smallest set of the best whose share of what `top_k` left reaches p; `min_p` drops those less
//! likely than that share of the best; `typical_p` and XTC drop what [`typical`] and [`xtc`] say. One of the survivors is drawn, walked in ascending id.
//! "Best" always means by logit, ties to the lower id. A sequence's logits processor changes the row
//! before all this, at temperature 0 as well.
//!
//! The vocabulary is never sorted: `top_k` gathers the few candidates that can matter and selects
//! among them, and without it the row is cut where `top_p` and `min_p` end and drawn from as a whole,
//! unless [`candidate_filters`] want a list.
//! Log probabilities come from the raw logits, before everything else.

mod candidate_filters;
mod typical;
mod xtc;

use crate::allowed_row::AllowedRow;
use crate::beam_search::{BeamCandidate, BeamRow};
use crate::dry::DryRoom;
use crate::random::Draw;
use crate::row_cut::{CutSearch, RowCut, WeightedRow, kept_if};
use crate::sequence::Sequence;
use crate::softmax::{LogSoftmax, SPAN, Weighting, finite_argmax, finite_max};
use crate::step_sampler::NoChoice;
use mini_infer_core::{SamplingParams, TokenId, TokenLogprobs};
use std::cmp::Ordering;
use std::fmt;

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampledToken {
    pub(crate) token: TokenId,
    pub(crate) logprobs: Option<TokenLogprobs>,
}

/// A row that holds an infinity or something that is not a number: the device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NonFiniteLogits;

impl fmt::Display for NonFiniteLogits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the forward pass gave logits that are not finite")
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) logit: f32,
    pub(crate) token: TokenId,
}

/// Orders candidates best first; total, because logits are finite and ids differ.
pub(crate) fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// Tells whether [`most_likely`] is all that these parameters ask for.
#[inline]
pub(crate) fn takes_most_likely(params: &SamplingParams) -> bool {
    params.temperature == 0.0 && params.logprobs.is_none()
}

/// Chooses the most likely token: what [`Sampler::sample`] chooses at temperature 0.
///
/// # Errors
/// Returns [`NonFiniteLogits`] when the row is not finite.
#[inline]
pub(crate) fn most_likely(row: &[f32]) -> Result<TokenId, NonFiniteLogits> {
    finite_argmax(row).map(token_at).ok_or(NonFiniteLogits)
}

/// Chooses tokens; keeps its buffers between calls.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    candidates: Vec<Candidate>,
    weights: Vec<f32>,
    span_sums: Vec<f64>,
    /// A row as a logits processor left it.
    processed: Vec<f32>,
    deviations: Vec<typical::Deviation>,
    dry_room: DryRoom,
    /// Where a constraint's part of a row is gathered.
    pub(crate) allowed: AllowedRow,
}

/// Logits of which [`gather`] takes the wanted ones at once.
pub(crate) const GATHERED_AT_ONCE: usize = 32;

/// Weights that are added up at once.
const LANES: usize = 8;

/// Candidates that are sorted outright while a border among them is looked for.
const SORTED_AT_ONCE: usize = 64;

impl Sampler {
    /// Chooses the next token of a sequence from `row`, `[vocab_size]`, among those that its
    /// constraint allows.
    ///
    /// # Errors
    /// Returns why there is none.
    pub(crate) fn sample_next(
        &mut self,
        row: &[f32],
        sequence: &Sequence,
    ) -> Result<SampledToken, NoChoice> {
        let (params, draw) = (&sequence.sampling, sequence.next_draw());
        let max = finite_max(row).ok_or(NonFiniteLogits)?;
        let mut processed = std::mem::take(&mut self.processed);
        let changed = match &sequence.processor {
            None => row,
            Some(processor) => {
                processed.clear();
                processed.extend_from_slice(row);
                processor.process(&sequence.tokens, &mut processed, &mut self.dry_room);
                &processed
            }
        };
        let index = match &sequence.constrained {
            None if sequence.processor.is_none() => Ok(self.choose(row, max, params, draw)),
            None => {
                let max = finite_max(changed).expect("what is finite stays finite");
                Ok(self.choose(changed, max, params, draw))
            }
            Some(constrained) => match constrained.allowed() {
                Ok(mask) => {
                    self.choose_allowed(changed, mask, params, draw).ok_or(NoChoice::NoneAllowed)
                }
                Err(error) => Err(NoChoice::Unknown(error.clone())),
            },
        };
        self.processed = processed;
        Ok(self.sampled(row, max, index?, params))
    }

    /// Chooses a token from `row`, `[vocab_size]`, of which all are allowed.
    ///
    /// # Errors
    /// Returns [`NonFiniteLogits`] when the row is not finite.
    #[cfg(test)]
    pub(crate) fn sample(
        &mut self,
        row: &[f32],
        params: &SamplingParams,
        draw: Draw,
    ) -> Result<SampledToken, NonFiniteLogits> {
        let max = finite_max(row).ok_or(NonFiniteLogits)?;
        let index = self.choose(row, max, params, draw);
        Ok(self.sampled(row, max, index, params))
    }

    /// Chooses an index of a finite `row`, whose largest logit is `max`.
    pub(crate) fn choose(
        &mut self,
        row: &[f32],
        max: f32,
        params: &SamplingParams,
        draw: Draw,
    ) -> usize {
        if params.temperature == 0.0 {
            return finite_argmax(row).expect("the row is finite");
        }
        self.draw(row, max, params, draw)
    }

    /// Returns what is to be told about the chosen index of a raw row, whose largest logit is `max`.
    pub(crate) fn sampled(
        &mut self,
        row: &[f32],
        max: f32,
        index: usize,
        params: &SamplingParams,
    ) -> SampledToken {
        let logprobs = params.logprobs.map(|num_top| self.logprobs(row, max, index, num_top));
        SampledToken { token: token_at(index), logprobs }
    }

    /// Returns the `num_candidates` most likely tokens of `row` for a beam search.
    ///
    /// # Errors
    /// Returns [`NonFiniteLogits`] when the row is not finite.
    pub(crate) fn beam_row(
        &mut self,
        row: &[f32],
        num_candidates: usize,
        num_top: u32,
    ) -> Result<BeamRow, NonFiniteLogits> {
        let max = finite_max(row).ok_or(NonFiniteLogits)?;
        let softmax = LogSoftmax::of_row(row, max);
        self.gather_sorted(row, num_candidates.max(num_top as usize));
        let best: Vec<BeamCandidate> = self
            .candidates
            .iter()
            .map(|best| BeamCandidate { token: best.token, logprob: softmax.at(best.logit) })
            .collect();
        let top = best.iter().take(num_top as usize).map(|best| (best.token, best.logprob));
        let top = top.collect();
        Ok(BeamRow { candidates: best.into_iter().take(num_candidates).collect(), top })
    }

    /// Draws an index of `row` among those that the filters leave.
    fn draw(&mut self, row: &[f32], max: f32, params: &SamplingParams, draw: Draw) -> usize {
        let weighting = Weighting::new(max, params.temperature);
        let lists = candidate_filters::are_wanted(params);
        let top_k = params.top_k.map(|k| k as usize).filter(|&k| k < row.len());
        if let Some(k) = top_k {
            self.gather_best(row, k);
            self.cut_candidates(weighting, params);
            return self.draw_through_filters(weighting, params, draw);
        }
        if params.top_p >= 1.0 && params.min_p == 0.0 && !lists {
            return self.draw_from_row(row, weighting, draw.uniform);
        }
        let mass = self.weigh(row, weighting);
        let mut cut = RowCut::NONE;
        if params.top_p < 1.0 {
            let weighted = WeightedRow { logits: row, weights: &self.weights };
            let target = f64::from(params.top_p) * mass;
            let search = CutSearch { max, unit: params.temperature, mass, target };
            cut = RowCut::find(weighted, search, &mut self.candidates);
        }
        if lists {
            self.gather_cut(row, cut, params.min_p);
            return self.draw_through_filters(weighting, params, draw);
        }
        self.draw_from_cut(row, cut, params.min_p, draw.uniform)
    }

    /// Drops those of the candidates that `top_p` and `min_p` do, and puts the others in the order
    /// of their ids.
    fn cut_candidates(&mut self, weighting: Weighting, params: &SamplingParams) {
        if params.top_p < 1.0 {
            let target = f64::from(params.top_p) * self.mass(weighting);
            self.keep_nucleus(weighting, target);
        }
        if params.min_p > 0.0 {
            self.candidates.retain(|candidate| weighting.of(candidate.logit) >= params.min_p);
        }
        // Stable, because that takes advantage of the runs that are in order already.
        self.candidates.sort_by_key(|candidate| candidate.token);
    }

    /// Draws one of the candidates, in ascending id.
    fn draw_kept(&mut self, weighting: Weighting, uniform: f64) -> usize {
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|best| weighting.of(best.logit)));
        let mass: f64 = self.weights.iter().map(|&weight| f64::from(weight)).sum();
        let i = walk(self.weights.iter().copied(), uniform * mass);
        self.candidates[i].token as usize
    }

    /// Computes the weights of all of a row and returns their sum.
    fn weigh(&mut self, row: &[f32], weighting: Weighting) -> f64 {
        self.weights.resize(row.len(), 0.0);
        weighting.fill(row, &mut self.weights);
        sum(&self.weights)
    }

    /// Draws an index of `row` in two steps, first the span it lies in.
    fn draw_from_row(&mut self, row: &[f32], weighting: Weighting, uniform: f64) -> usize {
        self.span_sums.clear();
        self.span_sums.extend(row.chunks(SPAN).map(|span| weighting.sum(span)));
        let (span, left) = self.draw_span(uniform);
        let logits = row.chunks(SPAN).nth(span).unwrap_or_default();
        span * SPAN + walk(logits.iter().map(|&logit| weighting.of(logit)), left)
    }

    /// Draws an index among the weighed ones that are in a cut and weigh enough.
    fn draw_from_cut(&mut self, row: &[f32], cut: RowCut, least: f32, uniform: f64) -> usize {
        let [up_to_last, behind_last] = cut.bars();
        // Zeroes what is dropped, so that drawing needs no test.
        let keep = |bar: f32, logits: &[f32], weights: &mut [f32]| {
            for (&logit, weight) in logits.iter().zip(weights) {
                *weight = kept_if(u32::from((logit >= bar) & (*weight >= least)), *weight);
            }
        };
        self.span_sums.clear();
        let spans = row.chunks(SPAN).zip(self.weights.chunks_mut(SPAN)).enumerate();
        for (i, (logits, weights)) in spans {
            let middle = cut.num_up_to_last(i * SPAN, logits.len());
            keep(up_to_last, &logits[..middle], &mut weights[..middle]);
            keep(behind_last, &logits[middle..], &mut weights[middle..]);
            self.span_sums.push(sum(weights));
        }
        let (span, left) = self.draw_span(uniform);
        let weights = self.weights.chunks(SPAN).nth(span).unwrap_or_default();
        span * SPAN + walk(weights.iter().copied(), left)
    }

    /// Draws a span by the sums of all, and returns it with what is left of the number in it.
    fn draw_span(&self, uniform: f64) -> (usize, f64) {
        let sums = &self.span_sums;
        let last = sums.iter().rposition(|&sum| sum > 0.0).unwrap_or(0);
        let mut left = uniform * sums.iter().sum::<f64>();
        let mut span = 0;
        while span < last && left >= sums[span] {
            left -= sums[span];
            span += 1;
        }
        (span, left)
    }

    /// Makes the `k` best of `row` the candidates, in no particular order.
    fn gather_best(&mut self, row: &[f32], k: usize) {
        self.candidates.clear();
        if k == 0 {
            return;
        }
        // Once k candidates are known, only a logit above the worst of them matters: an equal one
        // comes later and so loses the tie.
        let mut bar = f32::NEG_INFINITY;
        for (first, chunk) in (0..).step_by(GATHERED_AT_ONCE).zip(row.chunks(GATHERED_AT_ONCE)) {
            gather(&mut self.candidates, first, chunk, |logit| logit > bar);
            if self.candidates.len() >= 2 * k + GATHERED_AT_ONCE {
                bar = self.keep_best(k);
            }
        }
        if self.candidates.len() > k {
            self.keep_best(k);
        }
    }

    /// Drops all but the `k` best candidates and returns the worst logit kept.
    fn keep_best(&mut self, k: usize) -> f32 {
        let (_, worst, _) = self.candidates.select_nth_unstable_by(k - 1, best_first);
        let bar = worst.logit;
        self.candidates.truncate(k);
        bar
    }

    /// Drops all but the smallest set of best candidates whose weights sum to at least `target`;
    /// keeps all when rounding leaves their sum just below. Costs O(candidates).
    fn keep_nucleus(&mut self, weighting: Weighting, target: f64) {
        let weigh = |candidates: &[Candidate]| -> f64 {
            candidates.iter().map(|candidate| f64::from(weighting.of(candidate.logit))).sum()
        };
        // The border lies in low..high; `kept` is the weight of the candidates before low.
        let (mut low, mut high, mut kept) = (0, self.candidates.len(), 0.0);
        while high - low > SORTED_AT_ONCE {
            let half = (high - low) / 2;
            let (better, _, _) =
                self.candidates[low..high].select_nth_unstable_by(half, best_first);
            let mass = weigh(better);
            if kept + mass >= target {
                high = low + half;
            } else {
                kept += mass;
                low += half;
            }
        }
        self.candidates[low..high].sort_unstable_by(best_first);
        while low < high && kept < target {
            kept += weigh(&self.candidates[low..=low]);
            low += 1;
        }
        self.candidates.truncate(low);
    }

    /// Returns the sum of the candidates' weights.
    fn mass(&self, weighting: Weighting) -> f64 {
        self.candidates.iter().map(|candidate| f64::from(weighting.of(candidate.logit))).sum()
    }

    /// Returns the log probabilities of the chosen token and of the `num_top` best.
    pub(crate) fn logprobs(
        &mut self,
        row: &[f32],
        max: f32,
        chosen: usize,
        num_top: u32,
    ) -> TokenLogprobs {
        let softmax = LogSoftmax::of_row(row, max);
        self.gather_sorted(row, num_top as usize);
        let top = self.candidates.iter().map(|best| (best.token, softmax.at(best.logit))).collect();
        TokenLogprobs { chosen: softmax.at(row[chosen]), top }
    }

    /// Makes the `k` best of `row`, or all, the candidates, best first.
    fn gather_sorted(&mut self, row: &[f32], k: usize) {
        self.gather_best(row, k.min(row.len()));
        self.candidates.sort_unstable_by(best_first);
    }
}

/// Adds the wanted logits of up to [`GATHERED_AT_ONCE`] that start at index `first`.
#[inline]
pub(crate) fn gather(
    candidates: &mut Vec<Candidate>,
    first: usize,
    chunk: &[f32],
    wanted: impl Fn(f32) -> bool,
) {
    // Most chunks have none; a fixed length and no early exit let the test be vector code.
    if let Ok(chunk) = <&[f32; GATHERED_AT_ONCE]>::try_from(chunk)
        && !chunk.iter().fold(false, |any, &logit| any | wanted(logit))
    {
        return;
    }
    // Every logit is written and only the wanted ones stay, because a branch on each would be
    // mispredicted half the time where many are wanted.
    let mut found = [Candidate { logit: 0.0, token: 0 }; GATHERED_AT_ONCE];
    let mut num_found = 0;
    for (token, &logit) in (token_at(first)..).zip(chunk) {
        found[num_found] = Candidate { logit, token };
        num_found += usize::from(wanted(logit));
    }
    candidates.extend_from_slice(&found[..num_found]);
}

/// Returns the sum of weights.
fn sum(weights: &[f32]) -> f64 {
    let (chunks, rest) = weights.as_chunks::<LANES>();
    let mut sums = [0.0_f64; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            sums[i] += f64::from(chunk[i]);
        }
    }
    sums.into_iter().chain(rest.iter().copied().map(f64::from)).sum()
}

/// Returns the index at which the running sum of `weights` passes `target`, the last index with a
/// positive weight when rounding keeps the sum below it.
fn walk(weights: impl Iterator<Item = f32>, target: f64) -> usize {
    let mut sum = 0.0;
    let mut last = 0;
    for (i, weight) in weights.enumerate() {
        if weight > 0.0 {
            sum += f64::from(weight);
            last = i;
            if sum > target {
                break;
            }
        }
    }
    last
}

pub(crate) fn token_at(index: usize) -> TokenId {
    TokenId::try_from(index).expect("a vocabulary has fewer than 2^32 tokens")
}

#[cfg(test)]
mod tests;
