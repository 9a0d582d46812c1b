//! Measures the bookkeeping of paged KV memory on one core.
//!
//! Prints operations per second in a small and in a large pool that is full of cached blocks, so
//! that every new block evicts one: no cost may grow with the pool. An operation is one token
//! appended (`allocate` and `mark_computed`), or one block allocated, matched, forked or freed.
//!
//! `cargo run --release -p mini-infer-kv --example pool_operations`

#![expect(clippy::print_stdout, reason = "an example prints what it measures")]

use mini_infer_core::{BlockSize, KvTransfer, Namespace, PrefixCaching, TokenId, mix64};
use mini_infer_kv::{
    BlockHashing, BlockTable, KvConfig, KvManager, KvMemory, PrefixMatch, SequenceStart,
};
use std::hint::black_box;
use std::time::{Duration, Instant};

const BLOCK_SIZE: BlockSize = BlockSize::DEFAULT;
/// Sequences that run side by side.
const NUM_SEQS: usize = 32;
/// Time that each figure takes at least.
const MEASURED: Duration = Duration::from_millis(500);

fn main() {
    println!("millions of operations a second, and ns for one:");
    println!("{:<28}{:>22}{:>22}", "", "1,024 blocks", "1,048,576 blocks");
    let figures: [(&str, Measure); 7] = [
        ("append a token", append),
        ("allocate a block", allocate),
        ("free a block", free),
        ("fork, for each block", fork),
        ("match, for each block", find),
        ("match among 500 siblings", find_among_siblings),
        ("mix", mix),
    ];
    // One can be asked for by name, for a profiler.
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for (name, measure) in figures.into_iter().filter(|(name, _)| name.contains(&wanted)) {
        let rates = [1 << 10, 1 << 20].map(|num_blocks| rate(num_blocks, measure));
        let columns = rates.map(|rate| format!("{:.1} ({:.1} ns)", rate / 1e6, 1e9 / rate));
        println!("{name:<28}{:>22}{:>22}", columns[0], columns[1]);
    }
    if !wanted.is_empty() {
        return;
    }
    println!("match a prompt of 100,000 cached tokens in the large pool, its blocks");
    for (name, spread) in [("in a row", 1), ("between those of 31 others", NUM_SEQS)] {
        let [cold, warm] = find_long_prompt(spread);
        println!("{name:<28}{cold:>16.1?} cold{warm:>16.1?} warm");
    }
}

/// Does some operations and returns how many.
type Measure = fn(&mut Pool) -> u64;

/// KV memory and what is needed to use it.
struct Pool {
    kv: KvManager,
    found: PrefixMatch,
    transfers: Vec<KvTransfer>,
    /// Numbers that make tokens nobody has had.
    next_token: u64,
    /// Time that counts.
    spent: Duration,
}

impl Pool {
    /// Creates a pool full of cached blocks.
    fn full(num_blocks: u32) -> Self {
        let config = KvConfig {
            block_size: BLOCK_SIZE,
            num_blocks,
            prefix_caching: PrefixCaching::On,
            block_hashing: BlockHashing::Chained,
            window: None,
            content_hash: None,
        };
        let mut pool = Self {
            kv: KvManager::new(config),
            found: PrefixMatch::default(),
            transfers: Vec::new(),
            next_token: 0,
            spent: Duration::ZERO,
        };
        while pool.kv.stats().num_free_blocks > 0 {
            let tokens = pool.fresh_tokens(64 * 16);
            let table = pool.compute(&tokens);
            pool.kv.free(table);
        }
        pool
    }

    fn fresh_tokens(&mut self, num: usize) -> Vec<TokenId> {
        let tokens = (0..num as u64).map(|i| token(self.next_token + i));
        let tokens = tokens.collect();
        self.next_token += num as u64;
        tokens
    }

    /// Starts a sequence with what is cached and computes the rest at once.
    fn compute(&mut self, tokens: &[TokenId]) -> BlockTable {
        self.kv.match_prefix(Namespace::default(), tokens, &mut self.found);
        self.transfers.clear();
        let start = SequenceStart::default();
        let mut table = self.kv.start(&self.found, start, &mut self.transfers);
        self.extend(&mut table, tokens);
        table
    }

    fn extend(&mut self, table: &mut BlockTable, tokens: &[TokenId]) {
        let num_tokens = u32::try_from(tokens.len()).expect("a short sequence");
        let obtained = self.kv.allocate(table, num_tokens, &mut self.transfers);
        obtained.expect("the pool holds all running sequences");
        self.kv.mark_computed(table, tokens);
    }

    /// Runs something whose time counts.
    fn timed<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let started = now();
        let result = work(self);
        self.spent += started.elapsed();
        result
    }
}

/// Returns operations per second, the median over many rounds of `measure`: a round that the system
/// interrupts does not count.
fn rate(num_blocks: u32, measure: Measure) -> f64 {
    let mut pool = Pool::full(num_blocks);
    let mut rates = Vec::new();
    let mut total = Duration::ZERO;
    while total < MEASURED {
        pool.spent = Duration::ZERO;
        let num_operations = measure(&mut pool);
        rates.push(num_operations as f64 / pool.spent.as_secs_f64());
        total += pool.spent;
        pool.transfers.clear();
    }
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Sequences grow by one token each in turn, as in decode.
fn append(pool: &mut Pool) -> u64 {
    const NUM_TOKENS: usize = 256;
    let rows: Vec<_> = (0..NUM_SEQS).map(|_| pool.fresh_tokens(NUM_TOKENS)).collect();
    let mut tables: Vec<_> = rows.iter().map(|row| pool.compute(&row[..1])).collect();
    pool.timed(|pool| {
        for end in 2..=NUM_TOKENS {
            for (table, row) in tables.iter_mut().zip(&rows) {
                pool.extend(table, &row[..end]);
            }
        }
    });
    tables.into_iter().for_each(|table| pool.kv.free(table));
    (NUM_SEQS * (NUM_TOKENS - 1)) as u64
}

/// Sequences get all the blocks of a prompt at once, and fill none.
fn allocate(pool: &mut Pool) -> u64 {
    const NUM_BLOCKS: u32 = 24;
    pool.found.reset(Namespace::default());
    let start = SequenceStart::default();
    let mut tables: Vec<_> =
        (0..NUM_SEQS).map(|_| pool.kv.start(&pool.found, start, &mut pool.transfers)).collect();
    pool.timed(|pool| {
        for table in &mut tables {
            let obtained = pool.kv.allocate(table, NUM_BLOCKS * 16, &mut pool.transfers);
            obtained.expect("the pool holds all running sequences");
        }
    });
    tables.into_iter().for_each(|table| pool.kv.free(table));
    NUM_SEQS as u64 * u64::from(NUM_BLOCKS)
}

/// Sequences end whose blocks are kept.
fn free(pool: &mut Pool) -> u64 {
    let rows: Vec<_> = (0..NUM_SEQS).map(|_| pool.fresh_tokens(24 * 16)).collect();
    let tables: Vec<_> = rows.iter().map(|row| pool.compute(row)).collect();
    pool.timed(|pool| tables.into_iter().for_each(|table| pool.kv.free(table)));
    NUM_SEQS as u64 * 24
}

/// A sequence is forked, and its forks end.
fn fork(pool: &mut Pool) -> u64 {
    let tokens = pool.fresh_tokens(24 * 16 + 8);
    let table = pool.compute(&tokens);
    let mut forks = Vec::with_capacity(NUM_SEQS);
    pool.timed(|pool| {
        for _ in 0..NUM_SEQS {
            forks.push(pool.kv.fork(&table).expect("paged memory shares"));
        }
    });
    forks.into_iter().chain([table]).for_each(|table| pool.kv.free(table));
    NUM_SEQS as u64 * 25
}

/// Prompts of some length are looked up that are cached.
fn find(pool: &mut Pool) -> u64 {
    let rows: Vec<_> = (0..NUM_SEQS).map(|_| pool.fresh_tokens(24 * 16 + 1)).collect();
    for row in &rows {
        let table = pool.compute(row);
        pool.kv.free(table);
    }
    pool.timed(|pool| {
        for row in &rows {
            pool.kv.match_prefix(Namespace::default(), row, &mut pool.found);
            assert_eq!(black_box(&pool.found).num_blocks(), 24);
        }
    });
    NUM_SEQS as u64 * 24
}

/// Prompts of one block each are looked up that part in their last token.
fn find_among_siblings(pool: &mut Pool) -> u64 {
    let mut rows = Vec::new();
    let shared = pool.fresh_tokens(15);
    for _ in 0..500 {
        let row = [&shared[..], &pool.fresh_tokens(2)].concat();
        let table = pool.compute(&row[..16]);
        pool.kv.free(table);
        rows.push(row);
    }
    pool.timed(|pool| {
        for row in &rows {
            pool.kv.match_prefix(Namespace::default(), row, &mut pool.found);
            assert_eq!(black_box(&pool.found).num_blocks(), 1);
        }
    });
    rows.len() as u64
}

/// Requests that share a system prompt: each looks it up, computes its own prompt, has its answer
/// token by token, is forked in the middle, and ends.
fn mix(pool: &mut Pool) -> u64 {
    const NUM_SYSTEM: usize = 8 * 16;
    const NUM_PROMPT: usize = NUM_SYSTEM + 5 * 16 + 7;
    const NUM_TOKENS: usize = NUM_PROMPT + 100;
    let system = pool.fresh_tokens(NUM_SYSTEM);
    let own: Vec<_> = (0..NUM_SEQS)
        .map(|_| [&system[..], &pool.fresh_tokens(NUM_TOKENS - NUM_SYSTEM)].concat())
        .collect();
    let mut num_operations = 0;
    pool.timed(|pool| {
        let mut tables: Vec<BlockTable> = Vec::with_capacity(NUM_SEQS + 1);
        for row in &own {
            let table = pool.compute(&row[..NUM_PROMPT]);
            // Each block is either matched or allocated.
            num_operations += table.blocks().len();
            tables.push(table);
        }
        for end in NUM_PROMPT + 1..=NUM_TOKENS {
            for (table, row) in tables.iter_mut().zip(&own) {
                pool.extend(table, &row[..end]);
            }
            num_operations += NUM_SEQS;
            if end.is_multiple_of(25) {
                let fork = pool.kv.fork(&tables[0]).expect("paged memory shares");
                num_operations += 2 * fork.blocks().len();
                pool.kv.free(fork);
            }
        }
        for table in tables {
            num_operations += table.blocks().len();
            pool.kv.free(table);
        }
    });
    num_operations as u64
}

/// Returns how long it takes to look up a long prompt whose neighbouring blocks are `spread` ids
/// apart: when the processor's caches hold nothing of it, and when the lookup was just done.
fn find_long_prompt(spread: usize) -> [Duration; 2] {
    const NUM_TOKENS: usize = 100_000;
    let mut pool = Pool::full(1 << 20);
    pool.kv.trim(0, &mut pool.transfers);
    // Sequences that grow side by side take turns to get blocks.
    let rows: Vec<_> = (0..spread).map(|_| pool.fresh_tokens(NUM_TOKENS)).collect();
    let mut tables: Vec<_> = rows.iter().map(|row| pool.compute(&row[..1])).collect();
    for end in (16..=NUM_TOKENS).step_by(16) {
        for (row, table) in rows.iter().zip(&mut tables) {
            pool.extend(table, &row[..end]);
        }
    }
    tables.into_iter().for_each(|table| pool.kv.free(table));
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..15 {
        // More than any cache holds.
        black_box(vec![1_u8; 256 << 20]);
        for times in &mut rounds {
            let started = now();
            pool.kv.match_prefix(Namespace::default(), &rows[0], &mut pool.found);
            times.push(started.elapsed());
            assert_eq!(black_box(&pool.found).num_tokens(), 99_999);
        }
    }
    rounds.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    })
}

/// Returns the `i`-th of all tokens that this program uses.
fn token(i: u64) -> TokenId {
    TokenId::try_from(mix64(i) % 150_000).expect("a vocabulary fits")
}

#[expect(clippy::disallowed_methods, reason = "measuring time is what this is for")]
fn now() -> Instant {
    Instant::now()
}
