//! Beam search: which continuations of a request's beams live on, and when the search ends.
//!
//! Pure bookkeeping of one request, without KV or steps. A [`Beam`] belongs to one sequence. When
//! all beams of the request have their candidates, [`BeamSearch::advance`] orders all continuations
//! by the sum of their log probabilities, ties to the lower beam, then the lower token. A stop token
//! among the best `width` of them makes a finished hypothesis; the best others, `width` of them,
//! are the next beams. So there are always `width` beams after the first advance, since each beam
//! offers as many candidates that do not stop. The rule is that of Hugging Face's transformers (5.x)
//! with `early_stopping="never"`.
//!
//! A hypothesis scores the sum of its log probabilities divided by its number of output tokens, the
//! stop token included, to the power of the length penalty. The search ends when `width` hypotheses
//! are finished and no beam can do better than the worst of them, whatever follows, or at the length
//! limit, where all beams are finished as they are. Advancing costs O(width² log width).

use mini_infer_core::{FinishReason, SamplingParams, TokenId, TokenLogprobs};
use std::sync::Arc;

/// The most likely tokens of a row with their log probabilities, shared by what continues the row.
type TopTokens = Arc<[(TokenId, f32)]>;

/// A token that may continue a beam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BeamCandidate {
    pub(crate) token: TokenId,
    /// Natural-log probability after the beam.
    pub(crate) logprob: f32,
}

/// What a beam keeps of the row of logits behind its last token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BeamRow {
    /// The most likely tokens, most likely first; ties go to the lower id.
    pub(crate) candidates: Vec<BeamCandidate>,
    /// What `logprobs` asked for; empty when it did not.
    pub(crate) top: TopTokens,
}

/// The log probabilities of one output token.
#[derive(Clone, Debug, PartialEq)]
struct OutputLogprobs {
    chosen: f32,
    top: TopTokens,
}

/// One sequence's part in a beam search.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Beam {
    /// Sum of the log probabilities of the output tokens.
    sum: f64,
    /// Of each output token, `[num_output_tokens]`; empty unless the request asked for them.
    logprobs: Vec<OutputLogprobs>,
    /// Set when the row behind the last token was computed; the beam then waits for the others.
    pub(crate) row: Option<BeamRow>,
}

impl Beam {
    /// Returns the beam with one more token.
    fn extended(&self, candidate: BeamCandidate, wants_logprobs: bool) -> Self {
        let mut logprobs = self.logprobs.clone();
        if let (true, Some(row)) = (wants_logprobs, &self.row) {
            let top = Arc::clone(&row.top);
            logprobs.push(OutputLogprobs { chosen: candidate.logprob, top });
        }
        Self { sum: self.sum + f64::from(candidate.logprob), logprobs, row: None }
    }
}

/// A beam and the output tokens of its sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeamView<'a> {
    pub(crate) beam: &'a Beam,
    pub(crate) output: &'a [TokenId],
}

/// A beam of the next generation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Offspring {
    /// Index of the beam that it continues.
    pub(crate) parent: usize,
    /// The token that it adds.
    pub(crate) token: TokenId,
    pub(crate) beam: Beam,
}

/// A finished sequence of a search.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hypothesis {
    score: f64,
    output: Vec<TokenId>,
    logprobs: Vec<OutputLogprobs>,
    pub(crate) reason: FinishReason,
}

impl Hypothesis {
    /// Returns the number of output tokens.
    pub(crate) fn num_output_tokens(&self) -> usize {
        self.output.len()
    }

    /// Returns the output tokens with what is to be told about them.
    pub(crate) fn into_tokens(self) -> impl Iterator<Item = (TokenId, Option<TokenLogprobs>)> {
        let mut logprobs = self.logprobs.into_iter();
        self.output.into_iter().map(move |token| {
            let told =
                |of: OutputLogprobs| TokenLogprobs { chosen: of.chosen, top: of.top.to_vec() };
            (token, logprobs.next().map(told))
        })
    }
}

/// One continuation of one beam.
#[derive(Clone, Copy, Debug)]
struct Continuation {
    parent: usize,
    candidate: BeamCandidate,
    sum: f64,
}

/// The beam search of one request.
#[derive(Debug)]
pub(crate) struct BeamSearch {
    sampling: Arc<SamplingParams>,
    width: usize,
    length_penalty: f64,
    /// Output tokens at which every beam is finished.
    max_output_tokens: usize,
    /// Best first, `width` at most; of equal ones, the one found first.
    finished: Vec<Hypothesis>,
    /// Beams that are searched, and how many of them have their row.
    num_beams: usize,
    num_rows: usize,
}

impl BeamSearch {
    /// Starts a search with the prompt as its only beam; `None` when the request samples. At
    /// `max_output_tokens`, every beam is finished.
    pub(crate) fn new(sampling: &Arc<SamplingParams>, max_output_tokens: u32) -> Option<Self> {
        let params = sampling.beam?;
        Some(Self {
            sampling: Arc::clone(sampling),
            width: params.width as usize,
            length_penalty: f64::from(params.length_penalty),
            max_output_tokens: max_output_tokens as usize,
            finished: Vec::new(),
            num_beams: 1,
            num_rows: 0,
        })
    }

    /// Returns how many candidates decide about the continuations of one beam: all that may stop
    /// can be among the best, and as many others as there are beams are wanted behind them.
    pub(crate) fn num_candidates(sampling: &SamplingParams) -> usize {
        let width = sampling.beam.map_or(0, |params| params.width as usize);
        let stops = &sampling.stop_token_ids;
        let first = |i: usize| !stops[..i].contains(&stops[i]);
        width + (0..stops.len()).filter(|&i| first(i)).count()
    }

    /// Returns the number of beams.
    pub(crate) fn num_beams(&self) -> usize {
        self.num_beams
    }

    /// Counts a beam that got its row and tells whether it was the last one.
    pub(crate) fn count_row(&mut self) -> bool {
        self.num_rows += 1;
        debug_assert!(self.num_rows <= self.num_beams);
        self.num_rows == self.num_beams
    }

    /// Moves all `beams`, which have their rows, by one token. Returns the next ones, best first;
    /// none when the search has ended.
    pub(crate) fn advance(&mut self, beams: &[BeamView<'_>]) -> Vec<Offspring> {
        debug_assert_eq!(beams.len(), self.num_beams);
        let mut next = Vec::with_capacity(self.width);
        for (place, found) in continuations(beams).into_iter().enumerate() {
            if self.sampling.stop_token_ids.contains(&found.candidate.token) {
                if place < self.width {
                    self.finish(beams[found.parent], found.candidate, FinishReason::Stop);
                }
                continue;
            }
            next.push(found);
            if next.len() == self.width {
                break;
            }
        }
        let num_output_tokens = 1 + beams.first().map_or(0, |view| view.output.len());
        if num_output_tokens >= self.max_output_tokens {
            for found in next.drain(..) {
                self.finish(beams[found.parent], found.candidate, FinishReason::Length);
            }
        } else if next.iter().all(|found| self.is_beaten(found.sum, num_output_tokens)) {
            next.clear();
        }
        self.num_beams = next.len();
        self.num_rows = 0;
        next.into_iter().map(|found| self.offspring(beams, found)).collect()
    }

    /// Returns the best `n` hypotheses of a search that has ended, best first.
    pub(crate) fn into_best(mut self) -> Vec<Hypothesis> {
        self.finished.truncate(self.sampling.n as usize);
        self.finished
    }

    fn offspring(&self, beams: &[BeamView<'_>], found: Continuation) -> Offspring {
        let Continuation { parent, candidate, .. } = found;
        let beam = beams[parent].beam.extended(candidate, self.sampling.logprobs.is_some());
        Offspring { parent, token: candidate.token, beam }
    }

    /// Adds a hypothesis, which drops the worst when there are too many.
    fn finish(&mut self, parent: BeamView<'_>, candidate: BeamCandidate, reason: FinishReason) {
        let Beam { sum, logprobs, .. } =
            parent.beam.extended(candidate, self.sampling.logprobs.is_some());
        let output = [parent.output, &[candidate.token]].concat();
        let score = self.score(sum, output.len());
        let place = self.finished.partition_point(|other| other.score >= score);
        self.finished.insert(place, Hypothesis { score, output, logprobs, reason });
        self.finished.truncate(self.width);
    }

    /// Tells whether nothing that continues a beam can be better than the worst of `width` finished
    /// hypotheses: at best it loses no more probability, at the length that favours it most.
    fn is_beaten(&self, sum: f64, num_output_tokens: usize) -> bool {
        let worst = self.finished.get(self.width - 1);
        let soon = self.score(sum, num_output_tokens + 1);
        let late = self.score(sum, self.max_output_tokens);
        worst.is_some_and(|worst| worst.score >= soon.max(late))
    }

    fn score(&self, sum: f64, num_output_tokens: usize) -> f64 {
        sum / (num_output_tokens as f64).powf(self.length_penalty)
    }
}

/// Returns all continuations of all beams, best first.
fn continuations(beams: &[BeamView<'_>]) -> Vec<Continuation> {
    let of_beam = |(parent, view): (usize, &BeamView<'_>)| {
        let BeamView { beam, .. } = *view;
        let row = beam.row.as_ref().expect("a search advances when all beams have their rows");
        let continuation = move |&candidate: &BeamCandidate| Continuation {
            parent,
            candidate,
            sum: beam.sum + f64::from(candidate.logprob),
        };
        row.candidates.iter().map(continuation).collect::<Vec<_>>()
    };
    let mut all: Vec<Continuation> = beams.iter().enumerate().flat_map(of_beam).collect();
    all.sort_by(|a, b| {
        let tie = || a.parent.cmp(&b.parent).then(a.candidate.token.cmp(&b.candidate.token));
        b.sum.total_cmp(&a.sum).then_with(tie)
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_core::BeamParams;

    const STOP: TokenId = 0;

    fn search(width: u32, length_penalty: f32, max_output_tokens: u32) -> BeamSearch {
        let sampling = SamplingParams {
            n: width,
            beam: Some(BeamParams { width, length_penalty }),
            stop_token_ids: vec![STOP],
            ..SamplingParams::greedy(max_output_tokens)
        };
        BeamSearch::new(&Arc::new(sampling), max_output_tokens).unwrap()
    }

    /// A beam with an output and its candidates.
    fn beam(sum: f64, candidates: &[(TokenId, f32)]) -> Beam {
        let candidate = |&(token, logprob): &(TokenId, f32)| BeamCandidate { token, logprob };
        let candidates = candidates.iter().map(candidate).collect();
        let row = BeamRow { candidates, top: Arc::new([]) };
        Beam { sum, logprobs: Vec::new(), row: Some(row) }
    }

    /// Advances beams whose outputs have `len` tokens and returns `(parent, token)` of the next.
    fn advance(search: &mut BeamSearch, beams: &[Beam], len: usize) -> Vec<(usize, TokenId)> {
        let output = vec![9; len];
        let views: Vec<BeamView<'_>> =
            beams.iter().map(|beam| BeamView { beam, output: &output }).collect();
        search.num_beams = views.len();
        let next = search.advance(&views);
        next.into_iter().map(|offspring| (offspring.parent, offspring.token)).collect()
    }

    fn outputs(search: BeamSearch) -> Vec<(Vec<TokenId>, FinishReason)> {
        let told = |best: Hypothesis| {
            let reason = best.reason.clone();
            (best.into_tokens().map(|(token, _)| token).collect(), reason)
        };
        search.into_best().into_iter().map(told).collect()
    }

    #[test]
    fn the_best_continuations_live_and_ties_go_to_the_lower_beam_and_token() {
        let mut search = search(3, 1.0, 50);
        let beams = [
            beam(-1.0, &[(5, -1.0), (7, -1.0), (2, -3.0)]),
            beam(-1.5, &[(4, -0.5), (6, -0.5), (3, -0.75)]),
        ];
        assert_eq!(advance(&mut search, &beams, 4), [(0, 5), (0, 7), (1, 4)]);
    }

    #[test]
    fn a_stop_token_counts_only_among_the_best_of_all() {
        let mut search = search(2, 0.0, 50);
        let beams = [beam(0.0, &[(5, -1.0), (6, -2.0), (STOP, -3.0)])];
        assert_eq!(advance(&mut search, &beams, 0), [(0, 5), (0, 6)]);
        assert!(search.finished.is_empty());
        let beams = [beam(-1.0, &[(STOP, -0.5), (7, -1.0), (8, -4.0)])];
        assert_eq!(advance(&mut search, &beams, 1), [(0, 7), (0, 8)]);
        assert_eq!(search.finished.len(), 1);
    }

    #[test]
    fn a_search_ends_when_no_beam_can_beat_what_is_finished() {
        let stops =
            [beam(-1.0, &[(STOP, -0.1), (5, -0.9)]), beam(-1.0, &[(STOP, -0.1), (6, -2.0)])];
        // As it is, -1.9 is worse than -1.1; divided by length, a long sequence could be better.
        for (length_penalty, goes_on) in [(0.0, false), (-1.0, false), (1.0, true)] {
            let mut search = search(2, length_penalty, 50);
            let next = advance(&mut search, &stops, 3);
            assert_eq!(!next.is_empty(), goes_on, "length penalty {length_penalty}");
        }
        let mut search = search(2, 1.0, 5);
        assert_eq!(advance(&mut search, &stops, 3), [], "no more than one token can follow");
    }

    #[test]
    fn a_short_sequence_that_can_still_win_is_waited_for() {
        let mut search = search(2, -1.0, 50);
        let beams = [beam(-0.5, &[(STOP, -0.1), (5, -0.2), (6, -3.0)])];
        assert_eq!(advance(&mut search, &beams, 1).len(), 2);
        // The second to finish scores -1.3 x 3; the best beam may end with -0.8 x 4.
        let beams = [
            beam(-0.7, &[(7, -0.1), (STOP, -0.6), (8, -5.0)]),
            beam(-3.5, &[(7, -1.0), (8, -5.0)]),
        ];
        assert_eq!(advance(&mut search, &beams, 2).len(), 2);
        assert_eq!(search.finished.len(), 2);
    }

    #[test]
    fn a_length_penalty_above_zero_favours_the_longer_of_two_equals() {
        for (length_penalty, reasons) in [
            (1.0, [FinishReason::Length, FinishReason::Stop]),
            (-1.0, [FinishReason::Stop, FinishReason::Length]),
        ] {
            let mut search = search(2, length_penalty, 3);
            let beams = [beam(-1.0, &[(STOP, -1.0), (5, -0.5), (6, -9.0)])];
            assert_eq!(advance(&mut search, &beams, 1).len(), 2);
            let beams = [beam(-1.5, &[(7, -0.5), (8, -9.0)]), beam(-10.0, &[(7, -1.0)])];
            assert_eq!(advance(&mut search, &beams, 2), []);
            let got: Vec<FinishReason> =
                outputs(search).into_iter().map(|(_, reason)| reason).collect();
            assert_eq!(got, reasons);
        }
    }

    #[test]
    fn at_the_length_limit_all_beams_are_finished_as_they_are() {
        let mut search = search(2, 1.0, 3);
        let beams =
            [beam(-1.0, &[(5, -0.5), (STOP, -2.0)]), beam(-1.25, &[(STOP, -0.5), (4, -7.0)])];
        assert_eq!(advance(&mut search, &beams, 2), []);
        let expected =
            [(vec![9, 9, 5], FinishReason::Length), (vec![9, 9, STOP], FinishReason::Stop)];
        assert_eq!(outputs(search), expected);
    }

    #[test]
    fn log_probabilities_follow_their_tokens() {
        let mut search = search(1, 1.0, 2);
        let sampling = SamplingParams { logprobs: Some(1), ..(*search.sampling).clone() };
        search.sampling = Arc::new(sampling);
        let with_top = |mut beam: Beam, top: (TokenId, f32)| {
            beam.row.as_mut().unwrap().top = Arc::new([top]);
            beam
        };
        let first = with_top(beam(0.0, &[(5, -0.25)]), (5, -0.25));
        let next = search.advance(&[BeamView { beam: &first, output: &[] }]);
        let second =
            Beam { row: with_top(beam(0.0, &[(6, -0.5)]), (7, -0.5)).row, ..next[0].beam.clone() };
        search.advance(&[BeamView { beam: &second, output: &[5] }]);
        let told: Vec<_> = search.into_best().remove(0).into_tokens().collect();
        let logprobs = |chosen, top| Some(TokenLogprobs { chosen, top: vec![top] });
        assert_eq!(told[0], (5, logprobs(-0.25, (5, -0.25))));
        assert_eq!(told[1], (6, logprobs(-0.5, (7, -0.5))));
    }

    #[test]
    fn stop_tokens_given_twice_are_counted_once() {
        let beam = Some(BeamParams { width: 4, length_penalty: 1.0 });
        let stop_token_ids = vec![3, 4, 3];
        let sampling = SamplingParams { beam, stop_token_ids, ..SamplingParams::greedy(1) };
        assert_eq!(BeamSearch::num_candidates(&sampling), 6);
    }
}
