//! The sampler beside a plain one that sorts everything.

use super::*;
use crate::random::RandomStream;

/// Rows of every kind: `(name, row)`.
fn rows(len: usize) -> Vec<(&'static str, Vec<f32>)> {
    let stream = RandomStream::new(len as u64, 0);
    #[expect(clippy::cast_possible_truncation, reason = "rounding does no harm")]
    let uniform = |i: usize| stream.uniform_at(token_at(i)) as f32;
    let row = |logit: &dyn Fn(usize) -> f32| (0..len).map(logit).collect();
    vec![
        ("spread", row(&|i| uniform(i) * 24.0 - 12.0)),
        ("peaked", row(&|i| 1.0 / (uniform(i) + 1e-2))),
        ("many ties", row(&|i| (uniform(i) * 5.0).floor())),
        ("flat", row(&|_| -3.25)),
    ]
}

/// The tokens that the filters leave, ascending, and their weights: what the module header
/// says, by sorting everything, in double precision.
fn oracle(row: &[f32], params: &SamplingParams) -> Vec<(usize, f64)> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let temperature = f64::from(params.temperature);
    let weigh = |i: usize| (i, (f64::from(row[i] - max) / temperature).exp());
    let mut kept: Vec<(usize, f64)> = (0..row.len()).map(weigh).collect();
    kept.sort_by(|a, b| row[b.0].total_cmp(&row[a.0]).then(a.0.cmp(&b.0)));
    kept.truncate(params.top_k.map_or(row.len(), |k| k as usize));
    let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
    let mut sum = 0.0;
    let last = kept.iter().position(|&(_, weight)| {
        sum += weight;
        sum >= f64::from(params.top_p) * total
    });
    kept.truncate(last.map_or(kept.len(), |last| last + 1));
    kept.retain(|&(_, weight)| weight >= f64::from(params.min_p));
    kept.sort_unstable_by_key(|&(i, _)| i);
    kept
}

fn check(params: &SamplingParams) {
    let mut sampler = Sampler::default();
    for len in [1, 2, 31, 33, 300, 5000] {
        for (name, row) in rows(len) {
            let kept = oracle(&row, params);
            let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
            let stream = RandomStream::new(1, 2);
            for position in 0..40 {
                let uniform = stream.uniform_at(position);
                let mut left = uniform * total;
                let passes = |&&(_, weight): &&(usize, f64)| {
                    left -= weight;
                    left < 0.0
                };
                let &(expected, _) = kept.iter().find(passes).or(kept.last()).unwrap();
                let got = sampler.sample(&row, params, draw(uniform)).unwrap().token;
                assert_eq!(got, token_at(expected), "{name} row of {len}, {uniform}");
            }
        }
    }
}

fn draw(uniform: f64) -> Draw {
    Draw { uniform, coin: 0.0 }
}

fn params() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..SamplingParams::greedy(1) }
}

#[test]
fn temperature_alone_draws_from_the_whole_vocabulary() {
    for temperature in [0.05, 0.7, 1.0, 2.0] {
        check(&SamplingParams { temperature, ..params() });
    }
}

#[test]
fn top_k_keeps_the_best_with_ties_to_the_lower_id() {
    for k in [1, 2, 40, 299, 100_000] {
        check(&SamplingParams { top_k: Some(k), ..params() });
    }
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_its_share() {
    for (top_p, temperature) in [(1e-6, 1.0), (0.5, 1.0), (0.9, 0.7), (0.95, 2.0), (0.9999, 1.0)] {
        check(&SamplingParams { top_p, temperature, ..params() });
    }
}

#[test]
fn min_p_drops_what_is_unlikely_beside_the_best() {
    for min_p in [1e-4, 0.05, 0.5, 1.0] {
        check(&SamplingParams { min_p, ..params() });
    }
}

#[test]
fn filters_apply_one_after_the_other() {
    let all = SamplingParams { top_k: Some(50), top_p: 0.8, min_p: 0.02, ..params() };
    check(&all);
    check(&SamplingParams { top_p: 1.0, ..all.clone() });
    check(&SamplingParams { min_p: 0.0, temperature: 0.3, ..all.clone() });
    check(&SamplingParams { top_k: None, ..all });
}

#[test]
fn a_vanishing_temperature_takes_the_largest_logit() {
    for temperature in [0.0, f32::MIN_POSITIVE, 1e-45] {
        let params = SamplingParams { temperature, ..params() };
        let row = [1.0, -3.0, 5.5, 5.4];
        assert_eq!(Sampler::default().sample(&row, &params, draw(0.999)).unwrap().token, 2);
    }
}

#[test]
fn greedy_ties_go_to_the_lowest_id() {
    let sampled =
        Sampler::default().sample(&[0.0, 2.0, 2.0], &SamplingParams::greedy(1), draw(0.9));
    assert_eq!(sampled.unwrap().token, 1);
    assert_eq!(most_likely(&[0.0, 2.0, 2.0]), Ok(1));
    assert_eq!(most_likely(&[0.0, f32::NAN]), Err(NonFiniteLogits));
}

#[test]
fn a_row_that_is_not_finite_is_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let sampled = Sampler::default().sample(&[0.0, bad], &params(), draw(0.5));
        assert_eq!(sampled, Err(NonFiniteLogits));
    }
}

#[test]
fn logprobs_are_the_log_softmax_of_the_raw_logits() {
    for (name, row) in rows(1000) {
        let exact_sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        let exact = |token: TokenId| f64::from(row[token as usize]) - exact_sum.ln();
        let params = SamplingParams { logprobs: Some(20), top_k: Some(3), ..params() };
        let sampled = Sampler::default().sample(&row, &params, draw(0.7)).unwrap();
        let logprobs = sampled.logprobs.unwrap();
        let mut order: Vec<TokenId> = (0..1000).collect();
        order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
        let ids: Vec<TokenId> = logprobs.top.iter().map(|&(token, _)| token).collect();
        assert_eq!(ids, order[..20], "{name}");
        for (token, logprob) in logprobs.top.into_iter().chain([(sampled.token, logprobs.chosen)]) {
            assert!((f64::from(logprob) - exact(token)).abs() < 1e-5, "{name}");
        }
    }
}

#[test]
fn the_candidates_of_a_beam_are_the_best_tokens_with_the_log_probabilities_told() {
    for (_, row) in rows(1000) {
        let params = SamplingParams { logprobs: Some(20), ..params() };
        let sampled = Sampler::default().sample(&row, &params, draw(0.7)).unwrap();
        let top = sampled.logprobs.unwrap().top;
        for (num_candidates, num_top) in [(20, 5), (5, 20), (20, 20)] {
            let got = Sampler::default().beam_row(&row, num_candidates, num_top).unwrap();
            let candidates: Vec<(TokenId, f32)> =
                got.candidates.iter().map(|best| (best.token, best.logprob)).collect();
            assert_eq!(candidates, top[..num_candidates]);
            assert_eq!(*got.top, top[..num_top as usize]);
        }
    }
    assert_eq!(Sampler::default().beam_row(&[f32::NAN], 1, 0), Err(NonFiniteLogits));
}

#[test]
fn logprobs_stay_finite_at_the_ends_of_single_precision() {
    let params = SamplingParams { logprobs: Some(2), ..params() };
    let sampled = Sampler::default().sample(&[f32::MAX, f32::MIN], &params, draw(0.5)).unwrap();
    let logprobs = sampled.logprobs.unwrap();
    assert!(logprobs.chosen == 0.0 && logprobs.top[1].1.is_finite());
}
