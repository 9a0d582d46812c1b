//! Shows where the time of a step goes: milliseconds, share and rate of each operation.
//!
//! `step_profile FILE.gguf [STEP…]`, where a step is `prefill:TOKENS[:CONTEXT]` (a chunk after so
//! much context) or `decode:SEQUENCES:CONTEXT`. `THREADS` and `KV` (f32, f16, bf16 or int8) in the
//! environment choose the threads, by default all, and the stored form of KV, by default f16.

#![allow(clippy::print_stdout, reason = "an example prints")]

mod timed_ops;

use mini_infer_core::{Batch, BlockId, BlockSize};
use mini_infer_kernels::{Isa, KvDtype, KvLayout, KvStorage, SlidingPattern};
use mini_infer_model::ops::cpu::{CpuOps, StoredKeys};
use mini_infer_model::{Checkpoint, Transformer};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};
use timed_ops::{Entry, Kind, TimedOps, Times};

/// How long a step is repeated.
const TIME_PER_STEP: Duration = Duration::from_secs(2);
/// Repetitions at least.
const LEAST_STEPS: usize = 5;
/// Tokens that are really computed to fill the KV; the blocks of the rest are copies.
const FILLED_TOKENS: usize = 256;

/// What a step computes.
#[derive(Clone, Copy, Debug)]
struct Step {
    num_seqs: usize,
    /// Tokens of each sequence in the step.
    num_tokens: usize,
    /// Tokens of each sequence before the step.
    context: usize,
}

impl Step {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let kind = parts.next()?;
        let numbers: Vec<usize> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
        match (kind, &numbers[..]) {
            ("prefill", [num_tokens]) => {
                Some(Self { num_seqs: 1, num_tokens: *num_tokens, context: 0 })
            }
            ("prefill", [num_tokens, context]) => {
                Some(Self { num_seqs: 1, num_tokens: *num_tokens, context: *context })
            }
            ("decode", [num_seqs, context]) => {
                Some(Self { num_seqs: *num_seqs, num_tokens: 1, context: *context })
            }
            _ => None,
        }
    }

    fn len(self) -> usize {
        self.context + self.num_tokens
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().expect("usage: step_profile FILE.gguf [STEP…]");
    let mut steps: Vec<String> = arguments.collect();
    if steps.is_empty() {
        steps = ["prefill:512", "decode:1:300", "decode:16:300"].map(str::to_owned).to_vec();
    }
    let available = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = std::env::var("THREADS").ok().and_then(|threads| threads.parse().ok());
    let threads = threads.unwrap_or(available);
    let dtype = match std::env::var("KV").as_deref() {
        Ok("f32") => KvDtype::F32,
        Ok("bf16") => KvDtype::Bf16,
        Ok("int8") => KvDtype::Int8,
        _ => KvDtype::F16,
    };
    let isa = Isa::from_env().expect("an instruction set of this processor");
    let checkpoint = Checkpoint::open(Path::new(&file)).expect("a readable checkpoint");
    println!("{file}, {threads} threads, {}, {} KV", isa.name(), dtype.name());
    for text in &steps {
        let step = Step::parse(text).expect("prefill:TOKENS[:CONTEXT] or decode:SEQUENCES:CONTEXT");
        println!("\n{text}");
        profile(&checkpoint, step, isa, threads, dtype);
    }
}

/// Runs one kind of step again and again and prints its profile.
fn profile(checkpoint: &Checkpoint, step: Step, isa: Isa, threads: NonZeroUsize, dtype: KvDtype) {
    let times = Times::default();
    let stored_keys = match dtype {
        KvDtype::Int8 => StoredKeys::WithoutLargeBiases,
        KvDtype::F32 | KvDtype::F16 | KvDtype::Bf16 => StoredKeys::Whole,
    };
    let ops = CpuOps::new(isa, threads).with_stored_keys(stored_keys);
    let ops = TimedOps::new(ops, Times::clone(&times));
    let max_len = step.len().max(FILLED_TOKENS).next_multiple_of(16);
    let mut model = Transformer::load(checkpoint, ops, max_len).expect("a model that is supported");
    let block_tokens = BlockSize::DEFAULT.tokens() as usize;
    let blocks_per_seq = max_len / block_tokens;
    let mut kv = storage(checkpoint, dtype, step.num_seqs * blocks_per_seq);
    let mut logits = Vec::new();
    let filling = Step { num_seqs: 1, num_tokens: FILLED_TOKENS, context: 0 };
    model.forward(&batch(filling, blocks_per_seq), &mut kv, &mut logits);
    for block in FILLED_TOKENS / block_tokens..step.num_seqs * blocks_per_seq {
        kv.copy_block(block_id(block % (FILLED_TOKENS / block_tokens)), block_id(block));
    }
    let batch = batch(step, blocks_per_seq);
    model.forward(&batch, &mut kv, &mut logits);
    times.borrow_mut().clear();
    let mut durations = Vec::new();
    let started = Instant::now();
    while durations.len() < LEAST_STEPS || started.elapsed() < TIME_PER_STEP {
        let step_started = Instant::now();
        model.forward(&batch, &mut kv, &mut logits);
        durations.push(step_started.elapsed());
    }
    print_profile(step, checkpoint.config().vocab_size, &mut durations, &times.borrow());
}

fn print_profile(step: Step, vocab_size: usize, durations: &mut [Duration], entries: &[Entry]) {
    durations.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let num_tokens = (step.num_seqs * step.num_tokens) as f64;
    let (best, median) = (durations[0], durations[durations.len() / 2]);
    let rate = num_tokens / median.as_secs_f64();
    println!("median {:.3} ms, best {:.3} ms, {rate:.0} tokens/s", ms(median), ms(best));
    let total: Duration = durations.iter().sum();
    let num_steps = durations.len() as f64;
    let print = |name: &str, time: Duration, note: &str| {
        let share = 100.0 * time.as_secs_f64() / total.as_secs_f64();
        println!("  {name:24} {:9.3} ms {share:5.1} % {note}", ms(time) / num_steps);
    };
    for entry in entries {
        match entry.kind {
            Kind::Named(name) => print(name, entry.time, ""),
            Kind::Product(product) => {
                let name = format!("product {} x {}", product.out_features, product.in_features);
                // Logits are computed for one row of each sequence.
                let is_head = product.out_features == vocab_size;
                let rows = if is_head { step.num_seqs as f64 } else { num_tokens };
                let per_call = entry.time.as_secs_f64() / f64::from(entry.num_calls) * 1e9;
                let weights = (product.in_features * product.out_features) as f64;
                let operations = 2.0 * rows * weights / per_call;
                let bytes = product.num_bytes as f64 / per_call;
                print(&name, entry.time, &format!("{operations:7.1} Gop/s {bytes:6.2} GB/s"));
            }
        }
    }
    let counted: Duration = entries.iter().map(|entry| entry.time).sum();
    print("between operations", total.saturating_sub(counted), "");
}

fn storage(checkpoint: &Checkpoint, dtype: KvDtype, num_blocks: usize) -> KvStorage {
    let config = checkpoint.config();
    let layout = KvLayout {
        num_layers: config.num_layers,
        num_kv_heads: config.attention.num_kv_heads,
        head_dim: config.attention.head_dim,
        block_size: BlockSize::DEFAULT,
        dtype,
        sliding: SlidingPattern::None,
    };
    let num_blocks = u32::try_from(num_blocks).expect("a pool that fits memory");
    KvStorage::reserve(layout, num_blocks).expect("memory for the KV")
}

/// Returns the batch of a step; each sequence has its own blocks, one after the other.
fn batch(step: Step, blocks_per_seq: usize) -> Batch {
    let mut batch = Batch::default();
    for seq in 0..step.num_seqs {
        let tokens: Vec<u32> = (0..step.num_tokens)
            .map(|i| u32::try_from((seq * 7919 + i * 104_729) % 30_000).unwrap_or(0))
            .collect();
        let table: Vec<BlockId> =
            (0..blocks_per_seq).map(|block| block_id(seq * blocks_per_seq + block)).collect();
        let start = u32::try_from(step.context).expect("a context that fits");
        batch.push_sequence(&tokens, start, &table, BlockSize::DEFAULT, true);
    }
    batch
}

fn block_id(index: usize) -> BlockId {
    BlockId(u32::try_from(index).expect("a pool that fits memory"))
}
