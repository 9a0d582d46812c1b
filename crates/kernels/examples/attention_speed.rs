//! Times one layer's attention for each stored form of KV: a decode step and a prefill chunk.
//!
//! Arguments: query heads, KV heads, dimensions of a head, tokens of context, threads; by default
//! those of SmolLM2-135M, 2,048 tokens and one thread. Prints the median over many runs; decode
//! cycles over layers, so that keys and values come from memory as they do in a model.

#![allow(clippy::print_stdout, reason = "an example prints")]

use mini_infer_core::{Batch, BlockId, BlockSize};
use mini_infer_kernels::{
    AttentionShape, Isa, KvDtype, KvLayout, KvStorage, SlidingPattern, ThreadPool, attention,
    store_kv,
};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

const NUM_LAYERS: usize = 30;
const CHUNK: usize = 256;

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let argument = |i: usize, default| given.get(i).copied().unwrap_or(default);
    let shape = AttentionShape {
        num_heads: argument(0, 9),
        num_kv_heads: argument(1, 3),
        head_dim: argument(2, 64),
        scale: 0.125,
        window: None,
    };
    let num_tokens = argument(3, 2048);
    let num_threads = NonZeroUsize::new(argument(4, 1)).expect("at least one thread");
    let isa = Isa::from_env().expect("an instruction set of this processor");
    println!("{shape:?}, {num_tokens} tokens, {num_threads} threads, {}", isa.name());
    let pool = ThreadPool::new(num_threads);
    for dtype in [KvDtype::F32, KvDtype::Bf16, KvDtype::F16, KvDtype::Int8] {
        time(isa, &pool, shape, num_tokens, dtype);
    }
}

/// Fills the context in chunks and then times steps of one token.
fn time(isa: Isa, pool: &ThreadPool, shape: AttentionShape, num_tokens: usize, dtype: KvDtype) {
    let block_size = BlockSize::DEFAULT;
    let layout = KvLayout {
        num_layers: NUM_LAYERS,
        num_kv_heads: shape.num_kv_heads,
        head_dim: shape.head_dim,
        block_size,
        dtype,
        sliding: SlidingPattern::None,
    };
    let num_blocks = block_size.blocks_for(u32::try_from(num_tokens).expect("a context") + 1);
    let mut storage = KvStorage::reserve(layout, num_blocks).expect("enough address space");
    let table: Vec<_> = (0..num_blocks).map(BlockId).collect();
    let queries_width = shape.num_heads * shape.head_dim;
    let width = queries_width + 2 * shape.num_kv_heads * shape.head_dim;
    let mut state = 1_u32;
    let rows: Vec<f32> = (0..CHUNK * width)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect();
    let (mut store_times, mut prefill_times, mut decode_times) = (vec![], vec![], vec![]);
    let mut out = vec![0.0; CHUNK * queries_width];
    let mut step = |start: usize, len: usize, layer: usize| {
        let mut batch = Batch::default();
        let position = u32::try_from(start).expect("a context");
        batch.push_sequence(&vec![0; len], position, &table, block_size, false);
        let (rows, out) = (&rows[..len * width], &mut out[..len * queries_width]);
        let begin = Instant::now();
        store_kv(isa, pool, &mut storage, layer, &batch.slot_mapping, rows, width, queries_width);
        let stored = Instant::now();
        attention(isa, pool, &shape, rows, width, layer, None, &batch, &storage, out);
        (stored - begin, stored.elapsed())
    };
    for layer in 0..NUM_LAYERS {
        for start in (0..num_tokens / CHUNK * CHUNK).step_by(CHUNK) {
            let (store, attend) = step(start, CHUNK, layer);
            store_times.push(store);
            if start + CHUNK == num_tokens / CHUNK * CHUNK {
                prefill_times.push(attend);
            }
        }
    }
    for i in 0..40 * NUM_LAYERS {
        decode_times.push(step(num_tokens, 1, i % NUM_LAYERS).1);
    }
    println!(
        "{:>4}: decode {:>8.1?}, last chunk of {CHUNK} {:>8.2?}, storing it {:>8.1?}",
        dtype.name(),
        median(&mut decode_times),
        median(&mut prefill_times),
        median(&mut store_times),
    );
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
