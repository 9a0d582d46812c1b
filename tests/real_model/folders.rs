//! A folder of bf16 safetensors gives the logits of the file with the same weights.
//!
//! Only the order of the dimensions that are rotated together differs, and with it the order in
//! which a head's products are added.

use crate::bf16_copies;
use crate::model::{all_cores, fixed_tokens, kv_storage};
use mini_infer_core::{Batch, BlockId, BlockSize};
use mini_infer_kernels::{Isa, KvDtype};
use mini_infer_model::ops::cpu::CpuOps;
use mini_infer_model::{Checkpoint, Transformer};
use std::fs;
use std::num::NonZeroUsize;

const PROMPT_TOKENS: usize = 200;
const NUM_BLOCKS: u32 = 16;

#[test]
fn a_bf16_folder_agrees_with_the_file_of_the_same_weights() {
    let _cores = all_cores();
    let (folder, file) = (bf16_copies::write_folder(), bf16_copies::gguf());
    let opened = Checkpoint::open(&folder).unwrap();
    assert_eq!(opened.config().hidden_size, file.config().hidden_size);
    assert_ne!(opened.config().rope.style, file.config().rope.style);
    let (found, expected) = (logits(&opened), logits(&file));
    drop(opened);
    fs::remove_dir_all(&folder).unwrap();
    let vocab_size = file.config().vocab_size;
    assert_eq!(found.len(), 4 * vocab_size);
    let mut largest = 0_f32;
    for (found, expected) in found.chunks_exact(vocab_size).zip(expected.chunks_exact(vocab_size)) {
        let best = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        assert_eq!(best(found), best(expected));
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        largest = differences.fold(largest, f32::max);
    }
    println!("largest difference of a logit: {largest:e}");
    // 5e-5 in log probabilities was seen between a file and a folder of bf16.
    assert!(largest < 1e-3, "{largest}");
}

/// Returns the logits of four rows of the fixed text, on f32 KV.
fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let ops = CpuOps::new(Isa::from_env().unwrap(), NonZeroUsize::new(2).unwrap());
    let mut model = Transformer::load(checkpoint, ops, 256).unwrap();
    let mut kv = kv_storage(KvDtype::F32, BlockSize::DEFAULT, NUM_BLOCKS);
    let table: Vec<_> = (0..NUM_BLOCKS).map(BlockId).collect();
    let mut batch = Batch::default();
    batch.push_sequence(&fixed_tokens()[..PROMPT_TOKENS], 0, &table, BlockSize::DEFAULT, false);
    batch.logits_rows = vec![0, 15, 16, 199];
    let mut logits = Vec::new();
    model.forward(&batch, &mut kv, &mut logits);
    logits
}
