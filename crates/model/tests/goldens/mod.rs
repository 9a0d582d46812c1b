//! What an independent implementation made of prompts: files of testdata/make_tiny_*.py.

use mini_infer_core::TokenId;
use std::path::{Path, PathBuf};

/// The accepted difference to the reference, which sums in another order.
pub(crate) const TOLERANCE: f32 = 1e-4;

/// One prompt, and what became of it.
pub(crate) struct Golden {
    pub(crate) prompt: Vec<TokenId>,
    /// Its greedy continuation.
    pub(crate) output: Vec<TokenId>,
    /// Logits of the prompt's last rows, `[num_rows, vocab_size]`.
    pub(crate) logits: Vec<f32>,
}

impl Golden {
    /// Reads a file, in the form that testdata/make_tiny_llama.py describes.
    pub(crate) fn load(path: &Path, vocab_size: usize) -> Vec<Self> {
        let bytes =
            std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let mut goldens = Vec::new();
        while let Some(num_prompt) = words.next() {
            let mut take = |n: usize| words.by_ref().take(n).collect::<Vec<_>>();
            let counts = take(2);
            let (num_output, num_rows) = (counts[0] as usize, counts[1] as usize);
            goldens.push(Self {
                prompt: take(num_prompt as usize),
                output: take(num_output),
                logits: take(num_rows * vocab_size).into_iter().map(f32::from_bits).collect(),
            });
        }
        goldens
    }

    /// Checks that the last of some rows have these logits, up to the order of sums.
    pub(crate) fn check(&self, rows: &[f32], context: &str) {
        let got = &rows[rows.len() - self.logits.len()..];
        for (i, (got, expected)) in got.iter().zip(&self.logits).enumerate() {
            assert!(
                (got - expected).abs() <= TOLERANCE,
                "{context}, prompt of {}, logit {i}: {got}, expected {expected}",
                self.prompt.len()
            );
        }
    }
}

/// Returns the place of a file or folder in testdata.
pub(crate) fn testdata(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata")).join(name)
}

/// Returns the most likely token of a row of logits.
pub(crate) fn argmax(row: &[f32]) -> TokenId {
    let best = (0..).zip(row).max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("a row is not empty").0
}
