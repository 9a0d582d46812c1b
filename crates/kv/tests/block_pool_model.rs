//! Random operations on the block pool and the KV manager, against small obvious models.
//!
//! The pool's model is a list per state; it predicts every block that is handed out. The manager's
//! model is the content of each block, written out in full; it proves that a match never names a
//! block that holds anything else, with chained hashes and with hashes that all collide. Prompts
//! use an alphabet of two tokens and share prefixes, so that they meet often.
//!
//! `MINI_INFER_KV_SEED=7 cargo test -p mini-infer-kv` replays one seed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use mini_infer_core::{BlockId, BlockSize, Namespace, PrefixCaching, TokenId};
use mini_infer_kv::{
    Allocation, BlockHashing, BlockPool, BlockState, BlockTable, KvConfig, KvManager, KvMemory,
    PrefixMatch, Retention, SequenceStart,
};

const NUM_SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 2_000 };
const NUM_OPERATIONS: u32 = 200;

/// A small random number generator (xorshift64*), so that a seed never changes its meaning.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut random = Self((2 * seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for _ in 0..8 {
            random.below(2);
        }
        random
    }

    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        u32::try_from(bits % u64::from(end)).unwrap()
    }

    fn index_of<T>(&mut self, items: &[T]) -> Option<usize> {
        let len = u32::try_from(items.len()).unwrap();
        (len > 0).then(|| self.below(len) as usize)
    }
}

/// Runs `check` with every seed, or with the one that the environment names.
fn for_every_seed(check: impl Fn(u64)) {
    struct NameSeedOnPanic(u64);
    impl Drop for NameSeedOnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with MINI_INFER_KV_SEED={}", self.0);
            }
        }
    }
    let one = std::env::var("MINI_INFER_KV_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in one.map_or(0..NUM_SEEDS, |seed: u64| seed..seed + 1) {
        let _guard = NameSeedOnPanic(seed);
        check(seed);
    }
}

/// The pool as lists: whoever is taken next stands last in `free`, then first in `cached`.
struct PoolModel {
    free: Vec<BlockId>,
    cached: Vec<BlockId>,
    /// One entry per reference.
    held: Vec<BlockId>,
}

impl PoolModel {
    fn allocate(&mut self) -> Option<Allocation> {
        let allocation = match self.free.pop() {
            Some(block) => Allocation { block, previous: BlockState::Free },
            None if self.cached.is_empty() => return None,
            None => Allocation { block: self.cached.remove(0), previous: BlockState::Cached },
        };
        self.held.push(allocation.block);
        Some(allocation)
    }

    fn release(&mut self, i: usize, retention: Retention) -> BlockId {
        let block = self.held.swap_remove(i);
        if !self.held.contains(&block) {
            match retention {
                Retention::Keep => self.cached.push(block),
                Retention::Drop => self.free.push(block),
            }
        }
        block
    }

    fn state(&self, block: BlockId) -> BlockState {
        match (self.held.contains(&block), self.cached.contains(&block)) {
            (true, _) => BlockState::Active,
            (false, true) => BlockState::Cached,
            (false, false) => BlockState::Free,
        }
    }
}

#[test]
fn the_pool_hands_out_the_blocks_that_the_model_predicts() {
    for_every_seed(|seed| {
        let mut random = Random::new(seed);
        let num_blocks = 1 + random.below(9);
        let mut pool = BlockPool::new(num_blocks);
        let free = (0..num_blocks).rev().map(BlockId).collect();
        let mut model = PoolModel { free, cached: Vec::new(), held: Vec::new() };
        for _ in 0..NUM_OPERATIONS {
            match random.below(5) {
                0 | 1 => assert_eq!(pool.allocate(), model.allocate()),
                2 => {
                    let known = [&model.held[..], &model.cached[..]].concat();
                    let Some(i) = random.index_of(&known) else { continue };
                    pool.touch(known[i]);
                    model.cached.retain(|&block| block != known[i]);
                    model.held.push(known[i]);
                }
                _ => {
                    let Some(i) = random.index_of(&model.held) else { continue };
                    let retention = [Retention::Keep, Retention::Drop][random.below(2) as usize];
                    pool.release(model.release(i, retention), retention);
                }
            }
            pool.check_invariants();
            for block in (0..num_blocks).map(BlockId) {
                assert_eq!(pool.state(block), model.state(block));
                let num_held = model.held.iter().filter(|&&held| held == block).count();
                assert_eq!(pool.ref_count(block) as usize, num_held);
            }
        }
    });
}

/// Everything that a block's KV depends on: the whole prefix up to its last token.
type Content = (Namespace, Vec<TokenId>);

struct ManagerModel {
    size: usize,
    /// What was last written to each block.
    contents: Vec<Option<Content>>,
    sequences: Vec<ModelSequence>,
    has_evicted: bool,
}

struct ModelSequence {
    namespace: Namespace,
    tokens: Vec<TokenId>,
    table: BlockTable,
}

impl ManagerModel {
    /// Returns how many blocks of a prompt some block holds, the last token left out.
    fn longest_match(&self, namespace: Namespace, tokens: &[TokenId]) -> usize {
        let matchable = (tokens.len() - 1) / self.size;
        let holds = |num: &usize| {
            let wanted = Some((namespace, tokens[..num * self.size].to_vec()));
            self.contents.contains(&wanted)
        };
        (1..=matchable).take_while(holds).count()
    }

    fn check_match(&self, namespace: Namespace, tokens: &[TokenId], table: &BlockTable) {
        for (i, block) in table.blocks().iter().enumerate() {
            let expected = (namespace, tokens[..(i + 1) * self.size].to_vec());
            assert_eq!(self.contents[block.index()].as_ref(), Some(&expected), "block {i}");
        }
    }
}

/// Admits a sequence whose prompt starts like the others'.
fn admit(random: &mut Random, kv: &mut KvManager, model: &mut ManagerModel, config: KvConfig) {
    let namespace = Namespace([u8::from(random.below(2) == 1); 32]);
    let mut tokens = vec![0; 1 + random.below(40) as usize];
    let first_own = random.below(40) as usize;
    for token in tokens.iter_mut().skip(first_own) {
        *token = random.below(2);
    }
    let mut found = PrefixMatch::default();
    kv.match_prefix(namespace, &tokens, &mut found);
    let longest = model.longest_match(namespace, &tokens);
    let num_matched = found.num_blocks() as usize;
    match (config.prefix_caching, config.block_hashing) {
        (PrefixCaching::Off, _) => assert_eq!(num_matched, 0),
        (PrefixCaching::On, BlockHashing::Chained) if !model.has_evicted => {
            assert_eq!(num_matched, longest, "a match is missed");
        }
        (PrefixCaching::On, _) => assert!(num_matched <= longest),
    }
    let num_available = kv.num_available_blocks();
    let start = SequenceStart { namespace, ..SequenceStart::default() };
    let table = kv.start(&found, start, &mut Vec::new());
    let num_touched = num_available - kv.num_available_blocks();
    assert!(num_touched <= found.num_blocks());
    model.check_match(namespace, &tokens, &table);
    model.sequences.push(ModelSequence { namespace, tokens, table });
}

/// Computes some of a sequence's tokens, or generates one when all are computed.
fn compute(random: &mut Random, kv: &mut KvManager, model: &mut ManagerModel, i: usize) {
    let sequence = &mut model.sequences[i];
    let num_computed = sequence.table.num_computed_tokens();
    let mut num_pending = u32::try_from(sequence.tokens.len()).unwrap() - num_computed;
    if num_pending == 0 {
        sequence.tokens.push(random.below(2));
        num_pending = 1;
    }
    let target = num_computed + 1 + random.below(num_pending);
    let num_before = sequence.table.blocks().len();
    let counts = kv.stats();
    let obtainable = kv.num_obtainable_slots(&sequence.table);
    let obtained = kv.allocate(&mut sequence.table, target, &mut Vec::new());
    assert_eq!(obtained.is_ok(), target - num_computed <= obtainable);
    let fresh = &sequence.table.blocks()[num_before..];
    if obtained.is_err() {
        assert!(fresh.is_empty() && kv.stats() == counts, "a failed allocation changes something");
        return;
    }
    model.has_evicted |= kv.stats().num_cached_blocks < counts.num_cached_blocks;
    for block in fresh {
        model.contents[block.index()] = None;
    }
    let computed = &sequence.tokens[..target as usize];
    kv.mark_computed(&mut sequence.table, computed);
    for (block, end) in sequence.table.blocks().iter().zip((model.size..).step_by(model.size)) {
        if end <= computed.len() {
            let content = Some((sequence.namespace, computed[..end].to_vec()));
            let old = &mut model.contents[block.index()];
            assert!(old.is_none() || *old == content, "a full block was overwritten");
            *old = content;
        }
    }
}

fn run_manager(seed: u64, config: KvConfig) -> u64 {
    let mut random = Random::new(seed);
    let mut kv = KvManager::new(config);
    let mut model = ManagerModel {
        size: config.block_size.tokens() as usize,
        contents: vec![None; config.num_blocks as usize],
        sequences: Vec::new(),
        has_evicted: false,
    };
    let mut num_hit_tokens = 0;
    for _ in 0..NUM_OPERATIONS {
        match random.below(6) {
            0 => {
                admit(&mut random, &mut kv, &mut model, config);
                let newest = model.sequences.last().unwrap();
                num_hit_tokens += u64::from(newest.table.num_computed_tokens());
            }
            1 => {
                let Some(i) = random.index_of(&model.sequences) else { continue };
                kv.free(model.sequences.swap_remove(i).table);
            }
            _ => {
                let Some(i) = random.index_of(&model.sequences) else { continue };
                compute(&mut random, &mut kv, &mut model, i);
            }
        }
        let tables: Vec<_> = model.sequences.iter().map(|sequence| &sequence.table).collect();
        kv.check_invariants(&tables);
    }
    for sequence in model.sequences {
        kv.free(sequence.table);
    }
    kv.check_invariants(&[]);
    assert_eq!(kv.num_available_blocks(), config.num_blocks, "blocks leak");
    num_hit_tokens
}

fn config(seed: u64, prefix_caching: PrefixCaching, block_hashing: BlockHashing) -> KvConfig {
    let num_blocks = 6 + Random::new(seed).below(30);
    let block_size = BlockSize::new(8).unwrap();
    KvConfig {
        block_size,
        num_blocks,
        prefix_caching,
        block_hashing,
        window: None,
        content_hash: None,
    }
}

#[test]
fn a_match_only_names_blocks_that_hold_exactly_the_prefix() {
    for_every_seed(|seed| {
        let config = config(seed, PrefixCaching::On, BlockHashing::Chained);
        assert!(run_manager(seed, config) > 0, "no prefix was ever shared");
    });
}

#[test]
fn colliding_hashes_never_serve_the_kv_of_other_tokens() {
    for_every_seed(|seed| {
        run_manager(seed, config(seed, PrefixCaching::On, BlockHashing::AllEqual));
    });
}

#[test]
fn without_prefix_caching_nothing_is_kept() {
    for_every_seed(|seed| {
        let config = config(seed, PrefixCaching::Off, BlockHashing::Chained);
        assert_eq!(run_manager(seed, config), 0);
    });
}
