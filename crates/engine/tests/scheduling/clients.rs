//! Who runs next when several clients wait.

use crate::fixture::{Fixture, config, prompt, request};
use mini_infer_core::{ClientId, Request, RequestId};
use mini_infer_engine::{EngineConfig, SubmitError};

const HEAVY: ClientId = ClientId(1);
const LIGHT: ClientId = ClientId(2);

/// A request of `client` with a prompt of its own.
fn of(client: ClientId, id: u64, num_prompt_tokens: u64, max_tokens: u32) -> Request {
    Request { client, ..request(id, prompt(id, num_prompt_tokens), max_tokens) }
}

fn one_at_a_time() -> EngineConfig {
    EngineConfig { max_num_seqs: 1, max_queue_len: 1000, ..config() }
}

#[test]
fn a_first_request_waits_for_one_that_runs_and_not_for_those_that_queue() {
    let mut fixture = Fixture::new(EngineConfig { max_num_seqs: 2, ..one_at_a_time() });
    for id in 1..=500 {
        fixture.submit(of(HEAVY, id, 10, 4));
    }
    fixture.step();
    fixture.submit(of(LIGHT, 501, 10, 4));
    while !fixture.order_of_ends().contains(&501) {
        fixture.step();
    }
    // Two ran, and one of the same count was there before.
    assert!(fixture.ends().len() <= 4, "{:?}", fixture.order_of_ends());
}

#[test]
fn shares_are_counted_in_tokens_and_not_in_requests() {
    let mut fixture = Fixture::new(one_at_a_time());
    for id in 1..=10 {
        fixture.submit(of(HEAVY, id, 56, 5));
    }
    for id in 11..=60 {
        fixture.submit(of(LIGHT, id, 8, 5));
    }
    while fixture.ends().len() < 36 {
        fixture.step();
    }
    // 60 tokens are given for each of the one, 12 for each of the other.
    let num_heavy = fixture.order_of_ends().into_iter().filter(|id| *id <= 10).count();
    assert_eq!(num_heavy, 6);
}

#[test]
fn what_the_prefix_cache_gives_is_free() {
    let mut fixture = Fixture::new(one_at_a_time());
    let again = |id| Request { client: HEAVY, ..request(id, prompt(1, 57), 2) };
    fixture.submit(again(1));
    fixture.run();
    for id in 2..=9 {
        fixture.submit(again(id));
    }
    for id in 10..=13 {
        fixture.submit(of(LIGHT, id, 8, 2));
    }
    while fixture.ends().len() < 9 {
        fixture.step();
    }
    // Two tokens each of the one, of which 56 were found, and nine of the other.
    assert_eq!(fixture.order_of_ends(), [1, 2, 10, 3, 4, 5, 6, 11, 7]);
}

#[test]
fn nobody_saves_up_a_share_or_gets_rid_of_one_by_staying_away() {
    let mut fixture = Fixture::new(one_at_a_time());
    for id in 1..=20 {
        fixture.submit(of(HEAVY, id, 10, 4));
    }
    while fixture.ends().len() < 10 {
        fixture.step();
    }
    for id in 21..=24 {
        fixture.submit(of(LIGHT, id, 10, 4));
    }
    while fixture.ends().len() < 16 {
        fixture.step();
    }
    let order = fixture.order_of_ends();
    let num_light = order.iter().filter(|id| **id > 20).count();
    assert!((2..=3).contains(&num_light), "by turns: {order:?}");
    // It takes more than the other, leaves, and comes back.
    fixture.engine.abort(RequestId(23));
    fixture.engine.abort(RequestId(24));
    fixture.submit(of(LIGHT, 25, 400, 4));
    while !fixture.order_of_ends().contains(&25) {
        fixture.step();
    }
    fixture.submit(of(LIGHT, 26, 10, 4));
    fixture.run();
    assert_eq!(fixture.order_of_ends().last(), Some(&26), "it has been given its share");
}

#[test]
fn while_nobody_waits_all_sequences_have_one_order() {
    // Each sequence grows to 6 blocks; all three together have 13.
    let small = EngineConfig { num_blocks: 13, max_model_len: 96, ..config() };
    let mut fixture = Fixture::new(small);
    fixture.submit(of(HEAVY, 1, 30, 60));
    fixture.submit(of(HEAVY, 2, 30, 60));
    fixture.submit(of(LIGHT, 3, 30, 60));
    fixture.run();
    assert_eq!(fixture.engine.stats().counters.num_preemptions, 1);
    assert_eq!(fixture.order_of_ends(), [1, 2, 3]);
}

#[test]
fn a_client_that_was_given_less_is_preempted_last() {
    let small = EngineConfig { num_blocks: 13, max_model_len: 96, max_num_seqs: 3, ..config() };
    let mut fixture = Fixture::new(small);
    for id in 1..=4 {
        fixture.submit(of(HEAVY, id, 30, 60));
    }
    fixture.step();
    assert_eq!(fixture.engine.stats().num_running_seqs, 3);
    fixture.engine.abort(RequestId(3));
    fixture.submit(of(LIGHT, 5, 30, 60));
    fixture.run();
    let order = fixture.order_of_ends();
    let place = |id| order.iter().position(|ended| *ended == id);
    assert!(place(5) < place(2), "{order:?}");
    assert!(place(1) < place(2) && place(2) < place(4), "{order:?}");
}

#[test]
fn no_client_can_fill_the_queue_for_the_others() {
    let mut fixture = Fixture::new(EngineConfig { max_queue_len: 8, ..one_at_a_time() });
    for id in 1..=8 {
        fixture.submit(of(HEAVY, id, 10, 4));
    }
    let full = Err(SubmitError::QueueFull { max_queue_len: 8 });
    assert_eq!(fixture.engine.submit(of(HEAVY, 9, 10, 4)), full);
    fixture.submit(of(LIGHT, 10, 10, 4));
    assert_eq!(fixture.engine.submit(of(LIGHT, 11, 10, 4)), full);
    assert_eq!(fixture.engine.submit(of(ClientId(3), 12, 10, 4)), full, "the reserve is taken");
    fixture.run();
    assert_eq!(fixture.ends().len(), 9);
}
