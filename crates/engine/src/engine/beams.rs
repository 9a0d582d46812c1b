//! Beam searches between steps: moving on, ending, and telling what was found.
//!
//! During a search its request has one sequence for each beam, numbered by rank among the beams and
//! never told about. When it ends, its choices are told one after the other, best first: all tokens
//! of one, then its end.

use super::{Engine, narrow};
use crate::beam_search::{BeamSearch, BeamView, Hypothesis};
use crate::error::SubmitError;
use crate::sequence::Sequence;
use mini_infer_core::{
    Clock, EngineEvent, Executor, FinishReason, Request, RequestId, SequenceId, SequenceUsage,
};

impl<E: Executor, C: Clock> Engine<E, C> {
    /// Checks that all beams of a search can go on side by side, with different tokens.
    pub(super) fn check_beams(&self, request: &Request) -> Result<(), SubmitError> {
        let Some(params) = request.sampling.beam else {
            return Ok(());
        };
        if request.constraint.is_some() {
            return Err(SubmitError::ConstrainedBeams);
        }
        let max_num_seqs = self.config.max_num_seqs;
        if params.width > max_num_seqs {
            return Err(SubmitError::TooManyBeams { width: params.width, max_num_seqs });
        }
        let num_candidates = BeamSearch::num_candidates(&request.sampling);
        let vocab_size = self.executor.vocab_size();
        if num_candidates > vocab_size {
            return Err(SubmitError::BeamsExceedVocab { num_candidates, vocab_size });
        }
        Ok(())
    }

    /// Moves on the searches whose beams have all got their rows, and ends those that failed.
    /// Returns how many tokens were told.
    pub(super) fn settle_searches(&mut self, events: &mut Vec<EngineEvent>) -> u32 {
        for (request, reason) in std::mem::take(&mut self.failed_searches) {
            // Several beams of one search may have failed.
            if self.requests.contains_key(&request) {
                self.end_search(request, &reason, events);
            }
        }
        let mut ready = std::mem::take(&mut self.ready_searches);
        let mut num_told = 0;
        for request in ready.drain(..) {
            num_told += self.advance_search(request, events);
        }
        self.ready_searches = ready;
        num_told
    }

    /// Moves all beams of a search by one token, or tells what was found. Returns how many tokens
    /// were told.
    fn advance_search(&mut self, request: RequestId, events: &mut Vec<EngineEvent>) -> u32 {
        let live = self.requests.get_mut(&request).expect("its beams are alive");
        let mut parents = self.scheduler.take_request(live.first_rank);
        let search = live.search.as_mut().expect("a beam has a search");
        let next = search.advance(&parents.iter().map(view).collect::<Vec<_>>());
        if !next.is_empty() {
            self.counters.num_forks += self.scheduler.continue_beams(parents, next);
            return 0;
        }
        self.scheduler.release(&mut parents);
        let best = live.search.take().map_or_else(Vec::new, BeamSearch::into_best);
        debug_assert_eq!(best.len(), live.num_choices as usize);
        let usage = parents[0].usage();
        (0..).zip(best).map(|(index, found)| self.tell(request, index, found, usage, events)).sum()
    }

    /// Tells one choice that was found, and returns the number of its tokens.
    fn tell(
        &mut self,
        request: RequestId,
        index: u32,
        found: Hypothesis,
        usage: SequenceUsage,
        events: &mut Vec<EngineEvent>,
    ) -> u32 {
        let sequence = SequenceId { request, index };
        let num_output_tokens = narrow(found.num_output_tokens());
        let reason = found.reason.clone();
        let tokens = found.into_tokens();
        events.extend(tokens.map(|(token, logprobs)| EngineEvent::Token {
            sequence,
            token,
            logprobs,
        }));
        let usage = SequenceUsage { num_output_tokens, ..usage };
        let event = EngineEvent::Finished { sequence, reason, usage };
        self.count_finish(&event);
        events.push(event);
        num_output_tokens
    }

    /// Ends a search before anything of it was told.
    pub(super) fn end_search(
        &mut self,
        request: RequestId,
        reason: &FinishReason,
        events: &mut Vec<EngineEvent>,
    ) {
        let live = self.requests.get_mut(&request).expect("the caller has seen it");
        let num_choices = live.num_choices;
        let mut beams = self.scheduler.take_request(live.first_rank);
        self.scheduler.release(&mut beams);
        live.search = None;
        let usage = SequenceUsage { num_output_tokens: 0, ..beams[0].usage() };
        for index in 0..num_choices {
            let sequence = SequenceId { request, index };
            let event = EngineEvent::Finished { sequence, reason: reason.clone(), usage };
            self.count_finish(&event);
            events.push(event);
        }
    }
}

fn view(sequence: &Sequence) -> BeamView<'_> {
    let beam = sequence.beam.as_ref().expect("every sequence of a search is a beam");
    BeamView { beam, output: sequence.output() }
}
