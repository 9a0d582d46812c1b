//! Quality of the fast path: against the f32 reference on the same quantised weights, and against
//! llama.cpp's perplexity on the same file and text.

use crate::model::{all_cores, checkpoint, fast_executor, fixed_tokens};
use mini_infer_core::{Batch, BlockId, BlockSize, Executor};
use mini_infer_kernels::{Isa, KvDtype};
use mini_infer_model::ops::reference::{ReferenceKv, ReferenceOps};
use mini_infer_model::{ModelExecutor, Transformer};

/// Tokens of a window: each is computed by itself from position 0, as `llama-perplexity` does.
const WINDOW: usize = 512;
/// Rows whose logits are held at once.
const CHUNK: usize = 128;
/// What `llama-perplexity` (b11434) prints for the default model and the fixed text with `-c 512`;
/// see `benches/README.md`.
const LLAMA_CPP_PERPLEXITY: f64 = 30.0820;

/// Sums over the rows of a text.
#[derive(Default)]
struct Comparison {
    num_rows: usize,
    divergence: f64,
    num_agreeing: usize,
    num_judged: usize,
    /// Summed over the second half of each window.
    fast_loss: f64,
    reference_loss: f64,
}

#[test]
fn the_fast_path_is_as_good_as_the_f32_reference_and_as_llama_cpp() {
    let _cores = all_cores();
    let tokens = fixed_tokens();
    assert!(tokens.len() >= 2000, "the text has {} tokens", tokens.len());
    let num_blocks = 32;
    let mut reference = {
        let transformer = Transformer::load(checkpoint(), ReferenceOps::new(2), 1024).unwrap();
        let kv = ReferenceKv::new(checkpoint().config(), num_blocks, BlockSize::DEFAULT);
        ModelExecutor::new(transformer, kv)
    };
    let isa = Isa::from_env().unwrap();
    for dtype in [KvDtype::F16, KvDtype::Bf16] {
        let mut fast = fast_executor(isa, 2, dtype, BlockSize::DEFAULT, 32);
        let sums = compare(&mut fast, &mut reference, &tokens);
        let rows = sums.num_rows as f64;
        let judged = sums.num_judged as f64;
        let divergence = sums.divergence / rows;
        let agreement = sums.num_agreeing as f64 / rows;
        let perplexity = (sums.fast_loss / judged).exp();
        let reference_perplexity = (sums.reference_loss / judged).exp();
        println!(
            "{} KV: {rows} rows, mean KL divergence {divergence:.6}, top-1 agreement \
             {agreement:.4}, perplexity {perplexity:.4} (reference {reference_perplexity:.4}, \
             llama.cpp {LLAMA_CPP_PERPLEXITY:.4})",
            dtype.name()
        );
        assert!(divergence < 2e-3, "mean KL divergence {divergence}");
        assert!(agreement > 0.98, "top-1 agreement {agreement}");
        assert!((perplexity / LLAMA_CPP_PERPLEXITY - 1.0).abs() < 0.01, "{perplexity}");
    }
}

/// Rounding KV costs what is asserted here, everything else being equal.
#[test]
fn stored_forms_of_kv_are_as_good_as_f32() {
    let _cores = all_cores();
    let tokens = fixed_tokens();
    let isa = Isa::from_env().unwrap();
    let mut exact = fast_executor(isa, 2, KvDtype::F32, BlockSize::DEFAULT, 32);
    for (dtype, most_divergence, least_agreement) in
        [(KvDtype::F16, 1e-5, 0.995), (KvDtype::Bf16, 1e-4, 0.99), (KvDtype::Int8, 1e-3, 0.98)]
    {
        let mut stored = fast_executor(isa, 2, dtype, BlockSize::DEFAULT, 32);
        let sums = compare(&mut stored, &mut exact, &tokens);
        let divergence = sums.divergence / sums.num_rows as f64;
        let agreement = sums.num_agreeing as f64 / sums.num_rows as f64;
        let perplexity = |loss: f64| (loss / sums.num_judged as f64).exp();
        println!(
            "{} KV against f32 KV: {} rows, mean KL divergence {divergence:.2e}, top-1 agreement \
             {agreement:.4}, perplexity {:.4} (f32 KV {:.4})",
            dtype.name(),
            sums.num_rows,
            perplexity(sums.fast_loss),
            perplexity(sums.reference_loss),
        );
        assert!(divergence < most_divergence, "mean KL divergence {divergence}");
        assert!(agreement > least_agreement, "top-1 agreement {agreement}");
    }
}

/// Runs both paths over whole windows of `tokens`.
fn compare(fast: &mut impl Executor, reference: &mut impl Executor, tokens: &[u32]) -> Comparison {
    let vocab_size = fast.vocab_size();
    let mut sums = Comparison::default();
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for window in tokens.chunks_exact(WINDOW) {
        for start in (0..WINDOW).step_by(CHUNK) {
            let batch = chunk(window, start);
            fast.forward(&batch, &mut a).unwrap();
            reference.forward(&batch, &mut b).unwrap();
            let rows = a.chunks_exact(vocab_size).zip(b.chunks_exact(vocab_size));
            for (i, (fast, reference)) in rows.enumerate() {
                sums.add(fast, reference, window, start + i);
            }
        }
    }
    sums
}

/// One chunk of a window with the logits of all its rows.
fn chunk(window: &[u32], start: usize) -> Batch {
    let table: Vec<_> = (0..32).map(BlockId).collect();
    let mut batch = Batch::default();
    let tokens = &window[start..start + CHUNK];
    let position = u32::try_from(start).unwrap();
    batch.push_sequence(tokens, position, &table, BlockSize::DEFAULT, false);
    batch.logits_rows = (0..u32::try_from(CHUNK).unwrap()).collect();
    batch
}

impl Comparison {
    fn add(&mut self, fast: &[f32], reference: &[f32], window: &[u32], position: usize) {
        let (p, q) = (log_probabilities(reference), log_probabilities(fast));
        self.num_rows += 1;
        self.divergence += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        self.num_agreeing += usize::from(most_likely(&p) == most_likely(&q));
        if position >= WINDOW / 2 && position + 1 < WINDOW {
            let next = window[position + 1] as usize;
            self.num_judged += 1;
            self.fast_loss -= q[next];
            self.reference_loss -= p[next];
        }
    }
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let largest = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    logits.iter().map(|logit| f64::from(*logit) - largest - sum.ln()).collect()
}

fn most_likely(values: &[f64]) -> usize {
    (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b])).unwrap()
}
