//! Perplexity beside llama.cpp where layers see a window of tokens only, on contexts of twice that.

use crate::model::{FIXED_TEXT, all_cores, model_file, tokenizer};
use mini_infer_core::{Batch, BlockId, BlockSize, Executor};
use mini_infer_kernels::{Isa, KvDtype, KvLayout, KvStorage, SlidingPattern};
use mini_infer_model::ops::cpu::CpuOps;
use mini_infer_model::{Checkpoint, ModelExecutor, Transformer};
use std::num::NonZeroUsize;

/// Tokens of a chunk of the text: each is computed by itself from position 0.
const CONTEXT: usize = 1024;
/// What `llama-perplexity` (b11434) prints for this model and the fixed text with `-c 1024`; see
/// `docs/benchmarking.md`.
const LLAMA_CPP_PERPLEXITY: f64 = 25.4769;
/// Tokens of a step, whose logits are held at once.
const STEP: usize = 128;
/// Blocks of the default size that hold a chunk.
const NUM_BLOCKS: u32 = 64;

#[test]
fn a_model_with_sliding_windows_is_as_good_as_by_llama_cpp_beyond_its_window() {
    let _cores = all_cores();
    let checkpoint = Checkpoint::open(&model_file("gemma3-270m")).unwrap();
    let config = checkpoint.config();
    let sliding = config.sliding.as_ref().expect("Gemma 3 has sliding windows");
    assert_eq!(sliding.window, CONTEXT / 2);
    let layout = KvLayout {
        num_layers: config.num_layers,
        num_kv_heads: config.attention.num_kv_heads,
        head_dim: config.attention.head_dim,
        block_size: BlockSize::DEFAULT,
        dtype: KvDtype::F16,
        sliding: SlidingPattern::AllButEvery(sliding.full_every),
    };
    let ops = CpuOps::new(Isa::from_env().unwrap(), NonZeroUsize::new(2).unwrap());
    let transformer = Transformer::load(&checkpoint, ops, CONTEXT).unwrap();
    let kv = KvStorage::reserve(layout, NUM_BLOCKS).unwrap();
    let mut executor = ModelExecutor::new(transformer, kv);
    let tokenizer = tokenizer(&checkpoint);
    let bos = tokenizer.bos().expect("Gemma's vocabulary has a beginning");
    let mut tokens = vec![bos];
    tokens.extend(tokenizer.encode_text(FIXED_TEXT).unwrap());
    let (mut loss, mut num_judged) = (0.0, 0);
    for chunk in tokens.chunks_exact(CONTEXT) {
        // Each begins as a text does.
        let chunk = [&[bos], &chunk[1..]].concat();
        for start in (0..CONTEXT).step_by(STEP) {
            let logits = step(&mut executor, &chunk, start);
            let rows = logits.chunks_exact(executor.vocab_size()).zip(start..);
            for (row, position) in rows.filter(|(_, position)| *position >= CONTEXT / 2) {
                if let Some(next) = chunk.get(position + 1) {
                    loss += surprise(row, *next);
                    num_judged += 1;
                }
            }
        }
    }
    let perplexity = (loss / f64::from(num_judged)).exp();
    println!("{num_judged} tokens, perplexity {perplexity:.4}, llama.cpp's {LLAMA_CPP_PERPLEXITY}");
    assert_eq!(num_judged, 2 * 511);
    assert!((perplexity / LLAMA_CPP_PERPLEXITY - 1.0).abs() < 0.01, "{perplexity}");
}

/// Computes the tokens from `start` on and returns the logits of all their rows.
fn step(executor: &mut ModelExecutor<CpuOps>, chunk: &[u32], start: usize) -> Vec<f32> {
    let table: Vec<_> = (0..NUM_BLOCKS).map(BlockId).collect();
    let mut batch = Batch::default();
    let position = u32::try_from(start).unwrap();
    let tokens = &chunk[start..start + STEP];
    batch.push_sequence(tokens, position, &table, BlockSize::DEFAULT, false);
    batch.logits_rows = (0..u32::try_from(STEP).unwrap()).collect();
    let mut logits = Vec::new();
    executor.forward(&batch, &mut logits).unwrap();
    logits
}

/// Returns minus the log probability of a token.
fn surprise(logits: &[f32], token: u32) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    largest + sum.ln() - f64::from(logits[token as usize])
}
