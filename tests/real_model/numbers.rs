//! Quality of the fast path: against the f32 reference on the same quantised weights, and against
//! llama.cpp's perplexity on the same file and text.

use crate::bf16_copies;
use crate::model::{all_cores, checkpoint, fast_executor, fixed_tokens, kv_storage};
use mini_infer_core::{Batch, BlockId, BlockSize, Executor};
use mini_infer_kernels::{Isa, KvDtype};
use mini_infer_model::ops::cpu::CpuOps;
use mini_infer_model::ops::reference::{ReferenceKv, ReferenceOps};
use mini_infer_model::{ModelExecutor, Transformer};
use std::num::NonZeroUsize;

/// Tokens of a window: each is computed by itself from position 0, as `llama-perplexity` does.
const WINDOW: usize = 512;
/// Blocks of the default size that hold a window.
const NUM_BLOCKS: u32 = 32;
/// Rows whose logits are held at once.
const CHUNK: usize = 128;
/// What `llama-perplexity` (b11434) prints for the default model and the fixed text with `-c 512`;
/// see `docs/benchmarking.md`.
const LLAMA_CPP_PERPLEXITY: f64 = 30.0820;
/// Windows that are compared with a slow model, row by row: half of the text.
const NUM_COMPARED: usize = 2;

/// Sums over the rows of a text.
#[derive(Default)]
struct Comparison {
    num_rows: usize,
    divergence: f64,
    num_agreeing: usize,
    num_judged: usize,
    /// Summed over the second half of each window.
    loss: f64,
}

#[test]
fn the_fast_path_is_as_good_as_the_f32_reference_and_as_llama_cpp() {
    let _cores = all_cores();
    let tokens = fixed_tokens();
    assert!(tokens.len() >= 2000, "the text has {} tokens", tokens.len());
    let mut reference = {
        let transformer = Transformer::load(checkpoint(), ReferenceOps::new(2), 1024).unwrap();
        let kv = ReferenceKv::new(checkpoint().config(), NUM_BLOCKS as usize, BlockSize::DEFAULT);
        ModelExecutor::new(transformer, kv)
    };
    let isa = Isa::from_env().unwrap();
    let mut fast = [KvDtype::F16, KvDtype::Bf16, KvDtype::Int8].map(|dtype| {
        let executor = fast_executor(isa, 2, dtype, BlockSize::DEFAULT, NUM_BLOCKS);
        (dtype, executor, Comparison::default())
    });
    let mut logits = Vec::new();
    let vocab_size = reference.vocab_size();
    for (number, window) in tokens.chunks_exact(WINDOW).enumerate() {
        for start in (0..WINDOW).step_by(CHUNK) {
            let batch = chunk(window, start);
            let expected = (number < NUM_COMPARED).then(|| {
                reference.forward(&batch, &mut logits).unwrap();
                log_probability_rows(&logits, vocab_size)
            });
            for (_, executor, sums) in &mut fast {
                executor.forward(&batch, &mut logits).unwrap();
                let found = log_probability_rows(&logits, vocab_size);
                sums.judge(&found, window, start);
                if let Some(expected) = &expected {
                    sums.compare(&found, expected);
                }
            }
        }
    }
    for (dtype, _, sums) in &fast {
        println!("{}", sums.describe(dtype.name(), "the reference"));
    }
    for ((_, _, sums), least_agreement) in fast.iter().zip([0.98, 0.98, 0.975]) {
        assert!(sums.mean_divergence() < 2e-3);
        assert!(sums.agreement() > least_agreement);
        assert!((sums.perplexity() / LLAMA_CPP_PERPLEXITY - 1.0).abs() < 0.01);
    }
}

/// Everything but the stored form of KV being equal and of floats.
#[test]
fn stored_forms_of_kv_are_as_good_as_f32() {
    let _cores = all_cores();
    let tokens = fixed_tokens();
    let ops = CpuOps::new(Isa::from_env().unwrap(), NonZeroUsize::new(2).unwrap());
    let mut model = Transformer::load(&bf16_copies::gguf(), ops, 1024).unwrap();
    let vocab_size = model.config().vocab_size;
    let storage = |dtype| kv_storage(dtype, BlockSize::DEFAULT, NUM_BLOCKS);
    let mut exact_kv = storage(KvDtype::F32);
    let mut rounded: Vec<_> = [KvDtype::F16, KvDtype::Bf16, KvDtype::Int8]
        .map(|dtype| (dtype, storage(dtype), Comparison::default()))
        .into();
    let mut logits = Vec::new();
    for window in tokens.chunks_exact(WINDOW).take(NUM_COMPARED) {
        for start in (0..WINDOW).step_by(CHUNK) {
            let batch = chunk(window, start);
            model.forward(&batch, &mut exact_kv, &mut logits);
            let exact = log_probability_rows(&logits, vocab_size);
            for (_, kv, sums) in &mut rounded {
                model.forward(&batch, kv, &mut logits);
                let found = log_probability_rows(&logits, vocab_size);
                sums.judge(&found, window, start);
                sums.compare(&found, &exact);
            }
        }
    }
    for (dtype, _, sums) in &rounded {
        println!("{}", sums.describe(dtype.name(), "f32 KV"));
    }
    for (i, [most_divergence, least_agreement]) in
        [[1e-5, 0.995], [1e-4, 0.99], [1e-3, 0.98]].into_iter().enumerate()
    {
        assert!(rounded[i].2.mean_divergence() < most_divergence);
        assert!(rounded[i].2.agreement() > least_agreement);
    }
}

/// One chunk of a window with the logits of all its rows.
fn chunk(window: &[u32], start: usize) -> Batch {
    let table: Vec<_> = (0..NUM_BLOCKS).map(BlockId).collect();
    let mut batch = Batch::default();
    let tokens = &window[start..start + CHUNK];
    let position = u32::try_from(start).unwrap();
    batch.push_sequence(tokens, position, &table, BlockSize::DEFAULT, false);
    batch.logits_rows = (0..u32::try_from(CHUNK).unwrap()).collect();
    batch
}

impl Comparison {
    /// Adds the loss of a chunk's rows, where they are in the second half of their window.
    fn judge(&mut self, rows: &[Vec<f64>], window: &[u32], start: usize) {
        for (position, row) in (start..).zip(rows) {
            if position >= WINDOW / 2 && position + 1 < WINDOW {
                self.num_judged += 1;
                self.loss -= row[window[position + 1] as usize];
            }
        }
    }

    fn compare(&mut self, found: &[Vec<f64>], expected: &[Vec<f64>]) {
        for (q, p) in found.iter().zip(expected) {
            self.num_rows += 1;
            self.divergence += p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            self.num_agreeing += usize::from(most_likely(p) == most_likely(q));
        }
    }

    fn mean_divergence(&self) -> f64 {
        self.divergence / self.num_rows as f64
    }

    fn agreement(&self) -> f64 {
        self.num_agreeing as f64 / self.num_rows as f64
    }

    fn perplexity(&self) -> f64 {
        (self.loss / self.num_judged as f64).exp()
    }

    fn describe(&self, dtype: &str, reference: &str) -> String {
        format!(
            "{dtype} KV against {reference}: {} rows, mean KL divergence {:.2e}, top-1 agreement \
             {:.4}, perplexity {:.4}",
            self.num_rows,
            self.mean_divergence(),
            self.agreement(),
            self.perplexity(),
        )
    }
}

/// Returns the log probabilities of logits `[rows, vocab_size]`.
fn log_probability_rows(logits: &[f32], vocab_size: usize) -> Vec<Vec<f64>> {
    logits.chunks_exact(vocab_size).map(log_probabilities).collect()
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let largest = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    logits.iter().map(|logit| f64::from(*logit) - largest - sum.ln()).collect()
}

fn most_likely(values: &[f64]) -> usize {
    (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b])).unwrap()
}
