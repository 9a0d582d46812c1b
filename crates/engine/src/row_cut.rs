//! Finds where the best tokens of a row end, without sorting the row.
//!
//! "Best" is by logit, ties to the lower id, so a set of best tokens is told by its last one. The
//! search narrows a range of logits down: a probe is one pass of vector code over the row and its
//! weights that tells the mass at and above two bars, set close on both sides of where the last
//! probe lets the end be expected. When few logits are left in the range, these are sorted. Costs
//! some three passes, whatever the distribution.

use crate::sampler::{Candidate, GATHERED_AT_ONCE, best_first, gather, token_at};
use crate::softmax::SPAN;
use mini_infer_core::TokenId;

/// A set of best tokens, told by the last of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowCut {
    /// Logits above are in the set.
    logit: f32,
    /// Equal ones are up to this token.
    last: TokenId,
}

/// A row of finite logits and what each of its tokens weighs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightedRow<'a> {
    pub(crate) logits: &'a [f32],
    /// Never falls from one logit to a higher one.
    pub(crate) weights: &'a [f32],
}

/// Where a search begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutSearch {
    /// Largest logit of the row.
    pub(crate) max: f32,
    /// Difference of logits over which weights change by a factor of e.
    pub(crate) unit: f32,
    /// Weight of all tokens.
    pub(crate) mass: f64,
    /// Weight that the set must reach.
    pub(crate) target: f64,
}

/// Logits at or above one bar.
#[derive(Clone, Copy, Debug)]
struct Above {
    mass: f64,
    count: usize,
}

/// The end of the set lies at a logit in `low..high`.
#[derive(Clone, Copy, Debug)]
struct Range {
    low: f32,
    above_low: Above,
    high: f32,
    above_high: Above,
}

/// Logits that are handled at once.
const LANES: usize = 16;
/// Logits in the range that are sorted.
const SORTED_AT_ONCE: usize = 256;
/// Distances below the largest logit, in units, of the first two bars: the end lies between them
/// when the model is neither sure nor clueless.
const FIRST_DEPTHS: [f32; 2] = [6.0, 2.0];
/// Distance of the bars from where the end is expected, as a part of the range.
const MARGIN: f64 = 1.0 / 16.0;

impl RowCut {
    /// The whole row.
    pub(crate) const NONE: Self = Self { logit: f32::NEG_INFINITY, last: TokenId::MAX };

    /// Returns the smallest set of best tokens that weighs at least the target; the whole row when
    /// rounding leaves it just below. `candidates` is room to work in.
    pub(crate) fn find(
        row: WeightedRow<'_>,
        search: CutSearch,
        candidates: &mut Vec<Candidate>,
    ) -> Self {
        let CutSearch { max, unit, mass, target } = search;
        let mut range = Range {
            low: least(row.logits),
            above_low: Above { mass, count: row.logits.len() },
            high: max.next_up(),
            above_high: Above { mass: 0.0, count: 0 },
        };
        let mut bars = Some(FIRST_DEPTHS.map(|depth| max - unit * depth));
        let mut guess = Guess::Expected;
        while range.above_low.count - range.above_high.count > SORTED_AT_ONCE {
            let Some(both) = bars else {
                return Self::among_equals(row, range, target);
            };
            for (bar, above) in both.into_iter().zip(row.above(both)) {
                range.narrow(bar, above, target);
            }
            bars = range.bars(guess, target);
            guess = guess.other();
        }
        Self::among_few(row, range, target, candidates)
    }

    /// Finds the end among logits that all equal the low end of the range.
    fn among_equals(row: WeightedRow<'_>, range: Range, target: f64) -> Self {
        let mut mass = range.above_high.mass;
        let end = row.logits.iter().zip(row.weights).position(|(&logit, &weight)| {
            let is_equal = logit == range.low;
            mass += if is_equal { f64::from(weight) } else { 0.0 };
            is_equal && mass >= target
        });
        Self { logit: range.low, last: end.map_or(TokenId::MAX, token_at) }
    }

    /// Finds the end by sorting all logits of the range.
    fn among_few(
        row: WeightedRow<'_>,
        range: Range,
        target: f64,
        candidates: &mut Vec<Candidate>,
    ) -> Self {
        candidates.clear();
        for (first, logits) in
            (0..).step_by(GATHERED_AT_ONCE).zip(row.logits.chunks(GATHERED_AT_ONCE))
        {
            gather(candidates, first, logits, |logit| (logit >= range.low) & (logit < range.high));
        }
        candidates.sort_unstable_by(best_first);
        let mut mass = range.above_high.mass;
        let end = candidates.iter().find(|best| {
            mass += f64::from(row.weights[best.token as usize]);
            mass >= target
        });
        let end = end.or(candidates.last());
        end.map_or(Self::NONE, |end| Self { logit: end.logit, last: end.token })
    }

    /// Returns the least logits that are in the set, of tokens up to the last one and behind it.
    pub(crate) fn bars(self) -> [f32; 2] {
        [self.logit, self.logit.next_up()]
    }

    /// Returns how many of the `len` tokens from `first` on are up to the last one.
    pub(crate) fn num_up_to_last(self, first: usize, len: usize) -> usize {
        (self.last as usize).saturating_add(1).saturating_sub(first).min(len)
    }
}

/// Which logits are tried next.
#[derive(Clone, Copy, Debug)]
enum Guess {
    /// Those around the one expected if the mass were spread evenly.
    Expected,
    /// Those that part the range in three, so that it shrinks however the mass is spread.
    Thirds,
}

impl Guess {
    fn other(self) -> Self {
        match self {
            Self::Expected => Self::Thirds,
            Self::Thirds => Self::Expected,
        }
    }
}

impl Range {
    /// Takes into account what is at or above a bar, if that is inside.
    fn narrow(&mut self, bar: f32, above: Above, target: f64) {
        if bar <= self.low || bar >= self.high {
            return;
        }
        if above.mass >= target {
            (self.low, self.above_low) = (bar, above);
        } else {
            (self.high, self.above_high) = (bar, above);
        }
    }

    /// Returns two logits inside the range, `None` when there is none but the low end.
    fn bars(self, guess: Guess, target: f64) -> Option<[f32; 2]> {
        let (least, most) = (self.low.next_up(), self.high.next_down());
        if least > most {
            return None;
        }
        let (low, high) = (f64::from(self.low), f64::from(self.high));
        let depths = match guess {
            Guess::Thirds => [1.0 / 3.0, 2.0 / 3.0],
            Guess::Expected => {
                let mass = self.above_low.mass - self.above_high.mass;
                let depth = (target - self.above_high.mass) / mass;
                [depth - MARGIN, depth + MARGIN]
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "rounded, and then kept inside")]
        let bar = |depth: f64| ((high - (high - low) * depth) as f32).max(least).min(most);
        Some(depths.map(bar))
    }
}

impl WeightedRow<'_> {
    /// Returns what is at or above each of two bars.
    fn above(self, bars: [f32; 2]) -> [Above; 2] {
        let mut totals = [Above { mass: 0.0, count: 0 }; 2];
        // The second bar finds what the first one has read in the nearest cache.
        for (logits, weights) in self.logits.chunks(SPAN).zip(self.weights.chunks(SPAN)) {
            for (bar, total) in bars.into_iter().zip(&mut totals) {
                let of_span = above_in_span(logits, weights, bar);
                total.mass += of_span.mass;
                total.count += of_span.count;
            }
        }
        totals
    }
}

/// Returns what is at or above a bar among up to [`SPAN`] logits.
fn above_in_span(logits: &[f32], weights: &[f32], bar: f32) -> Above {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let (of_chunks, of_rest) = weights.as_chunks::<LANES>();
    let mut sums = [0.0_f32; LANES];
    let mut counts = [0_u32; LANES];
    for (chunk, weights) in chunks.iter().zip(of_chunks) {
        for i in 0..LANES {
            let is_above = u32::from(chunk[i] >= bar);
            sums[i] += kept_if(is_above, weights[i]);
            counts[i] += is_above;
        }
    }
    let mut mass = sums.iter().map(|&sum| f64::from(sum)).sum::<f64>();
    let mut count = counts.iter().sum::<u32>() as usize;
    for (&logit, &weight) in rest.iter().zip(of_rest) {
        if logit >= bar {
            mass += f64::from(weight);
            count += 1;
        }
    }
    Above { mass, count }
}

/// Returns the weight for 1 and zero for 0, without a branch.
#[inline]
pub(crate) fn kept_if(is_kept: u32, weight: f32) -> f32 {
    f32::from_bits(weight.to_bits() & is_kept.wrapping_neg())
}

/// Returns the least of a row's logits.
fn least(row: &[f32]) -> f32 {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut minima = [f32::INFINITY; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            minima[i] = if chunk[i] < minima[i] { chunk[i] } else { minima[i] };
        }
    }
    minima.iter().chain(rest).copied().fold(f32::INFINITY, f32::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::RandomStream;

    /// Finds the cut of a row whose weights are whole numbers, so that sums are exact, and compares
    /// it with the one found by sorting.
    fn check(name: &str, logits: &[f32], weights: &[f32], unit: f32) {
        let mut sorted: Vec<Candidate> =
            (0..).zip(logits).map(|(token, &logit)| Candidate { logit, token }).collect();
        sorted.sort_unstable_by(best_first);
        let mass: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        let max = sorted[0].logit;
        for share in [1e-9, 0.01, 0.3, 0.5, 0.777, 0.9, 0.999, 1.0] {
            let target = share * mass;
            let mut sum = 0.0;
            let last = sorted.iter().find(|best| {
                sum += f64::from(weights[best.token as usize]);
                sum >= target
            });
            let Candidate { logit, token } = *last.unwrap();
            let search = CutSearch { max, unit, mass, target };
            let got = RowCut::find(WeightedRow { logits, weights }, search, &mut Vec::new());
            assert_eq!(got, RowCut { logit, last: token }, "{name}, {share} of {}", logits.len());
        }
    }

    #[test]
    fn a_cut_is_where_sorting_finds_it() {
        let stream = RandomStream::new(3, 0);
        for len in [1, 2, 255, 257, 1023, 1025, 5000] {
            #[expect(clippy::cast_possible_truncation, reason = "rounding does no harm")]
            let uniform = |i: usize| stream.uniform_at(token_at(i)) as f32;
            let row = |logit: &dyn Fn(f32) -> f32| -> Vec<f32> {
                (0..len).map(|i| logit(uniform(i))).collect()
            };
            let rows = [
                ("spread", row(&|u| u * 40.0 - 20.0)),
                ("sure", row(&|u| 1.0 / (u + 1e-3))),
                ("close", row(&|u| 100.0 + u * 1e-4)),
                ("few values", row(&|u| (u * 3.0).floor() - 1.0)),
                ("equal", row(&|_| -0.0)),
                ("wide", row(&|u| (u - 0.5) * f32::MAX)),
                ("far apart", row(&|u| if u < 0.5 { f32::MIN } else { f32::MAX })),
                ("tiny", row(&|u| (u - 0.5) * 1e-44)),
            ];
            for (name, logits) in &rows {
                for unit in [1e-45, 0.7, 1e30] {
                    check(name, logits, &vec![1.0; len], unit);
                    // Higher logits weigh more, as they do in a softmax.
                    let middle = logits.iter().copied().fold(f32::MAX, f32::min) / 2.0;
                    let weights: Vec<f32> =
                        logits.iter().map(|&x| if x > middle { 64.0 } else { 1.0 }).collect();
                    check(name, logits, &weights, unit);
                }
            }
        }
    }
}
