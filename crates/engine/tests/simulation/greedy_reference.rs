//! What a greedy choice must be where logits are changed, as one would write it down.
//!
//! Log probabilities differ from logits by a constant, which changes no choice but one with a
//! repetition penalty. Those, and DRY, are compared with plain loops where they are implemented.

use crate::scenario::Scenario;
use crate::solo_rows::SoloRows;
use mini_infer_core::{Penalties, Request, SamplingParams, TokenId};

/// Rounding of log probabilities and of what is added to them.
const TOLERANCE: f32 = 1e-4;

/// Checks every token of a request's output, if it is one that can be checked so. Returns how many
/// tokens were checked.
pub(crate) fn check(scenario: &Scenario, request: &Request, output: &[TokenId]) -> usize {
    let sampling = &request.sampling;
    let is_checked = sampling.changes_logits()
        && sampling.temperature == 0.0
        && sampling.dry.is_none()
        && sampling.penalties.repetition == Penalties::NONE.repetition;
    if !is_checked {
        return 0;
    }
    let constraint = scenario.constraints.get(&request.id);
    // The rows are those of the model, whatever the output must be.
    let unconstrained = Request { constraint: None, ..request.clone() };
    let mut rows = SoloRows::new(scenario, &unconstrained);
    for (i, &token) in output.iter().enumerate() {
        let known = [&request.prompt[..], &output[..i]].concat();
        let allowed = constraint.map(|constraint| constraint.allowed(&output[..i]));
        let changed: Vec<(TokenId, f32)> = rows
            .logprobs_after(known)
            .into_iter()
            .filter(|(token, _)| allowed.as_ref().is_none_or(|allowed| allowed.contains(token)))
            .map(|(token, logprob)| (token, logprob + change(sampling, &output[..i], token)))
            .collect();
        let best = changed.iter().map(|&(_, score)| score).fold(f32::NEG_INFINITY, f32::max);
        let chosen = changed.iter().find(|&&(other, _)| other == token);
        let (_, score) = chosen.expect("all tokens are listed");
        assert!(*score >= best - TOLERANCE, "token {i} of {} is not the best", request.id);
    }
    output.len()
}

/// Returns what is added to a token after an output.
fn change(sampling: &SamplingParams, output: &[TokenId], token: TokenId) -> f32 {
    let num_given = output.iter().filter(|&&given| given == token).count();
    let biases = sampling.logit_bias.iter().filter(|&&(biased, _)| biased == token);
    let bias: f32 = biases.map(|&(_, bias)| bias).sum();
    let presence = if num_given > 0 { sampling.penalties.presence } else { 0.0 };
    let frequency = sampling.penalties.frequency * num_given as f32;
    let is_early = output.len() < sampling.min_tokens as usize;
    let is_forbidden = is_early && sampling.stop_token_ids.contains(&token);
    let forbidden = if is_forbidden { f32::NEG_INFINITY } else { 0.0 };
    bias - presence - frequency + forbidden
}
