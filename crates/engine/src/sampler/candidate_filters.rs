//! Draws through the filters that look at all candidates at once: typical and XTC.
//!
//! What `top_k`, `top_p` and `min_p` leave becomes a list of candidates in ascending id; each filter
//! shortens it. Without `top_k` the list may be as long as the vocabulary; it is never sorted.

use super::{Candidate, Draw, Sampler, token_at, typical, xtc};
use crate::row_cut::RowCut;
use crate::softmax::Weighting;
use mini_infer_core::{SamplingParams, XtcParams};

/// Tells whether these parameters need the list of candidates.
pub(super) fn are_wanted(params: &SamplingParams) -> bool {
    params.typical_p < 1.0 || params.xtc.probability > XtcParams::OFF.probability
}

impl Sampler {
    /// Draws among the candidates, in ascending id, after the filters of this module.
    pub(super) fn draw_through_filters(
        &mut self,
        weighting: Weighting,
        params: &SamplingParams,
        draw: Draw,
    ) -> usize {
        if params.typical_p < 1.0 {
            let (share, room) = (params.typical_p, &mut self.deviations);
            typical::keep_typical(&mut self.candidates, weighting, share, room);
        }
        if draw.coin < f64::from(params.xtc.probability) {
            xtc::exclude_top_choices(&mut self.candidates, weighting, params.xtc.threshold);
        }
        self.draw_kept(weighting, draw.uniform)
    }

    /// Makes the weighed tokens of `row` that are in a cut and weigh enough the candidates.
    pub(super) fn gather_cut(&mut self, row: &[f32], cut: RowCut, least: f32) {
        let [up_to_last, behind_last] = cut.bars();
        let middle = cut.num_up_to_last(0, row.len());
        let is_kept = |&(i, (&logit, &weight)): &(usize, (&f32, &f32))| {
            let bar = if i < middle { up_to_last } else { behind_last };
            logit >= bar && weight >= least && weight > 0.0
        };
        let kept = row.iter().zip(&self.weights).enumerate().filter(is_kept);
        let kept = kept.map(|(i, (&logit, _))| Candidate { logit, token: token_at(i) });
        self.candidates.clear();
        self.candidates.extend(kept);
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small made-up numbers")]
mod tests {
    use super::*;
    use crate::random::RandomStream;

    /// The filters one after the other, in double precision, on sorted lists. Returns what is kept
    /// with its weights, in ascending id.
    fn oracle(row: &[f32], params: &SamplingParams, coin: f64) -> Vec<(usize, f64)> {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let temperature = f64::from(params.temperature);
        let weigh = |i: usize| (i, (f64::from(row[i] - max) / temperature).exp());
        let mut kept: Vec<(usize, f64)> = (0..row.len()).map(weigh).collect();
        kept.sort_by(|a, b| row[b.0].total_cmp(&row[a.0]).then(a.0.cmp(&b.0)));
        kept.truncate(params.top_k.map_or(row.len(), |k| k as usize));
        keep_share(&mut kept, params.top_p);
        kept.retain(|&(_, weight)| weight >= f64::from(params.min_p));
        let mass: f64 = kept.iter().map(|&(_, weight)| weight).sum();
        if params.typical_p < 1.0 {
            let information = |weight: f64| -(weight / mass).ln();
            let entropy: f64 = kept.iter().map(|&(_, w)| w / mass * information(w)).sum();
            let distance = |weight: f64| (information(weight) - entropy).abs();
            kept.sort_by(|a, b| distance(a.1).total_cmp(&distance(b.1)).then(a.0.cmp(&b.0)));
            keep_share(&mut kept, params.typical_p);
        }
        kept.sort_by(|a, b| row[b.0].total_cmp(&row[a.0]).then(a.0.cmp(&b.0)));
        if coin < f64::from(params.xtc.probability) {
            let mass: f64 = kept.iter().map(|&(_, weight)| weight).sum();
            let is_top = |weight: f64| weight / mass >= f64::from(params.xtc.threshold);
            let num_tops = kept.iter().filter(|&&(_, weight)| is_top(weight)).count();
            kept.drain(..num_tops.saturating_sub(1));
        }
        kept.sort_unstable_by_key(|&(i, _)| i);
        kept
    }

    fn keep_share(kept: &mut Vec<(usize, f64)>, share: f32) {
        let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
        let mut sum = 0.0;
        let last = kept.iter().position(|&(_, weight)| {
            sum += weight;
            sum >= f64::from(share) * total
        });
        kept.truncate(last.map_or(kept.len(), |last| last + 1));
    }

    /// Logits that are far enough from each other that rounding moves no border.
    fn row(len: u32, spread: f64) -> Vec<f32> {
        let stream = RandomStream::new(len.into(), 7);
        (0..len).map(|i| (stream.uniform_at(i) * spread) as f32).collect()
    }

    fn check(params: &SamplingParams) {
        let mut sampler = Sampler::default();
        let stream = RandomStream::new(5, 6);
        for (len, spread) in [(1, 1.0), (2, 1.0), (33, 8.0), (300, 12.0), (3000, 20.0)] {
            let row = row(len, spread);
            for position in 0..30 {
                let draw = stream.draw_at(position);
                let kept = oracle(&row, params, draw.coin);
                let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
                let mut left = draw.uniform * total;
                let passes = |&&(_, weight): &&(usize, f64)| {
                    left -= weight;
                    left < 0.0
                };
                let &(expected, _) = kept.iter().find(passes).or(kept.last()).unwrap();
                let got = sampler.sample(&row, params, draw).unwrap().token;
                assert_eq!(got, token_at(expected), "{params:?} in a row of {len} at {position}");
            }
        }
    }

    fn params() -> SamplingParams {
        SamplingParams { temperature: 1.0, ..SamplingParams::greedy(1) }
    }

    const XTC: XtcParams = XtcParams { probability: 1.0, threshold: 0.1 };

    #[test]
    fn typical_keeps_what_is_about_as_likely_as_expected() {
        for typical_p in [1e-6, 0.2, 0.5, 0.95] {
            for temperature in [0.5, 1.0, 2.0] {
                check(&SamplingParams { typical_p, temperature, ..params() });
            }
        }
    }

    #[test]
    fn xtc_drops_all_top_choices_but_the_least_likely() {
        for threshold in [0.0, 0.01, 0.1, 0.3, 0.5, 1.0] {
            check(&SamplingParams { xtc: XtcParams { threshold, ..XTC }, ..params() });
        }
        for probability in [0.3, 0.8] {
            check(&SamplingParams { xtc: XtcParams { probability, ..XTC }, ..params() });
        }
    }

    #[test]
    fn filters_apply_one_after_the_other() {
        let all = SamplingParams {
            top_k: Some(50),
            top_p: 0.9,
            min_p: 0.02,
            typical_p: 0.8,
            xtc: XtcParams { probability: 0.5, threshold: 0.1 },
            ..params()
        };
        check(&all);
        check(&SamplingParams { top_k: None, ..all.clone() });
        check(&SamplingParams { top_k: None, top_p: 1.0, ..all.clone() });
        check(&SamplingParams { top_k: None, min_p: 0.0, temperature: 0.4, ..all.clone() });
        check(&SamplingParams { xtc: XTC, typical_p: 1.0, ..all });
    }

    #[test]
    fn ties_leave_the_lowest_ids_typical_and_the_highest_top_choice() {
        let equal = [0.5; 4];
        let token = |params: SamplingParams, uniform: f64| {
            let draw = Draw { uniform, coin: 0.0 };
            Sampler::default().sample(&equal, &params, draw).unwrap().token
        };
        let typical = SamplingParams { typical_p: 0.5, ..params() };
        assert_eq!((token(typical.clone(), 0.0), token(typical, 0.99)), (0, 1));
        let xtc = SamplingParams { xtc: XTC, ..params() };
        assert_eq!((token(xtc.clone(), 0.0), token(xtc, 0.99)), (3, 3));
    }
}
