//! What a beam search finds, holds and tells.

use crate::fixture::{Fixture, config, prompt, request};
use mini_infer_core::{
    BeamParams, EngineEvent, FinishReason, Request, RequestId, SamplingParams, TokenId,
};
use mini_infer_engine::{EngineConfig, Fault, SubmitError};

/// A search for `n` sequences of `max_tokens` tokens with `width` beams.
fn search(id: u64, n: u32, width: u32, max_tokens: u32) -> Request {
    let beam = Some(BeamParams { width, length_penalty: 1.0 });
    let sampling = SamplingParams { n, beam, ..SamplingParams::greedy(max_tokens) };
    Request { sampling, ..request(id, prompt(id, 60), 0) }
}

/// The log probabilities of all tokens after `prompt`, as far as they are told.
fn logprobs_after(prompt: &[TokenId]) -> Vec<(TokenId, f32)> {
    let mut fixture = Fixture::new(config());
    let sampling = SamplingParams { logprobs: Some(20), ..SamplingParams::greedy(1) };
    fixture.submit(Request { sampling, ..request(1, prompt.to_vec(), 0) });
    fixture.run();
    match fixture.events.swap_remove(0) {
        EngineEvent::Token { logprobs, .. } => logprobs.unwrap().top,
        EngineEvent::PromptLogprobs { .. }
        | EngineEvent::Embedding { .. }
        | EngineEvent::Finished { .. } => panic!("a token comes first"),
    }
}

#[test]
fn a_search_wide_enough_finds_the_best_of_all_pairs() {
    let wide = EngineConfig { max_num_seqs: 16, ..config() };
    let mut fixture = Fixture::new(wide);
    fixture.submit(search(1, 5, 16, 2));
    fixture.run();
    // With 16 beams, the best pairs begin with one of the 16 best first tokens.
    let mut pairs = Vec::new();
    for (first, first_logprob) in logprobs_after(&prompt(1, 60)).into_iter().take(16) {
        for (second, logprob) in logprobs_after(&[&prompt(1, 60)[..], &[first]].concat()) {
            pairs.push((f64::from(first_logprob) + f64::from(logprob), vec![first, second]));
        }
    }
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best: Vec<_> = pairs.into_iter().take(5).map(|(_, tokens)| tokens).collect();
    let found: Vec<_> = fixture.outputs().into_values().collect();
    assert_eq!(found, best);
}

#[test]
fn a_search_with_one_beam_takes_the_most_likely_tokens() {
    let mut fixture = Fixture::new(config());
    fixture.submit(search(1, 1, 1, 20));
    fixture.submit(request(2, prompt(1, 60), 20));
    fixture.run();
    assert_eq!(fixture.output(1, 0), fixture.output(2, 0));
}

#[test]
fn choices_are_told_at_the_end_one_after_the_other() {
    let mut fixture = Fixture::new(config());
    fixture.submit(search(1, 3, 4, 5));
    fixture.run();
    let told: Vec<(u32, bool)> = fixture
        .events
        .iter()
        .map(|event| match event {
            EngineEvent::Token { sequence, .. } => (sequence.index, false),
            EngineEvent::Finished { sequence, .. } => (sequence.index, true),
            EngineEvent::PromptLogprobs { .. } | EngineEvent::Embedding { .. } => {
                panic!("nobody asked about the prompt")
            }
        })
        .collect();
    let choice = |index| [vec![(index, false); 5], vec![(index, true)]].concat();
    assert_eq!(told, [choice(0), choice(1), choice(2)].concat());
    let counters = fixture.engine.stats().counters;
    assert_eq!((counters.num_output_tokens, counters.finished.num_length), (15, 3));
}

#[test]
fn beams_share_what_they_have_in_common() {
    let mut fixture = Fixture::new(config());
    fixture.submit(search(1, 1, 4, 5));
    fixture.step();
    let stats = fixture.engine.stats();
    assert_eq!((stats.num_running_seqs, stats.counters.num_forks), (4, 3));
    // 60 tokens are three full blocks and an open one, which each of the four writes to.
    assert_eq!(stats.kv.num_active_blocks, 4);
    assert_eq!(fixture.step().kv.num_active_blocks, 3 + 4);
}

#[test]
fn a_search_ends_early_when_nothing_better_can_follow() {
    let mut fixture = Fixture::new(config());
    let mut request = search(1, 1, 2, 400);
    request.sampling.stop_token_ids = (2..1000).collect();
    request.sampling.beam = Some(BeamParams { width: 2, length_penalty: 0.0 });
    fixture.submit(request);
    fixture.run();
    let (_, reason, usage) = fixture.ends().remove(0);
    assert_eq!((reason, usage.num_output_tokens), (FinishReason::Stop, 1));
    assert!(fixture.engine.stats().counters.num_steps < 100);
}

#[test]
fn a_search_finds_the_same_in_memory_for_one_sequence() {
    let outputs = |config: EngineConfig| {
        let mut fixture = Fixture::new(config);
        fixture.submit(search(1, 3, 4, 20));
        fixture.submit(search(2, 2, 3, 20));
        fixture.run();
        (fixture.outputs(), fixture.engine.stats().counters.num_preemptions)
    };
    let (expected, num_preemptions) = outputs(config());
    assert_eq!(num_preemptions, 0);
    let (found, num_preemptions) =
        outputs(EngineConfig { num_blocks: 5, max_model_len: 80, ..config() });
    assert_eq!(found, expected);
    assert!(num_preemptions > 0);
}

#[test]
fn a_search_that_ends_before_its_time_frees_everything_and_ends_every_choice() {
    for num_steps in 0..4 {
        let mut fixture = Fixture::new(config());
        fixture.submit(search(1, 3, 4, 20));
        for _ in 0..num_steps {
            fixture.step();
        }
        fixture.engine.abort(RequestId(1));
        fixture.engine.check_invariants();
        assert_eq!(fixture.engine.stats().kv.num_active_blocks, 0);
        fixture.step();
        let reasons: Vec<_> = fixture.ends().into_iter().map(|(_, reason, _)| reason).collect();
        assert_eq!(reasons, vec![FinishReason::Abort; 3]);
    }
    for fault in [Fault::StepFails { step: 2 }, Fault::RowIsNotFinite { step: 2 }] {
        let mut fixture = Fixture::with(config(), |executor| executor.with_fault(fault));
        fixture.submit(search(1, 3, 4, 20));
        fixture.run();
        let ends = fixture.ends();
        assert!(
            matches!(ends[2], (1, FinishReason::Error(_), usage) if usage.num_output_tokens == 0)
        );
        assert_eq!((ends.len(), fixture.num_tokens(1)), (3, 0));
    }
}

#[test]
fn a_search_that_can_never_go_on_is_refused() {
    let mut fixture = Fixture::new(config());
    let refused = fixture.engine.submit(search(1, 1, 9, 5));
    assert_eq!(refused, Err(SubmitError::TooManyBeams { width: 9, max_num_seqs: 8 }));
    let mut request = search(1, 1, 2, 5);
    request.sampling.stop_token_ids = (1..1000).collect();
    assert_eq!(
        fixture.engine.submit(request),
        Err(SubmitError::BeamsExceedVocab { num_candidates: 1001, vocab_size: 1000 })
    );
    assert!(!fixture.engine.has_work());
}
