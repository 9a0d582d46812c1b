//! What a sequence sees of paged memory: sharing, eviction, copies and accounting, one claim each.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use mini_infer_core::{BlockSize, Namespace, PrefixCaching, TokenId};
use mini_infer_kv::{
    BlockHashing, BlockTable, KvConfig, KvManager, KvMemory, PrefixMatch, SequenceStart,
};

const NAMESPACE: Namespace = Namespace([0; 32]);

fn manager(num_blocks: u32) -> KvManager {
    KvManager::new(KvConfig {
        block_size: BlockSize::DEFAULT,
        num_blocks,
        prefix_caching: PrefixCaching::On,
        block_hashing: BlockHashing::Chained,
        window: None,
        content_hash: None,
    })
}

/// Admits a sequence and computes all its tokens.
fn compute(kv: &mut KvManager, tokens: &[TokenId]) -> BlockTable {
    let mut found = PrefixMatch::default();
    kv.match_prefix(NAMESPACE, tokens, &mut found);
    let mut transfers = Vec::new();
    let mut table = kv.start(&found, SequenceStart::default(), &mut transfers);
    kv.allocate(&mut table, u32::try_from(tokens.len()).unwrap(), &mut transfers).unwrap();
    kv.mark_computed(&mut table, tokens);
    table
}

fn num_matched(kv: &KvManager, tokens: &[TokenId]) -> u32 {
    let mut found = PrefixMatch::default();
    kv.match_prefix(NAMESPACE, tokens, &mut found);
    found.num_blocks()
}

fn tokens(num: u32) -> Vec<TokenId> {
    (0..num).collect()
}

#[test]
fn freed_blocks_are_evicted_tail_first() {
    let mut kv = manager(4);
    let table = compute(&mut kv, &tokens(49));
    kv.free(table);
    assert_eq!(num_matched(&kv, &tokens(49)), 3);
    let other = compute(&mut kv, &[9; 17]);
    assert_eq!(num_matched(&kv, &tokens(49)), 2, "one free block, then the tail");
    kv.check_invariants(&[&other]);
    kv.free(other);
}

#[test]
fn the_last_token_is_always_computed_into_a_private_block() {
    let mut kv = manager(8);
    let first = compute(&mut kv, &tokens(32));
    assert_eq!(num_matched(&kv, &tokens(32)), 1);
    assert_eq!(num_matched(&kv, &tokens(33)), 2);
    assert_eq!(num_matched(&kv, &tokens(1)), 0);
    let mut found = PrefixMatch::default();
    kv.match_prefix(NAMESPACE, &tokens(32), &mut found);
    assert_eq!(found.num_tokens(), 31, "all but the last are shared or copied");
    let mut second = kv.start(&found, SequenceStart::default(), &mut Vec::new());
    assert_eq!(first.blocks()[0], second.blocks()[0]);
    assert_ne!(first.blocks()[1], second.blocks()[1]);
    kv.mark_computed(&mut second, &tokens(32));
    assert_eq!(first.blocks(), second.blocks(), "what is the same again is kept once");
    kv.check_invariants(&[&first, &second]);
}

#[test]
fn a_block_is_shared_as_soon_as_it_is_full() {
    let mut kv = manager(8);
    let running = compute(&mut kv, &tokens(16));
    assert_eq!(num_matched(&kv, &tokens(17)), 1);
    kv.check_invariants(&[&running]);
}

#[test]
fn accounting_counts_shared_tokens_once_and_the_open_tail_as_waste() {
    let mut kv = manager(8);
    let tables = [compute(&mut kv, &tokens(20)), compute(&mut kv, &tokens(18))];
    let stats = kv.stats();
    assert_eq!((stats.num_active_blocks, stats.num_allocated_slots), (3, 48));
    assert_eq!((stats.num_live_tokens, stats.num_shared_tokens), (16 + 4 + 2, 16));
    assert_eq!(stats.waste.internal_slots, 12 + 14);
    for table in tables {
        kv.free(table);
    }
    let stats = kv.stats();
    assert_eq!((stats.num_cached_blocks, stats.num_free_blocks), (2, 6), "the longer tail stays");
    assert_eq!((stats.num_live_tokens, stats.waste.internal_slots), (0, 0));
}
