//! Times one layer's attention for each stored form of KV, beside what the machine can do at most.
//!
//! Arguments: query heads, KV heads, dimensions of a head, tokens of context, threads; by default
//! those of SmolLM2-135M, 8,000 tokens and all processors; then the stored forms, by default all.
//! Each line is the median of a pass over all layers, so that keys and values come from memory as
//! they do in a model, divided by the number of layers. Decode is bound by reading memory and
//! prefill by f32 arithmetic, so the last column is a share of that limit.

#![allow(clippy::print_stdout, reason = "an example prints")]

use mini_infer_core::{Batch, BlockId, BlockSize};
use mini_infer_kernels::{
    AttentionShape, Isa, KvDtype, KvLayout, KvStorage, MachineLimits, SlidingPattern, ThreadPool,
    attention, store_kv,
};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

const NUM_LAYERS: usize = 30;
/// Tokens of a prefill chunk.
const CHUNK: usize = 512;
/// How long one kind of step is repeated.
const TIME_PER_STEP: Duration = Duration::from_millis(600);

/// What is the same for all lines.
struct Bench {
    isa: Isa,
    pool: ThreadPool,
    limits: MachineLimits,
    shape: AttentionShape,
    /// Rows `[queries, keys, values]`, as many as a chunk has.
    rows: Vec<f32>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |i: usize, default| {
        arguments.get(i).and_then(|argument| argument.parse().ok()).unwrap_or(default)
    };
    let shape = AttentionShape {
        num_heads: argument(0, 9),
        num_kv_heads: argument(1, 3),
        head_dim: argument(2, 64),
        scale: 0.125,
        window: None,
        soft_cap: None,
    };
    let context = argument(3, 8000);
    let available = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = NonZeroUsize::new(argument(4, available)).expect("at least one thread");
    let isa = Isa::from_env().expect("an instruction set of this processor");
    let limits = MachineLimits::measure(threads).expect("memory for a buffer");
    println!("{shape:?}, {threads} threads, {}", isa.name());
    let width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    let mut state = 1_u32;
    let mut number = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    let rows = (0..CHUNK * width).map(|_| number()).collect();
    let bench = Bench { isa, pool: ThreadPool::new(threads), limits, shape, rows };
    for dtype in [KvDtype::F32, KvDtype::Bf16, KvDtype::F16, KvDtype::Int8] {
        if arguments.len() < 6 || arguments[5..].iter().any(|name| name == dtype.name()) {
            bench.time(dtype, context);
        }
    }
}

impl Bench {
    /// Times all kinds of steps with one stored form.
    fn time(&self, dtype: KvDtype, context: usize) {
        let layout = KvLayout {
            num_layers: NUM_LAYERS,
            num_kv_heads: self.shape.num_kv_heads,
            head_dim: self.shape.head_dim,
            block_size: BlockSize::DEFAULT,
            dtype,
            sliding: SlidingPattern::None,
        };
        let steps = [
            (16, 1, 300_usize.min(context)),
            (1, 1, 300_usize.min(context)),
            (1, 1, context),
            (1, CHUNK, 0),
            (1, CHUNK, context.saturating_sub(CHUNK)),
        ];
        let tokens = |(num_seqs, num_tokens, before): (usize, usize, usize)| {
            num_seqs * (num_tokens + before).next_multiple_of(16)
        };
        let num_tokens = steps.iter().map(|step| tokens(*step)).max().expect("several steps");
        let num_blocks = BlockSize::DEFAULT.blocks_for(number(num_tokens + CHUNK));
        let mut storage = KvStorage::reserve(layout, num_blocks).expect("enough address space");
        self.store(&mut storage, num_tokens);
        for (num_seqs, num_tokens, before) in steps {
            let time = self.median(&storage, &batch(num_seqs, num_tokens, before));
            self.print(&layout, [num_seqs, num_tokens, before], time);
        }
    }

    /// Fills the blocks of `num_tokens` tokens and prints how long a chunk takes.
    fn store(&self, storage: &mut KvStorage, num_tokens: usize) {
        let first_key = self.shape.num_heads * self.shape.head_dim;
        let width = self.rows.len() / CHUNK;
        let mut times = Vec::new();
        for start in (0..num_tokens).step_by(CHUNK) {
            let slots = batch(1, CHUNK, start).slot_mapping;
            let started = Instant::now();
            for layer in 0..NUM_LAYERS {
                let (rows, pool) = (&self.rows, &self.pool);
                store_kv(self.isa, pool, storage, layer, &slots, rows, width, first_key);
            }
            times.push(started.elapsed() / 30);
        }
        times.sort_unstable();
        let name = storage.layout().dtype.name();
        println!("{name:>4}: storing {CHUNK}          {:9.1?}", times[times.len() / 2]);
    }

    /// Returns the median time of a layer.
    fn median(&self, storage: &KvStorage, batch: &Batch) -> Duration {
        let width = self.rows.len() / CHUNK;
        let rows = &self.rows[..batch.num_tokens() * width];
        let mut out = vec![0.0; batch.num_tokens() * self.shape.num_heads * self.shape.head_dim];
        let (isa, pool, shape) = (self.isa, &self.pool, &self.shape);
        let mut times = Vec::new();
        let begin = Instant::now();
        while times.len() < 2 || begin.elapsed() < TIME_PER_STEP {
            let started = Instant::now();
            let num_layers = if batch.num_tokens() < CHUNK { NUM_LAYERS } else { 4 };
            for layer in 0..num_layers {
                attention(isa, pool, shape, rows, width, layer, None, batch, storage, &mut out);
            }
            times.push(started.elapsed() / u32::try_from(num_layers).expect("few layers"));
        }
        times.sort_unstable();
        times[times.len() / 2]
    }

    fn print(&self, layout: &KvLayout, [num_seqs, num_tokens, before]: [usize; 3], time: Duration) {
        let seen: usize = (before + 1..=before + num_tokens).sum();
        let operations = 4 * num_seqs * seen * self.shape.num_heads * self.shape.head_dim;
        let bytes = num_seqs * (before + num_tokens) * layout.token_bytes() / NUM_LAYERS;
        let [operations, bytes] =
            [operations, bytes].map(|amount| amount as f64 / time.as_secs_f64() / 1e9);
        let f32_limit = self.limits.arithmetic.iter().find(|limits| limits.isa == self.isa);
        let f32_limit = f32_limit.expect("a set that is present").f32_per_s.all_threads / 1e9;
        let share = if num_tokens == 1 {
            bytes / (self.limits.read_bytes_per_s.all_threads / 1e9)
        } else {
            operations / f32_limit
        };
        let name = layout.dtype.name();
        println!(
            "{name:>4}: {num_seqs:2} x {num_tokens:3} after {before:4} {time:9.1?} \
             {bytes:6.1} GB/s {operations:6.1} GFLOP/s, {:3.0} % of the limit",
            100.0 * share
        );
    }
}

/// Returns a step; each sequence has its own blocks, one after the other.
fn batch(num_seqs: usize, num_tokens: usize, before: usize) -> Batch {
    let block_size = BlockSize::DEFAULT;
    let num_blocks = block_size.blocks_for(number(before + num_tokens));
    let mut batch = Batch::default();
    for seq in 0..number(num_seqs) {
        let table: Vec<_> = (seq * num_blocks..(seq + 1) * num_blocks).map(BlockId).collect();
        batch.push_sequence(&vec![0; num_tokens], number(before), &table, block_size, false);
    }
    batch
}

fn number(number: usize) -> u32 {
    u32::try_from(number).expect("a pool that fits memory")
}
