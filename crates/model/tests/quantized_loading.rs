//! Float matrices that are quantised while a tiny model is loaded (testdata/make_tiny_*.py).

use mini_infer_core::{Batch, BlockId, BlockSize, Executor};
use mini_infer_kernels::{Isa, KvDtype, KvLayout, KvStorage, QuantizedType, SlidingPattern};
use mini_infer_model::ops::cpu::CpuOps;
use mini_infer_model::{Checkpoint, ModelExecutor, Transformer};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// A prompt that crosses blocks and the window.
fn prompt() -> Vec<u32> {
    (0..40).map(|i| (i * 37 + 11) % 96).collect()
}

fn open(name: &str) -> Checkpoint {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata")).join(name);
    Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"))
}

/// Computes the logits of all rows of the prompt.
fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let ops = CpuOps::new(Isa::all_present()[0], NonZeroUsize::new(2).expect("two threads"));
    let model = Transformer::load(checkpoint, ops, 64).expect("a whole model");
    let attention = model.config().attention;
    let layout = KvLayout {
        num_layers: model.config().num_layers,
        num_kv_heads: attention.num_kv_heads,
        head_dim: attention.head_dim,
        block_size: BlockSize::DEFAULT,
        dtype: KvDtype::F32,
        sliding: SlidingPattern::None,
    };
    let mut executor =
        ModelExecutor::new(model, KvStorage::reserve(layout, 4).expect("a small pool"));
    let mut batch = Batch::default();
    let table = [0, 1, 2].map(BlockId);
    let prompt = prompt();
    batch.push_sequence(&prompt, 0, &table, BlockSize::DEFAULT, false);
    batch.logits_rows = (0..).take(prompt.len()).collect();
    let mut logits = Vec::new();
    executor.forward(&batch, &mut logits).expect("a device of the host cannot fail");
    logits
}

/// Returns the mean difference relative to the mean size.
fn relative_error(got: &[f32], expected: &[f32]) -> f32 {
    let differences: f32 = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).sum();
    differences / expected.iter().map(|logit| logit.abs()).sum::<f32>()
}

#[test]
fn quantised_models_answer_nearly_alike_and_the_same_in_both_formats() {
    for name in ["tiny-safetensors/gemma3", "tiny-safetensors/llama3", "tiny-safetensors/qwen2"] {
        let float = logits(&open(name));
        let [by_8_bits, by_4_bits] = QuantizedType::ALL.map(|to| {
            let logits = logits(&open(name).quantized_to(to).unwrap());
            relative_error(&logits, &float)
        });
        assert!(0.0 < by_8_bits && by_8_bits < 0.06, "{name}: {by_8_bits}");
        assert!(2.0 * by_8_bits < by_4_bits && by_4_bits < 0.6, "{name}: {by_4_bits}");
    }
    for to in QuantizedType::ALL {
        let [folder, gguf] = ["tiny-safetensors/gemma3", "tiny-safetensors/gemma3/f16.gguf"]
            .map(|name| logits(&open(name).quantized_to(to).unwrap()));
        assert!(folder == gguf, "{to:?}");
    }
}

#[test]
fn only_matrices_of_floats_are_quantised() {
    let to = QuantizedType::Q8_0;
    let checkpoint = open("tiny-safetensors/qwen2").quantized_to(to).unwrap();
    for name in checkpoint.tensor_names() {
        let tensor = checkpoint.tensor(name).unwrap();
        let is_vector = name.contains("norm") || name.ends_with("bias");
        let expected = Some(to).filter(|_| !is_vector);
        assert_eq!(checkpoint.quantization_of(&tensor), expected, "{name}");
    }
    let error = open("tiny-gemma3/q8_0.gguf").quantized_to(to).unwrap_err().to_string();
    assert!(error.starts_with("there is nothing to quantise to Q8_0"), "{error}");
    let error = open("tiny-qwen3").quantized_to(to).unwrap_err().to_string();
    let expected = "tensor `model.layers.0.mlp.down_proj.weight` cannot be quantised: rows of 48";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn loading_reports_every_matrix_once() {
    for checkpoint in [
        open("tiny-safetensors/llama-linear"),
        open("tiny-safetensors/llama3").quantized_to(QuantizedType::Q4_0).unwrap(),
    ] {
        let ops = CpuOps::new(Isa::all_present()[0], NonZeroUsize::MIN);
        let mut reports = vec![0];
        let mut report = |loaded_bytes| reports.push(loaded_bytes);
        Transformer::load_reporting(&checkpoint, ops, 64, &mut report).unwrap();
        assert!(reports.is_sorted_by(|a, b| a < b), "{reports:?}");
        let tensors = checkpoint.tensor_names().filter_map(|name| checkpoint.tensor(name));
        let matrices = tensors.filter(|tensor| tensor.shape.len() == 2);
        let num_bytes: usize = matrices.map(|matrix| matrix.num_stored_bytes()).sum();
        assert_eq!(reports.last().copied(), Some(num_bytes as u64));
    }
}
