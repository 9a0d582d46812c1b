//! What a sequence sees of paged memory, one claim each; the model test plays them at random.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use mini_infer_core::{
    BlockId, BlockKey, BlockSize, KvPart, KvTransfer, Namespace, PrefixCaching, TokenId,
};
use mini_infer_kv::{
    BlockHashing, BlockState, BlockTable, KvConfig, KvManager, KvMemory, OutOfBlocks, PrefixMatch,
    SequenceStart, WindowConfig,
};

const NAMESPACE: Namespace = Namespace([0; 32]);

/// A manager and the transfers that it has told since they were last taken.
struct Fixture {
    kv: KvManager,
    transfers: Vec<KvTransfer>,
}

impl Fixture {
    fn new(num_blocks: u32) -> Self {
        Self::with(|config| config.num_blocks = num_blocks)
    }

    fn with(change: impl FnOnce(&mut KvConfig)) -> Self {
        let mut config = KvConfig {
            block_size: BlockSize::DEFAULT,
            num_blocks: 8,
            prefix_caching: PrefixCaching::On,
            block_hashing: BlockHashing::Chained,
            window: None,
            content_hash: None,
        };
        change(&mut config);
        Self { kv: KvManager::new(config), transfers: Vec::new() }
    }

    fn find(&self, tokens: &[TokenId]) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        self.kv.match_prefix(NAMESPACE, tokens, &mut found);
        found
    }

    fn num_matched(&self, tokens: &[TokenId]) -> u32 {
        self.find(tokens).num_tokens()
    }

    /// Starts a sequence with what is found of its tokens.
    fn start(&mut self, tokens: &[TokenId]) -> BlockTable {
        let found = self.find(tokens);
        self.kv.start(&found, SequenceStart::default(), &mut self.transfers)
    }

    /// Computes a sequence's tokens that are not.
    fn extend(&mut self, table: &mut BlockTable, tokens: &[TokenId]) {
        let num_tokens = u32::try_from(tokens.len()).unwrap();
        self.kv.allocate(table, num_tokens, &mut self.transfers).unwrap();
        self.kv.mark_computed(table, tokens);
        self.kv.check_invariants(&[table]);
    }

    /// Starts a sequence and computes all its tokens.
    fn compute(&mut self, tokens: &[TokenId]) -> BlockTable {
        let mut table = self.start(tokens);
        let num_tokens = u32::try_from(tokens.len()).unwrap();
        self.kv.allocate(&mut table, num_tokens, &mut self.transfers).unwrap();
        self.kv.mark_computed(&mut table, tokens);
        table
    }

    fn taken(&mut self) -> Vec<KvTransfer> {
        std::mem::take(&mut self.transfers)
    }
}

fn tokens(num: u32) -> Vec<TokenId> {
    (0..num).collect()
}

/// The first `num` tokens of [`tokens`], then others.
fn diverging(num: u32, num_others: u32) -> Vec<TokenId> {
    (0..num).chain((0..num_others).map(|i| 1000 + i)).collect()
}

/// A hash that tells apart what these tests hold.
fn content_hash(parent: &BlockKey, tokens: &[TokenId]) -> BlockKey {
    let mut key = *parent;
    key.0.rotate_left(1);
    key.0[0] ^= tokens.iter().fold(1_u8, |sum, token| sum.wrapping_add(token.to_le_bytes()[0]));
    key
}

#[test]
fn freed_blocks_are_evicted_tail_first() {
    let mut test = Fixture::new(4);
    let table = test.compute(&tokens(49));
    test.kv.free(table);
    assert_eq!(test.num_matched(&tokens(60)), 49);
    let other = test.compute(&[9; 17]);
    assert_eq!(test.num_matched(&tokens(60)), 32, "the open tail and the block before it");
    test.kv.check_invariants(&[&other]);
}

#[test]
fn the_last_token_is_always_computed_into_a_private_block() {
    let mut test = Fixture::new(8);
    let first = test.compute(&tokens(32));
    for (length, matched) in [(1, 0), (32, 31), (33, 32)] {
        assert_eq!(test.num_matched(&tokens(length)), matched);
    }
    let mut second = test.start(&tokens(32));
    assert_eq!(first.blocks()[0], second.blocks()[0]);
    assert_ne!(first.blocks()[1], second.blocks()[1]);
    test.kv.mark_computed(&mut second, &tokens(32));
    assert_eq!(first.blocks(), second.blocks(), "what is the same again is kept once");
    test.kv.check_invariants(&[&first, &second]);
}

#[test]
fn a_block_is_shared_as_soon_as_it_is_full() {
    let mut test = Fixture::new(8);
    let running = test.compute(&tokens(16));
    assert_eq!(test.num_matched(&tokens(17)), 16);
    test.kv.check_invariants(&[&running]);
}

#[test]
fn a_diverging_prompt_copies_its_block_up_to_the_first_changed_token() {
    let mut test = Fixture::new(8);
    let first = test.compute(&tokens(40));
    let edited = diverging(21, 9);
    let second = test.start(&edited);
    assert_eq!((second.num_computed_tokens(), second.blocks().len()), (21, 2));
    let (from, to) = (first.blocks()[1], second.blocks()[1]);
    assert_eq!(test.taken(), [KvTransfer::Copy { from, to, num_tokens: 5 }]);
    assert_eq!(test.kv.stats().num_copied_blocks, 1);
    test.kv.check_invariants(&[&first, &second]);
}

#[test]
fn a_conversation_goes_on_where_its_last_answer_ended() {
    let mut test = Fixture::new(8);
    let table = test.compute(&tokens(20));
    let tail = table.blocks()[1];
    test.kv.free(table);
    assert_eq!(test.kv.block(tail).state, BlockState::Cached);
    let next = test.start(&diverging(20, 5));
    assert_eq!(next.num_computed_tokens(), 20);
    let to = next.blocks()[1];
    assert_eq!(test.taken(), [KvTransfer::Copy { from: tail, to, num_tokens: 4 }]);
}

#[test]
fn of_two_tails_with_the_same_start_the_longer_is_kept() {
    let mut test = Fixture::new(8);
    for (length, num_cached) in [(20, 2), (18, 2), (25, 2), (32, 2)] {
        let mut found = PrefixMatch::default();
        found.reset(NAMESPACE);
        let mut table = test.kv.start(&found, SequenceStart::default(), &mut test.transfers);
        test.extend(&mut table, &tokens(length));
        test.kv.free(table);
        assert_eq!(test.kv.stats().num_cached_blocks, num_cached, "{length}");
    }
    assert_eq!(test.num_matched(&tokens(33)), 32);
}

#[test]
fn the_last_block_left_is_taken_over_with_what_it_shares() {
    let mut test = Fixture::new(2);
    let table = test.compute(&tokens(20));
    test.kv.free(table);
    let table = test.start(&diverging(20, 5));
    assert_eq!(table.num_computed_tokens(), 20);
    assert_eq!(test.taken(), [], "nothing to copy in a pool of two blocks");
    test.kv.check_invariants(&[&table]);
}

#[test]
fn a_fork_shares_its_open_tail_until_one_of_the_two_writes() {
    let mut test = Fixture::new(8);
    let mut table = test.compute(&tokens(20));
    let mut fork = test.kv.fork(&table).unwrap();
    assert_eq!(fork.blocks(), table.blocks());
    assert_eq!(test.kv.stats().num_shared_blocks, 2);
    assert_eq!(test.kv.num_obtainable_slots(&table), 6 * 16 + 12 - 16, "one block for the copy");
    test.kv.allocate(&mut table, 21, &mut test.transfers).unwrap();
    test.kv.mark_computed(&mut table, &tokens(21));
    let (from, to) = (fork.blocks()[1], table.blocks()[1]);
    assert_eq!(test.taken(), [KvTransfer::Copy { from, to, num_tokens: 4 }]);
    test.kv.allocate(&mut fork, 21, &mut test.transfers).unwrap();
    test.kv.mark_computed(&mut fork, &diverging(20, 1));
    assert_eq!(test.taken(), [], "who is left alone writes in place");
    test.kv.check_invariants(&[&table, &fork]);
}

#[test]
fn a_sequence_without_prefix_caching_leaves_nothing_behind() {
    let mut test = Fixture::new(8);
    let mut found = PrefixMatch::default();
    found.reset(NAMESPACE);
    let start = SequenceStart { prefix_caching: PrefixCaching::Off, ..SequenceStart::default() };
    let mut table = test.kv.start(&found, start, &mut test.transfers);
    test.extend(&mut table, &tokens(40));
    assert_eq!(test.num_matched(&tokens(40)), 0);
    test.kv.free(table);
    assert_eq!((test.num_matched(&tokens(40)), test.kv.stats().num_free_blocks), (0, 8));
}

#[test]
fn namespaces_never_share() {
    let mut test = Fixture::new(8);
    let table = test.compute(&tokens(40));
    test.kv.free(table);
    let mut found = PrefixMatch::default();
    test.kv.match_prefix(Namespace([1; 32]), &tokens(40), &mut found);
    assert_eq!(found.num_tokens(), 0);
}

#[test]
fn trimming_keeps_what_was_released_last_and_gives_all_other_memory_back_once() {
    let mut test = Fixture::new(8);
    let table = test.compute(&tokens(48));
    let head = table.blocks()[0];
    let rest = table.blocks()[1..].to_vec();
    test.kv.free(table);
    test.kv.trim(1, &mut test.transfers);
    let mut discarded: Vec<BlockId> = Vec::new();
    for transfer in test.taken() {
        let KvTransfer::Discard { block, part: KvPart::FullAttention } = transfer else {
            panic!("{transfer:?}")
        };
        discarded.push(block);
    }
    discarded.sort_unstable();
    assert_eq!(discarded, rest, "and nothing for blocks that were never used");
    assert_eq!(test.kv.block(head).state, BlockState::Cached);
    test.kv.trim(1, &mut test.transfers);
    assert_eq!(test.taken(), []);
}

#[test]
fn an_evicted_full_block_is_offered_to_the_tier_under_the_key_by_which_it_is_asked_for() {
    let mut test = Fixture::with(|config| {
        config.num_blocks = 3;
        config.content_hash = Some(content_hash);
    });
    let known = tokens(40);
    let empty = test.start(&known);
    let key = test.kv.next_key(&empty, &known).unwrap();
    assert_eq!(key, content_hash(&BlockKey::root(NAMESPACE), &known[..16]));
    assert_eq!(test.kv.next_key(&empty, &known[..16]), None, "the last token is computed");
    let table = test.compute(&known);
    let first = table.blocks()[0];
    assert_eq!(test.kv.next_key(&table, &known), None, "not at a block's border");
    test.kv.free(table);
    test.taken();
    let other = test.compute(&[7; 48]);
    let saved: Vec<_> = test.taken();
    assert_eq!(saved.len(), 2, "the open tail has no key");
    assert_eq!(saved[1], KvTransfer::Save { block: first, key });
    test.kv.check_invariants(&[&other, &empty]);
}

#[test]
fn accounting_counts_shared_tokens_once_and_the_open_tail_as_waste() {
    let mut test = Fixture::new(8);
    let tables = [test.compute(&tokens(20)), test.compute(&diverging(16, 2))];
    let stats = test.kv.stats();
    assert_eq!((stats.num_active_blocks, stats.num_allocated_slots), (3, 48));
    assert_eq!((stats.num_live_tokens, stats.num_shared_tokens), (16 + 4 + 2, 16));
    assert_eq!(stats.waste.internal_slots, 12 + 14);
    for table in tables {
        test.kv.free(table);
    }
    let stats = test.kv.stats();
    assert_eq!((stats.num_cached_blocks, stats.num_free_blocks), (3, 5));
    assert_eq!((stats.num_live_tokens, stats.waste.internal_slots), (0, 0));
}

/// Memory for `num_blocks` whole blocks, half of whose weight is that of a window of one block.
fn windowed(num_blocks: u32) -> Fixture {
    Fixture::with(|config| {
        config.num_blocks = num_blocks;
        config.window = Some(WindowConfig { num_tokens: 16, full_weight: 1, window_weight: 1 });
        config.content_hash = Some(content_hash);
    })
}

#[test]
fn what_a_window_has_passed_makes_room_for_a_longer_sequence() {
    let mut test = windowed(4);
    assert_eq!((test.kv.num_block_ids(), test.kv.stats().num_blocks), (8, 4));
    let mut table = test.start(&[]);
    for length in 1..=96 {
        test.extend(&mut table, &tokens(length));
    }
    assert_eq!(table.blocks().len(), 6);
    let stats = test.kv.stats();
    assert_eq!((stats.num_active_blocks, stats.num_cached_blocks), (4, 0), "memory of 7 parts");
    assert_eq!(stats.num_allocated_slots, 96);
    let first = table.blocks()[0];
    let lost = |transfer: &KvTransfer| matches!(transfer, KvTransfer::Discard { .. });
    let transfers = test.taken();
    assert!(matches!(transfers[0], KvTransfer::Save { block, .. } if block == first));
    let discard = KvTransfer::Discard { block: first, part: KvPart::SlidingWindow };
    assert_eq!(transfers[1], discard, "saved while it is whole, then discarded");
    assert_eq!(transfers.iter().filter(|transfer| lost(transfer)).count(), 4);
}

#[test]
fn where_all_layers_have_a_window_a_sequence_outgrows_the_memory_of_whole_blocks() {
    // A window of two blocks, which reaches into a third.
    let window = WindowConfig { num_tokens: 32, full_weight: 1, window_weight: 16 };
    let mut test = Fixture::with(|config| {
        config.num_blocks = 4;
        config.window = Some(window);
    });
    let longest = window.max_blocks_of_one(4, BlockSize::DEFAULT);
    assert_eq!(longest, 4 + 16);
    let mut table = test.start(&[]);
    for length in 1..=16 * longest {
        test.extend(&mut table, &tokens(length));
        assert!(test.kv.stats().num_window_parts <= 4);
        test.taken();
    }
    test.kv.check_invariants(&[&table]);
    let needed = test.kv.allocate(&mut table, 16 * longest + 1, &mut test.transfers);
    assert_eq!(needed, Err(OutOfBlocks { needed: 1, available: 0 }));
    test.kv.free(table);
    // A hit takes the blocks of the window only, or nothing of the prompt.
    assert_eq!(test.num_matched(&[tokens(16 * longest), vec![9; 2]].concat()), 16 * longest);
    assert_eq!(test.num_matched(&diverging(64, 9)), 0);
}

#[test]
fn a_hit_ends_where_the_window_parts_before_it_are_there() {
    let mut test = windowed(4);
    let mut table = test.start(&[]);
    for length in 1..=80 {
        test.extend(&mut table, &tokens(length));
    }
    test.kv.free(table);
    assert_eq!(test.num_matched(&tokens(90)), 80, "the last block's part is there");
    assert_eq!(test.num_matched(&diverging(32, 9)), 0, "that of the second block is gone");
}

#[test]
fn a_window_part_comes_back_from_the_block_that_gives_way() {
    let mut test = windowed(8);
    let mut table = test.start(&[]);
    for length in 1..=64 {
        test.extend(&mut table, &tokens(length));
    }
    test.kv.trim(0, &mut test.transfers);
    let second = table.blocks()[1];
    // Takes the parts that the first sequence no longer sees.
    let other = test.compute(&[7; 16 * 5]);
    test.kv.free(other);
    test.taken();
    assert_eq!(test.num_matched(&diverging(32, 9)), 0);
    let mut again = test.start(&diverging(32, 9));
    test.kv.allocate(&mut again, 32, &mut test.transfers).unwrap();
    let computed = again.blocks()[1];
    test.kv.mark_computed(&mut again, &tokens(32));
    assert_eq!(again.blocks()[1], second);
    test.taken();
    test.kv.allocate(&mut again, 33, &mut test.transfers).unwrap();
    let copy = KvTransfer::Copy { from: computed, to: second, num_tokens: 16 };
    assert!(test.taken().contains(&copy), "before anything reads it");
    test.kv.check_invariants(&[&table, &again]);
}
