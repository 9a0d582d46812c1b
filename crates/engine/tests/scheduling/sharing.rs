//! What is computed once and held once.

use crate::fixture::{Fixture, config, prompt, request};
use mini_infer_core::{Adapter, Namespace, PrefixCaching, Request, SamplingParams, TokenId};
use mini_infer_engine::{EngineConfig, KvAllocator, Reservation, SequenceState};

#[test]
fn the_sequences_of_one_request_compute_and_store_their_prompt_once() {
    let mut fixture = Fixture::new(config());
    let sampling = SamplingParams { n: 4, temperature: 1.0, seed: 5, ..SamplingParams::greedy(8) };
    fixture.submit(Request { sampling, ..request(1, prompt(1, 60), 0) });
    let report = fixture.step();
    assert_eq!((report.num_scheduled_tokens, report.num_output_tokens), (60, 4));
    let kv = fixture.engine.stats().kv;
    assert_eq!((kv.num_active_blocks, kv.num_shared_tokens), (4, 3 * 60));
    fixture.step();
    let kv = fixture.engine.stats().kv;
    assert_eq!((kv.num_active_blocks, kv.num_shared_tokens), (3 + 4, 3 * 48));
    assert_eq!(kv.num_copied_blocks, 3, "the last to write keeps the open block");
    fixture.run();
    let counters = fixture.engine.stats().counters;
    assert_eq!((counters.num_prompt_tokens, counters.num_queried_tokens), (60, 60));
    assert_eq!(counters.num_forks, 3);
    assert_ne!(fixture.output(1, 0), fixture.output(1, 1), "each draws its own numbers");
}

/// A request for three choices, drawn.
fn three_choices(id: u64, prompt: Vec<TokenId>, max_tokens: u32) -> Request {
    let sampling =
        SamplingParams { n: 3, temperature: 1.0, seed: 5, ..SamplingParams::greedy(max_tokens) };
    Request { sampling, ..request(id, prompt, 0) }
}

#[test]
fn choices_are_the_same_forked_or_admitted_late_or_without_cache() {
    let outputs = |config: EngineConfig, num_forks: u64| {
        let mut fixture = Fixture::new(config);
        fixture.submit(three_choices(1, prompt(1, 60), 8));
        fixture.run();
        assert_eq!(fixture.engine.stats().counters.num_forks, num_forks);
        fixture.outputs()
    };
    let forked = outputs(config(), 2);
    assert_eq!(forked.len(), 3);
    assert_eq!(outputs(EngineConfig { max_num_seqs: 2, ..config() }, 1), forked);
    assert_eq!(outputs(EngineConfig { max_num_seqs: 1, ..config() }, 0), forked);
    let prefix_caching = PrefixCaching::Off;
    assert_eq!(outputs(EngineConfig { prefix_caching, ..config() }, 2), forked);
    let allocator = KvAllocator::Contiguous(Reservation::ExactLength);
    assert_eq!(outputs(EngineConfig { allocator, ..config() }, 0), forked);
}

#[test]
fn choices_wait_while_the_first_of_them_computes_the_prompt_in_chunks() {
    let mut fixture = Fixture::new(config());
    fixture.submit(three_choices(1, prompt(1, 200), 8));
    for _ in 0..3 {
        fixture.step();
        assert_eq!(fixture.engine.stats().num_running_seqs, 1);
    }
    assert_eq!(fixture.step().num_output_tokens, 3);
    assert_eq!(fixture.engine.stats().num_running_seqs, 3);
}

#[test]
fn the_others_are_forked_even_from_a_choice_that_ends_with_its_first_token() {
    let mut fixture = Fixture::new(config());
    fixture.submit(three_choices(1, prompt(1, 60), 1));
    assert_eq!(fixture.step().num_scheduled_tokens, 60);
    assert_eq!(fixture.order_of_ends(), [1, 1, 1]);
    assert!(!fixture.engine.has_work());
}

#[test]
fn many_choices_that_wait_do_not_keep_others_from_running() {
    let mut fixture = Fixture::new(config());
    let sampling = SamplingParams { n: 100, ..SamplingParams::greedy(2) };
    fixture.submit(Request { sampling, ..request(1, prompt(1, 40), 0) });
    fixture.submit(request(2, prompt(2, 10), 2));
    assert_eq!(fixture.step().num_admitted, 2);
    assert_eq!(fixture.num_tokens(2), 1);
}

#[test]
fn a_request_without_caching_is_neither_matched_nor_kept() {
    let mut fixture = Fixture::new(config());
    let run = |fixture: &mut Fixture, id, prefix_caching| {
        fixture.submit(Request { prefix_caching, ..request(id, prompt(1, 40), 3) });
        fixture.run();
        fixture.ends().last().unwrap().2.num_hit_tokens
    };
    assert_eq!(run(&mut fixture, 1, PrefixCaching::Off), 0);
    assert_eq!(fixture.engine.stats().kv.num_cached_blocks, 0);
    assert_eq!(run(&mut fixture, 2, PrefixCaching::On), 0);
    assert!(fixture.engine.stats().kv.num_cached_blocks > 0);
    assert_eq!(run(&mut fixture, 3, PrefixCaching::Off), 0);
    assert!(run(&mut fixture, 4, PrefixCaching::On) >= 32);
}

#[test]
fn equal_prompts_in_different_namespaces_share_nothing() {
    let mut fixture = Fixture::new(config());
    for (id, tenant) in [(1, 7), (2, 8), (3, 0)] {
        let namespace = Namespace([tenant; 32]);
        fixture.submit(Request { namespace, ..request(id, prompt(1, 40), 3) });
        fixture.run();
        assert_eq!(fixture.ends().last().unwrap().2.num_hit_tokens, 0);
    }
    assert_eq!(fixture.output(1, 0), fixture.output(2, 0));
}

#[test]
fn equal_prompts_on_different_adapters_run_together_and_share_nothing() {
    let mut fixture = Fixture::new(config());
    let adapted = |id, number: u8| {
        let adapter = (number > 0).then(|| Adapter::new(u64::from(number)));
        let namespace = Namespace([number; 32]);
        Request { adapter, namespace, ..request(id, prompt(1, 40), 3) }
    };
    for (id, number) in [(1, 0), (2, 1), (3, 2), (4, 1)] {
        fixture.submit(adapted(id, number));
    }
    fixture.run();
    let outputs: Vec<_> = (1..=4).map(|id| fixture.output(id, 0).to_vec()).collect();
    assert_eq!(outputs[1], outputs[3]);
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        assert_ne!(outputs[a], outputs[b], "{a} and {b}");
    }
    fixture.submit(adapted(5, 2));
    fixture.run();
    assert!(fixture.ends().last().unwrap().2.num_hit_tokens >= 32);
    assert_eq!(fixture.output(5, 0), outputs[2]);
}

#[test]
fn idle_memory_is_given_back_but_for_the_blocks_to_keep() {
    let mut fixture = Fixture::new(config());
    fixture.submit(request(1, prompt(1, 100), 3));
    fixture.run();
    fixture.engine.trim_kv(2);
    assert_eq!(fixture.engine.stats().kv.num_cached_blocks, 2);
    fixture.engine.trim_kv(0);
    let kv = fixture.engine.stats().kv;
    assert_eq!((kv.num_cached_blocks, kv.num_free_blocks), (0, 64));
    fixture.submit(request(2, prompt(1, 100), 3));
    fixture.run();
    assert_eq!(fixture.output(2, 0), fixture.output(1, 0));
}

#[test]
fn the_map_of_the_memory_shows_who_holds_what() {
    let mut fixture = Fixture::new(EngineConfig { max_num_seqs: 2, ..config() });
    fixture.submit(three_choices(1, prompt(1, 40), 8));
    fixture.step();
    let map = fixture.engine.kv_snapshot();
    let states: Vec<_> =
        map.sequences.iter().map(|sequence| (sequence.id.index, sequence.state)).collect();
    let (running, waiting) = (SequenceState::Running, SequenceState::Waiting);
    assert_eq!(states, [(0, running), (1, running), (2, waiting)]);
    assert_eq!(map.sequences[0].block_table, map.sequences[1].block_table);
    assert_eq!((map.sequences[0].num_computed_tokens, map.sequences[0].num_known_tokens), (40, 41));
    let shared: Vec<_> =
        map.shared_blocks.iter().map(|shared| (shared.ref_count, shared.num_tokens)).collect();
    assert_eq!(shared, [(2, 16), (2, 16), (2, 8)]);
    assert_eq!(map.sequences[2].num_hit_tokens, None);
}

#[test]
fn a_burst_with_one_prefix_computes_it_once() {
    let mut fixture = Fixture::new(EngineConfig { max_batched_tokens: 512, ..config() });
    let shared = prompt(0, 160);
    for id in 1..=6 {
        fixture.submit(request(id, [&shared[..], &prompt(id, 10)].concat(), 4));
    }
    fixture.run();
    assert_eq!(fixture.engine.stats().counters.num_hit_tokens, 5 * 160);
}

#[test]
fn nobody_waits_for_a_prefix_where_nothing_is_shared() {
    let allocator = KvAllocator::Contiguous(Reservation::ExactLength);
    let mut fixture = Fixture::new(EngineConfig { allocator, ..config() });
    fixture.submit(request(1, prompt(1, 40), 4));
    fixture.step();
    fixture.submit(request(2, prompt(1, 40), 4));
    assert_eq!(fixture.step().num_admitted, 1);
}

#[test]
fn nobody_waits_for_equal_tokens_after_another_prefix() {
    let mut fixture = Fixture::new(EngineConfig { max_batched_tokens: 512, ..config() });
    fixture.submit(request(1, prompt(1, 17), 1));
    fixture.run();
    let same = prompt(9, 20);
    fixture.submit(request(2, [&prompt(2, 16)[..], &same].concat(), 4));
    fixture.submit(request(3, [&prompt(1, 16)[..], &same].concat(), 4));
    assert_eq!(fixture.step().num_admitted, 2);
}

#[test]
fn a_repeated_prompt_hits_all_but_its_last_token() {
    let mut fixture = Fixture::new(config());
    for (id, length, num_hit) in [(1, 32, 0), (2, 32, 31), (3, 33, 32)] {
        fixture.submit(request(id, prompt(1, length), 3));
        fixture.run();
        assert_eq!(fixture.ends().last().unwrap().2.num_hit_tokens, num_hit);
    }
}
