//! Which tokens use which experts of a layer, and how much each counts.
//!
//! Each token's experts and factors follow from its own logits alone. Tokens are grouped by expert,
//! in the order of the batch, so that an expert multiplies all its rows in one product. Costs
//! `count` exponentials and a partial sort for each token.

use crate::config::{ExpertWeighting, Experts};

/// The tokens of a step by the experts that they use.
#[derive(Debug, Default)]
pub(crate) struct ExpertRouting {
    by_expert: Vec<ExpertRows>,
    /// Probabilities of one token's experts, most probable first up to those that it uses.
    ranking: Vec<(f32, usize)>,
}

/// The tokens that use one expert.
#[derive(Debug, Default)]
pub(crate) struct ExpertRows {
    /// Rows of the batch, ascending.
    pub(crate) rows: Vec<u32>,
    /// What the expert's output is multiplied by, for each of them.
    pub(crate) factors: Vec<f32>,
}

impl ExpertRouting {
    /// Chooses experts for tokens whose router gave `logits`, `[num_tokens, count]`. Of experts
    /// with one probability the first are chosen.
    pub(crate) fn route(&mut self, logits: &[f32], experts: Experts) {
        self.by_expert.resize_with(experts.count, ExpertRows::default);
        for expert in &mut self.by_expert {
            expert.rows.clear();
            expert.factors.clear();
        }
        for (row, logits) in (0..).zip(logits.chunks_exact(experts.count)) {
            self.rank(logits, experts.used);
            let used = &self.ranking[..experts.used];
            let total = match experts.weighting {
                ExpertWeighting::OfAll => 1.0,
                ExpertWeighting::OfUsed => used.iter().map(|(probability, _)| probability).sum(),
            };
            for (probability, expert) in used {
                let expert = &mut self.by_expert[*expert];
                expert.rows.push(row);
                expert.factors.push(probability / total);
            }
        }
    }

    /// Ranks experts by the softmax of their logits; only the first `num_used` are in order.
    fn rank(&mut self, logits: &[f32], num_used: usize) {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers = logits.iter().map(|logit| (logit - largest).exp());
        let sum: f32 = powers.clone().sum();
        self.ranking.clear();
        self.ranking.extend(powers.map(|power| power / sum).zip(0..));
        let by_rank = |a: &(f32, usize), b: &(f32, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if num_used < self.ranking.len() {
            self.ranking.select_nth_unstable_by(num_used, by_rank);
        }
        self.ranking[..num_used].sort_unstable_by(by_rank);
    }

    /// Returns the tokens of each expert that has any, with its number, ascending.
    pub(crate) fn used_experts(&self) -> impl Iterator<Item = (usize, &ExpertRows)> {
        self.by_expert.iter().enumerate().filter(|(_, expert)| !expert.rows.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(logits: &[f32], experts: Experts) -> Vec<(usize, Vec<u32>, Vec<f32>)> {
        let mut routing = ExpertRouting::default();
        // What an earlier step left is gone.
        routing.route(&[0.0; 16], Experts { count: 8, used: 8, ..experts });
        routing.route(logits, experts);
        let used = routing.used_experts();
        used.map(|(i, expert)| (i, expert.rows.clone(), expert.factors.clone())).collect()
    }

    /// Logits whose probabilities are these.
    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|probability| probability.ln()).collect()
    }

    #[test]
    fn tokens_go_to_their_most_probable_experts_and_ties_to_the_first() {
        let experts = Experts { count: 4, used: 2, weighting: ExpertWeighting::OfAll };
        let tokens =
            [logits(&[0.1, 0.5, 0.15, 0.25]), logits(&[0.25; 4]), logits(&[0.01, 0.5, 0.09, 0.4])];
        let got = routed(&tokens.concat(), experts);
        let rows: Vec<_> = got.iter().map(|(expert, rows, _)| (*expert, rows.clone())).collect();
        assert_eq!(rows, [(0, vec![1]), (1, vec![0, 1, 2]), (3, vec![0, 2])]);
        let close = |got: &[f32], expected: &[f32]| {
            assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}");
        };
        close(&got[1].2, &[0.5, 0.25, 0.5]);
        let normalised = Experts { weighting: ExpertWeighting::OfUsed, ..experts };
        close(&routed(&tokens.concat(), normalised)[1].2, &[2.0 / 3.0, 0.5, 5.0 / 9.0]);
    }

    #[test]
    fn all_experts_may_be_used_and_broken_logits_break_only_their_token() {
        let experts = Experts { count: 2, used: 2, weighting: ExpertWeighting::OfUsed };
        let got = routed(&[f32::NAN, 1.0, 3.0, 3.0], experts);
        assert_eq!(got.iter().map(|(_, rows, _)| rows.len()).collect::<Vec<_>>(), [2, 2]);
        assert!(got.iter().all(|(_, _, factors)| factors[0].is_nan() && factors[1] == 0.5));
    }
}
