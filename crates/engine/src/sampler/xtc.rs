//! Drops the top choices but one: XTC.
//!
//! Of the candidates that are at least as likely as the threshold, all but the least likely are
//! dropped, where there are two at least; of equally likely ones, the highest id stays. Whether it
//! happens is decided for each token by a random number of its own. The method is p-e-w's, as in
//! llama.cpp (2025), which lets newline and end tokens be dropped as well.

use super::{Candidate, best_first};
use crate::softmax::Weighting;

/// Drops the top choices but the least likely of them, and keeps the order of the others.
pub(super) fn exclude_top_choices(
    candidates: &mut Vec<Candidate>,
    weighting: Weighting,
    threshold: f32,
) {
    let weight = |candidate: &Candidate| f64::from(weighting.of(candidate.logit));
    let mass: f64 = candidates.iter().map(weight).sum();
    let is_top = |candidate: &Candidate| weight(candidate) >= f64::from(threshold) * mass;
    let tops = candidates.iter().filter(|candidate| is_top(candidate));
    let Some(least) = tops.max_by(|a, b| best_first(a, b)).map(|candidate| candidate.token) else {
        return;
    };
    candidates.retain(|candidate| candidate.token == least || !is_top(candidate));
}
