//! Who runs when, what ends whom, and what is refused.

use crate::fixture::{Fixture, config, prompt, request};
use mini_infer_core::{
    EngineEvent, FinishReason, Request, RequestId, SamplingParams, SequenceId, SequenceUsage,
};
use mini_infer_engine::{EngineConfig, Fault, SubmitError};
use std::time::Duration;

#[test]
fn a_long_prompt_never_stalls_a_stream_however_urgent_it_is() {
    for priority in [0, -1] {
        let mut fixture = Fixture::new(config());
        fixture.submit(request(1, prompt(1, 10), 40));
        fixture.step();
        fixture.submit(Request { priority, ..request(2, prompt(2, 400), 4) });
        for num_steps in 2..=8 {
            let report = fixture.step();
            assert_eq!(fixture.num_tokens(1), num_steps, "one token with every step");
            assert!(report.num_scheduled_tokens <= 64);
        }
        assert_eq!(fixture.num_tokens(2), 1, "400 tokens in chunks of 63");
    }
}

#[test]
fn two_prompts_that_do_not_fit_together_run_one_after_the_other() {
    let small =
        EngineConfig { num_blocks: 8, max_model_len: 128, max_batched_tokens: 16, ..config() };
    let mut fixture = Fixture::new(small);
    // When the first decodes in its fourth block, four are left for the four of the second.
    fixture.submit(request(1, prompt(1, 62), 50));
    fixture.submit(request(2, prompt(2, 62), 50));
    fixture.run();
    assert_eq!(fixture.order_of_ends(), [1, 2]);
    assert_eq!(fixture.engine.stats().counters.num_preemptions, 0);
}

#[test]
fn lower_priority_numbers_run_first_but_waiting_outweighs_them() {
    let mut fixture = Fixture::new(EngineConfig { max_num_seqs: 1, ..config() });
    let with_priority = |id, priority| Request { priority, ..request(id, prompt(id, 4), 2) };
    fixture.submit(with_priority(1, 1));
    fixture.submit(with_priority(2, 0));
    fixture.clock.advance(Duration::from_secs(11));
    fixture.submit(with_priority(3, 0));
    fixture.submit(with_priority(4, -1));
    fixture.run();
    // Due at 10, 0, 11 and 1 seconds.
    assert_eq!(fixture.order_of_ends(), [2, 4, 1, 3]);
}

#[test]
fn the_youngest_is_preempted_and_goes_on_where_it_was() {
    // Each sequence grows to 6 blocks; all three together have 13.
    let small = EngineConfig { num_blocks: 13, max_model_len: 96, ..config() };
    let mut fixture = Fixture::new(small);
    for id in 1..=3 {
        fixture.submit(request(id, prompt(id, 30), 60));
    }
    fixture.run();
    assert_eq!(fixture.engine.stats().counters.num_preemptions, 1);
    assert_eq!(fixture.order_of_ends(), [1, 2, 3]);
    let mut alone = Fixture::new(config());
    alone.submit(request(3, prompt(3, 30), 60));
    alone.run();
    let is_token_of_third = |event: &&EngineEvent| matches!(event, EngineEvent::Token { sequence, .. } if sequence.request.0 == 3);
    let tokens = |fixture: &Fixture| -> Vec<EngineEvent> {
        fixture.events.iter().filter(is_token_of_third).cloned().collect()
    };
    assert_eq!(tokens(&fixture), tokens(&alone));
}

#[test]
fn an_urgent_latecomer_is_not_the_one_to_be_preempted() {
    let small = EngineConfig { num_blocks: 13, max_model_len: 96, ..config() };
    let mut fixture = Fixture::new(small);
    for id in 1..=2 {
        fixture.submit(request(id, prompt(id, 30), 60));
    }
    fixture.step();
    fixture.submit(Request { priority: -1, ..request(3, prompt(3, 30), 60) });
    fixture.run();
    assert_eq!(fixture.engine.stats().counters.num_preemptions, 1);
    assert_eq!(fixture.order_of_ends(), [1, 3, 2]);
}

#[test]
fn a_full_queue_refuses_and_harms_nobody() {
    let mut fixture = Fixture::new(EngineConfig { max_num_seqs: 1, max_queue_len: 2, ..config() });
    fixture.submit(request(1, prompt(1, 4), 3));
    fixture.step();
    fixture.submit(request(2, prompt(2, 4), 3));
    fixture.submit(request(3, prompt(3, 4), 3));
    let refused = fixture.engine.submit(request(4, prompt(4, 4), 3));
    assert_eq!(refused, Err(SubmitError::QueueFull { max_queue_len: 2 }));
    fixture.engine.abort(RequestId(3));
    fixture.submit(request(5, prompt(5, 4), 3));
    fixture.run();
    assert_eq!(fixture.order_of_ends(), [3, 1, 2, 5]);
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let mut fixture = Fixture::new(config());
    let mut refusal = |request| fixture.engine.submit(request).unwrap_err();
    assert_eq!(refusal(request(1, vec![], 1)), SubmitError::EmptyPrompt);
    assert_eq!(
        refusal(request(1, prompt(1, 512), 1)),
        SubmitError::PromptTooLong { num_prompt_tokens: 512, max_model_len: 512 }
    );
    assert_eq!(
        refusal(request(1, vec![1000], 1)),
        SubmitError::TokenOutOfVocab { token: 1000, vocab_size: 1000 }
    );
    assert_eq!(refusal(request(1, vec![1], 0)), SubmitError::NoOutput);
    fixture.submit(request(1, prompt(1, 511), 9));
    let again = fixture.engine.submit(request(1, vec![1], 1));
    assert_eq!(again, Err(SubmitError::DuplicateId { id: RequestId(1) }));
    fixture.run();
    let (_, reason, usage) = fixture.ends().remove(0);
    assert_eq!((reason, usage.num_output_tokens), (FinishReason::Length, 1));
}

#[test]
fn an_abort_frees_blocks_at_once_wherever_the_request_is() {
    let mut fixture = Fixture::new(EngineConfig { max_num_seqs: 2, ..config() });
    fixture.submit(request(1, prompt(1, 200), 9));
    fixture.submit(request(2, prompt(2, 10), 9));
    fixture.submit(request(3, prompt(3, 10), 9));
    for _ in 0..2 {
        fixture.step();
    }
    for id in 1..=3 {
        fixture.engine.abort(RequestId(id));
        fixture.engine.abort(RequestId(id));
    }
    fixture.engine.check_invariants();
    assert_eq!(fixture.engine.stats().kv.num_active_blocks, 0);
    assert!(fixture.engine.has_work(), "the ends are still to be told");
    assert_eq!(fixture.step().num_scheduled_seqs, 0);
    assert_eq!(fixture.order_of_ends(), [1, 2, 3]);
    assert!(!fixture.engine.has_work());
}

#[test]
fn a_stop_string_ends_its_sequence_and_only_counts_the_tokens_before() {
    let mut fixture = Fixture::new(config());
    let sampling = SamplingParams { n: 2, ..SamplingParams::greedy(10) };
    fixture.submit(Request { sampling, ..request(1, prompt(1, 4), 0) });
    for _ in 0..4 {
        fixture.step();
    }
    let first = SequenceId { request: RequestId(1), index: 0 };
    fixture.engine.finish_sequence(first, 2);
    fixture.engine.finish_sequence(first, 1);
    fixture.run();
    let ends: Vec<_> = fixture
        .ends()
        .into_iter()
        .map(|(_, reason, usage)| (reason, usage.num_output_tokens))
        .collect();
    assert_eq!(ends, [(FinishReason::Stop, 2), (FinishReason::Length, 10)]);
}

#[test]
fn a_stop_token_is_told_and_ends_its_sequence() {
    let mut plain = Fixture::new(config());
    plain.submit(request(1, prompt(1, 4), 3));
    plain.run();
    let EngineEvent::Token { token: second, .. } = plain.events[1] else { panic!("a token") };
    let mut fixture = Fixture::new(config());
    let sampling = SamplingParams { stop_token_ids: vec![second], ..SamplingParams::greedy(3) };
    fixture.submit(Request { sampling, ..request(1, prompt(1, 4), 0) });
    fixture.run();
    assert_eq!(fixture.events[..2], plain.events[..2]);
    assert_eq!(fixture.ends()[0].1, FinishReason::Stop);
}

#[test]
fn a_failed_step_ends_its_sequences_and_no_other() {
    let one_at_a_time = EngineConfig { max_num_seqs: 1, ..config() };
    let fault = Fault::StepFails { step: 1 };
    let mut fixture = Fixture::with(one_at_a_time, |executor| executor.with_fault(fault));
    fixture.submit(request(1, prompt(1, 20), 5));
    fixture.submit(request(2, prompt(1, 20), 5));
    fixture.run();
    let ends = fixture.ends();
    assert!(matches!(&ends[0], (1, FinishReason::Error(text), _) if text.contains("injected")));
    assert_eq!((ends[1].0, &ends[1].1), (2, &FinishReason::Length));
    assert_eq!(fixture.num_tokens(2), 5);
}

#[test]
fn logits_that_are_not_finite_end_their_sequence_and_no_other() {
    let fault = Fault::RowIsNotFinite { step: 2 };
    let mut fixture = Fixture::with(config(), |executor| executor.with_fault(fault));
    fixture.submit(request(1, prompt(1, 20), 5));
    fixture.submit(request(2, prompt(2, 20), 5));
    fixture.run();
    let ends = fixture.ends();
    assert!(matches!(&ends[0], (1, FinishReason::Error(text), _) if text.contains("not finite")));
    assert_eq!((ends[1].0, &ends[1].1), (2, &FinishReason::Length));
    assert_eq!((fixture.num_tokens(1), fixture.num_tokens(2)), (2, 5));
}

#[test]
fn counters_add_up_to_the_usage_of_all_sequences() {
    let mut fixture = Fixture::new(config());
    for id in 1..=3 {
        fixture.submit(request(id, prompt(id, 20 + id), 4));
    }
    fixture.run();
    let usage: Vec<SequenceUsage> = fixture.ends().into_iter().map(|(.., usage)| usage).collect();
    let stats = fixture.engine.stats();
    let num_prompt: u32 = usage.iter().map(|usage| usage.num_prompt_tokens).sum();
    let num_output: u32 = usage.iter().map(|usage| usage.num_output_tokens).sum();
    assert_eq!(stats.counters.num_prompt_tokens, u64::from(num_prompt));
    assert_eq!(stats.counters.num_output_tokens, u64::from(num_output));
    assert_eq!(stats.counters.finished.num_length, 3);
    assert_eq!((stats.num_running_seqs, stats.num_waiting_requests), (0, 0));
    assert_eq!(stats.kv.num_cached_blocks + stats.kv.num_free_blocks, stats.kv.num_blocks);
}

#[test]
fn memory_for_one_request_and_a_bit_serves_eight_without_a_step_for_nothing() {
    // Each grows to 8 blocks; the memory has 9.
    let small = EngineConfig { num_blocks: 9, max_model_len: 144, ..config() };
    let mut fixture = Fixture::new(small);
    for id in 1..=8 {
        fixture.submit(request(id, prompt(id, 60), 68));
    }
    while fixture.engine.has_work() {
        let report = fixture.step();
        assert!(report.num_scheduled_tokens > 0);
        assert_eq!(fixture.engine.stats().num_steps_without_progress, 0);
    }
    assert_eq!(fixture.ends().len(), 8);
    assert!(fixture.ends().iter().all(|(.., usage)| usage.num_output_tokens == 68));
}

#[test]
fn an_overload_never_leaves_a_step_without_progress() {
    let small = EngineConfig { num_blocks: 40, max_queue_len: 4, ..config() };
    let mut fixture = Fixture::new(small);
    let mut num_refused = 0;
    for id in 0..600 {
        let arrival =
            request(id, prompt(id, 20 + id * 37 % 300), 1 + u32::try_from(id % 50).unwrap());
        num_refused += u32::from(fixture.engine.submit(arrival).is_err());
        if id % 7 == 0 {
            fixture.engine.abort(RequestId(id / 2));
        }
        fixture.step();
        assert_eq!(fixture.engine.stats().num_steps_without_progress, 0);
    }
    fixture.run();
    assert!(num_refused > 100);
    assert_eq!(fixture.ends().len(), 600 - num_refused as usize);
}

#[test]
fn preemptions_are_few_when_many_answers_grow_beside_each_other() {
    // Eight prompts of 4 blocks grow to 8 each; the memory has 40 blocks for the 64.
    let small = EngineConfig { num_blocks: 40, max_model_len: 128, ..config() };
    let mut fixture = Fixture::new(small);
    for id in 1..=8 {
        fixture.submit(request(id, prompt(id, 60), 68));
    }
    fixture.run();
    assert!(fixture.engine.stats().counters.num_preemptions <= 8, "one for each request at most");
}

#[test]
fn prompts_of_ten_times_the_memory_are_all_served() {
    let small = EngineConfig { num_blocks: 32, max_queue_len: 100, ..config() };
    let mut fixture = Fixture::new(small);
    for id in 1..=40 {
        fixture.submit(request(id, prompt(id, 130), 2));
        fixture.run();
        let kv = fixture.engine.stats().kv;
        assert_eq!(kv.num_active_blocks + kv.num_free_blocks + kv.num_cached_blocks, 32);
    }
    assert!(fixture.ends().iter().all(|(_, reason, _)| *reason == FinishReason::Length));
}

#[test]
fn a_stream_goes_on_after_a_preemption_without_a_gap_or_a_repeat() {
    for temperature in [0.0, 1.0] {
        let sampling = SamplingParams { temperature, seed: 3, ..SamplingParams::greedy(60) };
        let drawn = |id| Request { sampling: sampling.clone(), ..request(id, prompt(id, 30), 0) };
        let small = EngineConfig { num_blocks: 7, max_model_len: 96, ..config() };
        let mut fixture = Fixture::new(small);
        for id in 1..=4 {
            fixture.submit(drawn(id));
        }
        fixture.run();
        assert!(fixture.engine.stats().counters.num_preemptions > 0);
        for id in 1..=4 {
            let mut alone = Fixture::new(config());
            alone.submit(drawn(id));
            alone.run();
            assert_eq!(fixture.output(id, 0), alone.output(id, 0), "request {id}");
        }
    }
}
