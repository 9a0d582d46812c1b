//! A beam search as one would write it down, to compare with.
//!
//! It knows no KV and no steps: the log probabilities after any tokens are asked of an engine that
//! runs them alone.

use crate::scenario::Scenario;
use crate::solo_rows::SoloRows;
use mini_infer_core::{BeamParams, FinishReason, Request, TokenId, TokenLogprobs};

/// One sequence that a search found.
pub(crate) struct Found {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) logprobs: Vec<Option<TokenLogprobs>>,
    pub(crate) reason: FinishReason,
    score: f64,
}

#[derive(Clone, Default)]
struct Path {
    tokens: Vec<TokenId>,
    logprobs: Vec<Option<TokenLogprobs>>,
    sum: f64,
}

impl Path {
    fn score(&self, length_penalty: f64, num_tokens: usize) -> f64 {
        self.sum / (num_tokens as f64).powf(length_penalty)
    }

    fn found(self, length_penalty: f64, reason: FinishReason) -> Found {
        let score = self.score(length_penalty, self.tokens.len());
        Found { tokens: self.tokens, logprobs: self.logprobs, reason, score }
    }
}

/// Returns the best `n` sequences, best first.
pub(crate) fn search(scenario: &Scenario, request: &Request) -> Vec<Found> {
    let sampling = &request.sampling;
    let BeamParams { width, length_penalty } = sampling.beam.expect("a beam search");
    let (width, length_penalty) = (width as usize, f64::from(length_penalty));
    let num_free = scenario.config.max_model_len as usize - request.prompt.len();
    let max_tokens = num_free.min(sampling.max_tokens as usize);
    let mut rows = SoloRows::new(scenario, request);
    let mut found: Vec<Found> = Vec::new();
    let mut live = vec![Path::default()];
    for num_tokens in 1..=max_tokens {
        let mut paths: Vec<Path> =
            live.iter().flat_map(|path| extensions(&mut rows, request, path)).collect();
        // Stable, so that ties stay in the order of beams and tokens.
        paths.sort_by(|a, b| b.sum.total_cmp(&a.sum));
        live.clear();
        for (place, path) in paths.into_iter().enumerate() {
            let token = path.tokens[num_tokens - 1];
            if !sampling.stop_token_ids.contains(&token) {
                live.push(path);
            } else if place < width {
                found.push(path.found(length_penalty, FinishReason::Stop));
            }
        }
        live.truncate(width);
        keep_best(&mut found, width);
        let worst = found.get(width - 1).map_or(f64::NEG_INFINITY, |worst| worst.score);
        let best_score = |path: &Path| {
            let lengths = num_tokens + 1..=max_tokens;
            lengths.map(|len| path.score(length_penalty, len)).fold(f64::NEG_INFINITY, f64::max)
        };
        if num_tokens < max_tokens && live.iter().all(|path| best_score(path) <= worst) {
            live.clear();
            break;
        }
    }
    found.extend(live.into_iter().map(|path| path.found(length_penalty, FinishReason::Length)));
    keep_best(&mut found, sampling.n as usize);
    found
}

fn keep_best(found: &mut Vec<Found>, num: usize) {
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found.truncate(num);
}

/// Returns a path with each token added, in ascending order of tokens.
fn extensions(rows: &mut SoloRows, request: &Request, path: &Path) -> Vec<Path> {
    let after = rows.logprobs_after([&request.prompt[..], &path.tokens].concat());
    let mut by_token = after.clone();
    by_token.sort_by_key(|&(token, _)| token);
    let extension = |(token, logprob): (TokenId, f32)| {
        let mut path = path.clone();
        path.tokens.push(token);
        path.sum += f64::from(logprob);
        path.logprobs.push(request.sampling.logprobs.map(|num_top| {
            let num_top = after.len().min(num_top as usize);
            TokenLogprobs { chosen: logprob, top: after[..num_top].to_vec() }
        }));
        path
    };
    by_token.into_iter().map(extension).collect()
}
