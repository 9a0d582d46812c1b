//! Keeps the tokens whose information is closest to what is expected: locally typical sampling.
//!
//! A token's information is `-ln p`, and the entropy of the distribution is its mean. Tokens are
//! ordered by how far theirs is from it, ties to the lower id; the smallest set of the closest
//! whose share reaches the wanted one is kept (Meister et al., 2023; as in Hugging Face's
//! transformers). The tokens are never sorted as a whole: the border is found by selection, O(tokens).

use super::Candidate;
use crate::softmax::Weighting;
use mini_infer_core::TokenId;

/// A token by how far its information is from the entropy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deviation {
    distance: f64,
    token: TokenId,
    weight: f64,
}

impl Deviation {
    fn key(self) -> (f64, TokenId) {
        (self.distance, self.token)
    }
}

/// Drops all candidates but the most typical ones, and keeps their order. `room` is to work in.
pub(super) fn keep_typical(
    candidates: &mut Vec<Candidate>,
    weighting: Weighting,
    share: f32,
    room: &mut Vec<Deviation>,
) {
    let weight = |logit| f64::from(weighting.of(logit));
    let mass: f64 = candidates.iter().map(|candidate| weight(candidate.logit)).sum();
    let information = |logit: f32| mass.ln() - weighting.exponent(logit);
    // What weighs nothing adds nothing, however much information it would have.
    let of_one = |candidate: &Candidate| match weight(candidate.logit) / mass {
        0.0 => 0.0,
        probability => probability * information(candidate.logit),
    };
    let entropy: f64 = candidates.iter().map(of_one).sum();
    let deviation = |candidate: &Candidate| Deviation {
        distance: (information(candidate.logit) - entropy).abs(),
        token: candidate.token,
        weight: weight(candidate.logit),
    };
    room.clear();
    room.extend(candidates.iter().map(deviation));
    let Some(border) = border(room, f64::from(share) * mass) else { return };
    candidates.retain(|candidate| deviation(candidate).key() <= border);
}

/// Returns the key of the last of the closest whose weights reach `target` together, `None` when
/// rounding leaves all of them below.
fn border(mut deviations: &mut [Deviation], target: f64) -> Option<(f64, TokenId)> {
    let order = |a: &Deviation, b: &Deviation| {
        a.distance.total_cmp(&b.distance).then(a.token.cmp(&b.token))
    };
    let mut kept = 0.0;
    while deviations.len() > 1 {
        let half = deviations.len() / 2;
        deviations.select_nth_unstable_by(half, order);
        let (closer, farther) = deviations.split_at_mut(half);
        let mass: f64 = closer.iter().map(|deviation| deviation.weight).sum();
        if kept + mass >= target {
            deviations = closer;
        } else {
            kept += mass;
            deviations = farther;
        }
    }
    let last = deviations.first()?;
    (kept + last.weight >= target).then(|| last.key())
}
