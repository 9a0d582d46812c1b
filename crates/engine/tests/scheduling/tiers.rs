//! When evicted blocks come back from a tier.

use crate::fixture::{Fixture, VOCAB_SIZE, config, prompt, request};
use mini_infer_core::{
    Batch, BlockId, BlockKey, Executor, ExecutorError, KvTransfer, ManualClock, TokenId, mix64,
};
use mini_infer_engine::{EngineConfig, FakeExecutor, FakeTier};
use std::time::Duration;

/// Time that the executor needs for a token.
const TOKEN_TIME: Duration = Duration::from_millis(1);

/// A fake executor that takes time.
struct PacedExecutor {
    fake: FakeExecutor,
    clock: ManualClock,
}

impl Executor for PacedExecutor {
    fn vocab_size(&self) -> usize {
        self.fake.vocab_size()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        self.clock.advance(TOKEN_TIME * u32::try_from(batch.num_tokens()).unwrap());
        self.fake.forward(batch, logits)
    }

    fn transfer(&mut self, transfers: &[KvTransfer]) {
        self.fake.transfer(transfers);
    }

    fn holds(&self, key: &BlockKey) -> bool {
        self.fake.holds(key)
    }

    fn restore(&mut self, key: &BlockKey, block: BlockId) -> bool {
        self.fake.restore(key, block)
    }

    fn restore_time(&self) -> Duration {
        self.fake.restore_time()
    }
}

fn content_key(parent: &BlockKey, tokens: &[TokenId]) -> BlockKey {
    let mut key = *parent;
    for (i, &token) in tokens.iter().enumerate() {
        let hash = mix64(u64::from(token) ^ mix64(u64::from(key.0[i % 32]) << 8 | i as u64));
        for (byte, more) in key.0.iter_mut().zip(hash.to_le_bytes().into_iter().cycle()) {
            *byte = byte.wrapping_mul(31).wrapping_add(more);
        }
    }
    BlockKey(key.0)
}

fn fixture(tier: FakeTier) -> Fixture<PacedExecutor> {
    let config = EngineConfig {
        num_blocks: 16,
        max_model_len: 256,
        content_hash: Some(content_key),
        ..config()
    };
    let clock = ManualClock::default();
    let fake = FakeExecutor::new(VOCAB_SIZE, config.block_size, config.num_blocks).with_tier(tier);
    Fixture::on(config, PacedExecutor { fake, clock: clock.clone() }, clock)
}

/// Runs a prompt, evicts it, runs it again, and returns how many tokens the second run was given
/// and how many of them came from the tier.
fn run_twice(tier: FakeTier) -> (u32, u64) {
    let mut fixture = fixture(tier);
    fixture.submit(request(1, prompt(1, 100), 4));
    fixture.run();
    fixture.engine.trim_kv(0);
    fixture.submit(request(2, prompt(1, 100), 4));
    fixture.run();
    assert_eq!(fixture.output(2, 0), fixture.output(1, 0));
    let num_restored_tokens = fixture.engine.stats().counters.num_restored_tokens;
    (fixture.ends().last().unwrap().2.num_hit_tokens, num_restored_tokens)
}

#[test]
fn evicted_blocks_are_restored_where_that_is_faster_than_computing_them() {
    // A block of 16 tokens takes 16 ms to compute.
    assert_eq!(run_twice(FakeTier::new(Duration::from_millis(15))), (96, 96));
    assert_eq!(run_twice(FakeTier::new(Duration::from_millis(17))), (0, 0));
}

#[test]
fn what_a_tier_has_lost_is_computed() {
    let found = (0..20).map(|seed| run_twice(FakeTier::new(Duration::ZERO).with_losses(4, seed)));
    let found: Vec<(u32, u64)> = found.collect();
    assert!(found.iter().all(|(hit, restored)| u64::from(*hit) == *restored && *hit % 16 == 0));
    assert!(found.iter().any(|(hit, _)| *hit < 96) && found.iter().any(|(hit, _)| *hit > 0));
}

#[test]
fn a_preempted_sequence_comes_back_from_the_tier() {
    let mut fixture = fixture(FakeTier::new(Duration::ZERO));
    for id in 1..=3 {
        fixture.submit(request(id, prompt(id, 40), 70));
    }
    fixture.run();
    let counters = fixture.engine.stats().counters;
    assert!(counters.num_preemptions > 0 && counters.num_restored_tokens > 0, "{counters:?}");
    for id in 1..=3 {
        let mut alone = Fixture::new(config());
        alone.submit(request(id, prompt(id, 40), 70));
        alone.run();
        assert_eq!(fixture.output(id, 0), alone.output(id, 0));
    }
}

#[test]
fn blocks_behind_those_of_the_cache_are_restored_too() {
    let mut fixture = fixture(FakeTier::new(Duration::ZERO));
    fixture.submit(request(1, prompt(1, 100), 4));
    fixture.run();
    // Tails are evicted first, so the first two blocks stay.
    fixture.engine.trim_kv(2);
    fixture.submit(request(2, prompt(1, 100), 4));
    fixture.run();
    assert_eq!(fixture.ends().last().unwrap().2.num_hit_tokens, 96);
    assert_eq!(fixture.engine.stats().counters.num_restored_tokens, 64);
}

#[test]
fn a_whole_block_of_the_tier_is_better_than_a_part_of_one_in_the_cache() {
    let mut fixture = fixture(FakeTier::new(Duration::ZERO));
    fixture.submit(request(1, prompt(1, 100), 4));
    fixture.run();
    fixture.engine.trim_kv(0);
    // Its third block begins with eight tokens of the first prompt's third.
    fixture.submit(request(2, [&prompt(1, 40)[..], &prompt(2, 20)].concat(), 4));
    fixture.run();
    assert_eq!(fixture.engine.stats().counters.num_restored_tokens, 32);
    fixture.submit(request(3, prompt(1, 100), 4));
    fixture.run();
    assert_eq!(fixture.ends().last().unwrap().2.num_hit_tokens, 96);
    assert_eq!(fixture.engine.stats().counters.num_restored_tokens, 32 + 64);
}
