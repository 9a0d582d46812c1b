//! Tiny models against transformers (testdata/make_tiny_*.py), through the reference ops: numbers,
//! and that neither chunks, block tables, neighbours, threads nor the file format change a bit of
//! them.

mod goldens;

use goldens::{Golden, TOLERANCE, argmax, testdata};
use mini_infer_core::{Batch, BlockId, BlockSize, Executor, RowForm, TokenId};
use mini_infer_kernels::{Isa, KvDtype, KvLayout, KvStorage, SlidingPattern};
use mini_infer_model::ops::cpu::{CpuOps, StoredKeys};
use mini_infer_model::ops::reference::{ReferenceKv, ReferenceOps};
use mini_infer_model::{Checkpoint, ModelExecutor, Transformer};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Names of GGUF files, and of folders with safetensors.
const VARIANTS: &[&str] = &[
    "tiny-llama/f32",
    "tiny-llama/q4_1",
    "tiny-qwen2/f32",
    "tiny-gemma3/q8_0",
    "tiny-qwen3/f16",
    "tiny-qwen3-yarn/f16",
    "tiny-mistral/f16",
    "tiny-gemma2/f16",
    "tiny-phi3/f16",
    "tiny-mixtral/f16",
    "tiny-qwen3-moe/f16",
    "tiny-safetensors/llama3",
    "tiny-safetensors/llama-linear",
    "tiny-safetensors/mistral",
    "tiny-safetensors/qwen2",
    "tiny-safetensors/gemma3",
    "tiny-int4/awq",
    "tiny-int4/gptq",
];
/// Those whose weights are not floats.
const QUANTIZED_VARIANTS: &[&str] =
    &["tiny-llama/q4_1", "tiny-gemma3/q8_0", "tiny-int4/awq", "tiny-int4/gptq"];
/// Folders with what some of the files above have, whose other tests are enough.
const FOLDERS: &[&str] = &[
    "tiny-qwen3",
    "tiny-qwen3-yarn",
    "tiny-mistral",
    "tiny-gemma2",
    "tiny-phi3",
    "tiny-mixtral",
    "tiny-qwen3-moe",
];
const NUM_BLOCKS: u32 = 64;

/// Returns the logits of a file or folder: its own, or those of the folder that it lies in.
fn golden_path(name: &str) -> PathBuf {
    let own = testdata(&format!("{name}.golden"));
    let folder = testdata(name);
    let folder = if folder.is_dir() { &folder } else { folder.parent().expect("a folder") };
    if own.exists() { own } else { folder.join("logits.golden") }
}

fn load_goldens(name: &str, vocab_size: usize) -> Vec<Golden> {
    Golden::load(&golden_path(name), vocab_size)
}

fn open(variant: &str) -> Checkpoint {
    let folder = testdata(variant);
    let path = if folder.is_dir() { folder } else { testdata(&format!("{variant}.gguf")) };
    Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"))
}

fn executor(variant: &str, num_threads: usize) -> ModelExecutor<ReferenceOps> {
    executor_of_length(variant, num_threads, 256)
}

fn executor_of_length(
    variant: &str,
    num_threads: usize,
    max_model_len: usize,
) -> ModelExecutor<ReferenceOps> {
    let checkpoint = open(variant);
    let ops = ReferenceOps::new(num_threads);
    let model = Transformer::load(&checkpoint, ops, max_model_len).expect("a whole model");
    let kv = ReferenceKv::new(model.config(), NUM_BLOCKS as usize, BlockSize::DEFAULT);
    ModelExecutor::new(model, kv)
}

/// Block tables that share no block and are neither contiguous nor ascending.
fn scattered_table(sequence: u32) -> Vec<BlockId> {
    // 23 is odd, so multiples of it visit every block of 64 once.
    (0..8).map(|i| BlockId(((sequence * 8 + i) * 23 + 5) % NUM_BLOCKS)).collect()
}

fn contiguous_table(sequence: u32) -> Vec<BlockId> {
    (0..8).map(|i| BlockId(sequence * 8 + i)).collect()
}

/// Computes `tokens` in chunks and returns the logits of every token, `[tokens, vocab_size]`.
fn logits_in_chunks(
    executor: &mut impl Executor,
    tokens: &[TokenId],
    chunk_size: usize,
    table: &[BlockId],
) -> Vec<f32> {
    let (mut all, mut logits) = (Vec::new(), Vec::new());
    for (chunk, start) in tokens.chunks(chunk_size).zip((0..).step_by(chunk_size)) {
        let mut batch = Batch::default();
        batch.push_sequence(chunk, start, table, BlockSize::DEFAULT, false);
        batch.logits_rows = (0..).take(chunk.len()).collect();
        batch.check_invariants(BlockSize::DEFAULT);
        executor.forward(&batch, &mut logits).expect("a device of the host cannot fail");
        all.extend_from_slice(&logits);
    }
    all
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn logits_equal_transformers() {
    for variant in VARIANTS.iter().chain(FOLDERS).copied() {
        check_logits(variant, &mut executor(variant, 1), variant);
    }
}

fn fast_executor(
    variant: &str,
    isa: Isa,
    dtype: KvDtype,
    stored_keys: StoredKeys,
) -> ModelExecutor<CpuOps> {
    let checkpoint = open(variant);
    let attention = checkpoint.config().attention;
    let layout = KvLayout {
        num_layers: checkpoint.config().num_layers,
        num_kv_heads: attention.num_kv_heads,
        head_dim: attention.head_dim,
        block_size: BlockSize::DEFAULT,
        dtype,
        sliding: SlidingPattern::None,
    };
    let ops = CpuOps::new(isa, NonZeroUsize::new(2).expect("two threads"));
    let ops = ops.with_stored_keys(stored_keys);
    let model = Transformer::load(&checkpoint, ops, 256).expect("a whole model");
    let kv = KvStorage::reserve(layout, NUM_BLOCKS).expect("a small pool");
    ModelExecutor::new(model, kv)
}

const STORED_KEYS: [StoredKeys; 2] = [StoredKeys::Whole, StoredKeys::WithoutLargeBiases];

/// With float weights and KV the fast ops round nothing, so they are held to the same tolerance.
#[test]
fn logits_of_the_fast_ops_on_float_weights_equal_transformers_on_every_isa() {
    let of_floats = VARIANTS.iter().filter(|variant| !QUANTIZED_VARIANTS.contains(variant));
    for variant in of_floats.chain(FOLDERS).copied() {
        for isa in Isa::all_present() {
            for stored_keys in STORED_KEYS {
                let mut executor = fast_executor(variant, isa, KvDtype::F32, stored_keys);
                check_logits(variant, &mut executor, &format!("{variant} {}", isa.name()));
            }
        }
    }
}

#[test]
fn int8_keys_lose_less_when_large_biases_are_not_stored() {
    let variant = "tiny-qwen2/f32";
    let mean_error = |dtype, stored_keys| {
        let mut executor = fast_executor(variant, Isa::all_present()[0], dtype, stored_keys);
        let (mut sum, mut num_logits) = (0.0, 0);
        for golden in load_goldens(variant, executor.vocab_size()) {
            let len = golden.prompt.len();
            let got = logits_in_chunks(&mut executor, &golden.prompt, len, &contiguous_table(0));
            let got = &got[got.len() - golden.logits.len()..];
            let errors = got.iter().zip(&golden.logits).map(|(a, b)| f64::from((a - b).abs()));
            sum += errors.sum::<f64>();
            num_logits += got.len();
        }
        sum / num_logits as f64
    };
    let [whole, without] = STORED_KEYS.map(|stored_keys| mean_error(KvDtype::Int8, stored_keys));
    assert!(without < whole / 3.0, "mean errors {without:e} and {whole:e}");
}

/// The longest sequence decides which of LongRoPE's divisors are used: not the one at hand.
#[test]
fn a_server_of_short_sequences_has_the_short_divisors_of_longrope() {
    let mut executor = executor_of_length("tiny-phi3/f16", 1, 32);
    check_logits("tiny-phi3/short", &mut executor, "32 tokens");
}

fn check_logits(golden: &str, executor: &mut impl Executor, context: &str) {
    for golden in load_goldens(golden, executor.vocab_size()) {
        let len = golden.prompt.len();
        let got = logits_in_chunks(executor, &golden.prompt, len, &contiguous_table(0));
        golden.check(&got, context);
    }
}

#[test]
fn greedy_tokens_equal_transformers() {
    for variant in VARIANTS.iter().copied() {
        let mut executor = executor(variant, 1);
        let vocab_size = executor.vocab_size();
        let table = scattered_table(1);
        for golden in load_goldens(variant, vocab_size) {
            let mut tokens = golden.prompt.clone();
            let mut logits = Vec::new();
            let mut computed = 0;
            for expected in golden.output {
                let mut batch = Batch::default();
                let start = u32::try_from(computed).unwrap();
                let chunk = &tokens[computed..];
                batch.push_sequence(chunk, start, &table, BlockSize::DEFAULT, true);
                executor.forward(&batch, &mut logits).unwrap();
                assert_eq!(argmax(&logits), expected, "{variant}, after {} tokens", tokens.len());
                computed = tokens.len();
                tokens.push(expected);
            }
        }
    }
}

#[test]
fn chunks_and_block_tables_and_threads_change_no_bit() {
    for variant in VARIANTS.iter().copied() {
        let mut one_thread = executor(variant, 1);
        let mut three_threads = executor(variant, 3);
        for golden in load_goldens(variant, one_thread.vocab_size()) {
            let prompt = &golden.prompt;
            let whole = bits(&logits_in_chunks(
                &mut one_thread,
                prompt,
                prompt.len(),
                &contiguous_table(0),
            ));
            for chunk_size in [1, 7, 16, prompt.len()] {
                for executor in [&mut one_thread, &mut three_threads] {
                    let table = scattered_table(2);
                    let got = logits_in_chunks(executor, prompt, chunk_size, &table);
                    let len = prompt.len();
                    assert!(bits(&got) == whole, "{variant}, {len} tokens by {chunk_size}");
                }
            }
        }
    }
}

#[test]
fn sequences_of_one_batch_are_bit_equal_to_each_alone() {
    for variant in VARIANTS.iter().copied() {
        check_neighbours(variant, &mut executor(variant, 1), usize::MAX);
    }
}

/// What the kernels do in another order for other batches would show where experts get other rows.
#[test]
fn neighbours_and_chunks_change_no_bit_of_the_fast_ops_on_any_isa() {
    for variant in ["tiny-gemma2/f16", "tiny-phi3/f16", "tiny-mixtral/f16", "tiny-qwen3-moe/f16"] {
        for isa in Isa::all_present() {
            let mut executor = fast_executor(variant, isa, KvDtype::Int8, StoredKeys::Whole);
            check_neighbours(variant, &mut executor, 7);
        }
    }
}

/// Checks that all prompts of a variant in one batch get the bits that each gets alone, in chunks.
fn check_neighbours(variant: &str, executor: &mut impl Executor, chunk_size: usize) {
    let vocab_size = executor.vocab_size();
    let goldens = load_goldens(variant, vocab_size);
    let mut batch = Batch::default();
    for (i, golden) in (0..).zip(&goldens) {
        batch.push_sequence(&golden.prompt, 0, &scattered_table(i), BlockSize::DEFAULT, true);
    }
    batch.check_invariants(BlockSize::DEFAULT);
    let mut together = Vec::new();
    executor.forward(&batch, &mut together).expect("a device of the host cannot fail");
    assert_eq!(together.len(), goldens.len() * vocab_size);
    for (golden, together) in goldens.iter().zip(together.chunks_exact(vocab_size)) {
        let len = golden.prompt.len();
        let table = contiguous_table(7);
        let alone = logits_in_chunks(executor, &golden.prompt, chunk_size.min(len), &table);
        assert_eq!(bits(together), bits(&alone[alone.len() - vocab_size..]), "{variant} {len}");
    }
}

/// All prompts of a variant in one batch, layer by layer, and another step between any two layers.
#[test]
fn a_step_in_parts_gives_the_bits_of_the_whole() {
    for variant in VARIANTS.iter().chain(QUANTIZED_VARIANTS) {
        let mut executor =
            fast_executor(variant, Isa::from_env().unwrap(), KvDtype::F16, STORED_KEYS[0]);
        let mut batch = Batch::default();
        for (i, golden) in (0..).zip(load_goldens(variant, executor.vocab_size())) {
            batch.push_sequence(&golden.prompt, 0, &scattered_table(i), BlockSize::DEFAULT, true);
        }
        let (mut whole, mut in_parts, mut other) = (Vec::new(), Vec::new(), Vec::new());
        executor.forward(&batch, &mut whole).unwrap();
        let mut beside = Batch::default();
        beside.push_sequence(&[3, 1, 2], 0, &contiguous_table(7), BlockSize::DEFAULT, true);
        for layer in 0..executor.num_layers() {
            executor.advance(&batch, layer..layer + 1, &mut in_parts).unwrap();
            executor.forward(&beside, &mut other).unwrap();
        }
        assert!(!whole.is_empty() && bits(&whole) == bits(&in_parts), "{variant}");
    }
}

/// The same weights as safetensors and as GGUF, which differ in names, norms and keys. Families
/// whose converter reorders rows are left out: they are rounded differently.
#[test]
fn both_formats_give_the_same_bits() {
    for name in ["tiny-safetensors/gemma3", "tiny-qwen3", "tiny-qwen3-moe"] {
        let (mut folder, mut gguf) = (executor(name, 1), executor(&format!("{name}/f16"), 1));
        for golden in load_goldens(name, folder.vocab_size()) {
            let (prompt, table) = (&golden.prompt, contiguous_table(0));
            let from_folder = logits_in_chunks(&mut folder, prompt, prompt.len(), &table);
            let from_gguf = logits_in_chunks(&mut gguf, prompt, prompt.len(), &table);
            assert!(bits(&from_folder) == bits(&from_gguf), "{name}, {} tokens", prompt.len());
        }
    }
}

/// One prompt, and the states that transformers has after its last norm.
struct GoldenStates {
    prompt: Vec<TokenId>,
    /// `[prompt.len(), hidden_size]`.
    states: Vec<f32>,
}

fn load_states(folder: &str) -> Vec<GoldenStates> {
    let bytes = std::fs::read(testdata(folder).join("states.golden")).expect("a golden of states");
    let mut words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let mut all = Vec::new();
    while let Some(num_prompt) = words.next() {
        let num_prompt = num_prompt as usize;
        let hidden_size = words.next().expect("the width of a state") as usize;
        let prompt = words.by_ref().take(num_prompt).collect();
        let states = words.by_ref().take(num_prompt * hidden_size).map(f32::from_bits).collect();
        all.push(GoldenStates { prompt, states });
    }
    all
}

/// Computes `tokens` in chunks, keeps all rows but the last of each chunk's, which gives its logits,
/// and reads the kept ones `group_size` at a time. Returns them, `[kept rows, width]`.
fn kept_rows_in_chunks(
    executor: &mut impl Executor,
    tokens: &[TokenId],
    chunk_size: usize,
    form: RowForm,
    group_size: usize,
) -> Vec<f32> {
    let (mut all, mut rows) = (Vec::new(), Vec::new());
    for (chunk, start) in tokens.chunks(chunk_size).zip((0..).step_by(chunk_size)) {
        let mut batch = Batch::default();
        batch.push_sequence(chunk, start, &scattered_table(3), BlockSize::DEFAULT, true);
        batch.keep_of_last(start..batch.context_lens[0] - 1);
        executor.forward(&batch, &mut rows).expect("a device of the host cannot fail");
        let num_kept = batch.kept_rows.len();
        for first in (0..num_kept).step_by(group_size) {
            let group = first..num_kept.min(first + group_size);
            executor.read_kept_rows(group, form, &mut rows).expect("it keeps rows");
            all.extend_from_slice(&rows);
        }
    }
    all
}

fn check_states(folder: &str, executor: &mut impl Executor, context: &str) {
    for GoldenStates { prompt, states } in load_states(folder) {
        let width = states.len() / prompt.len();
        // A token behind the prompt, so that all of its rows are kept.
        let tokens = [&prompt[..], &[0]].concat();
        let form = RowForm::HiddenState;
        let got = kept_rows_in_chunks(executor, &tokens, tokens.len(), form, 5);
        assert_eq!(got.len(), states.len(), "{context}, {width} values for each token");
        for (i, (got, expected)) in got.iter().zip(&states).enumerate() {
            let difference = (got - expected).abs();
            assert!(
                difference <= TOLERANCE * expected.abs().max(1.0),
                "{context}, value {i} of {}: {got}, transformers has {expected}",
                prompt.len()
            );
        }
    }
}

#[test]
fn hidden_states_equal_transformers() {
    for folder in ["tiny-qwen3", "tiny-gemma2"] {
        for variant in [folder.to_owned(), format!("{folder}/f16")] {
            check_states(folder, &mut executor(&variant, 1), &variant);
            for isa in Isa::all_present() {
                let mut fast = fast_executor(&variant, isa, KvDtype::F32, StoredKeys::Whole);
                check_states(folder, &mut fast, &format!("{variant} {}", isa.name()));
            }
        }
    }
}

#[test]
fn kept_rows_are_bit_equal_to_rows_of_logits_in_any_chunks_and_groups() {
    for variant in ["tiny-llama/q4_1", "tiny-gemma2/f16", "tiny-mixtral/f16"] {
        for isa in Isa::all_present() {
            let mut executor = fast_executor(variant, isa, KvDtype::Int8, StoredKeys::Whole);
            let vocab_size = executor.vocab_size();
            let goldens = load_goldens(variant, vocab_size);
            let prompt = &goldens.last().expect("a long prompt").prompt;
            let len = prompt.len();
            let all = logits_in_chunks(&mut executor, prompt, len, &contiguous_table(0));
            for (chunk_size, group_size) in [(len, len), (len, 1), (7, 3), (16, 16)] {
                let form = RowForm::Logits;
                let got = kept_rows_in_chunks(&mut executor, prompt, chunk_size, form, group_size);
                let expected = all.chunks(chunk_size * vocab_size).flat_map(|chunk| {
                    // The last row of a chunk is not kept.
                    &chunk[..chunk.len() - vocab_size]
                });
                let expected: Vec<f32> = expected.copied().collect();
                assert!(bits(&got) == bits(&expected), "{variant} {chunk_size} {group_size}");
            }
        }
    }
}

#[test]
fn a_step_without_wanted_logits_gives_none() {
    let mut executor = executor("tiny-llama/f32", 1);
    let mut batch = Batch::default();
    batch.push_sequence(&[1, 2, 3], 0, &contiguous_table(0), BlockSize::DEFAULT, false);
    let mut logits = vec![1.0];
    executor.forward(&batch, &mut logits).unwrap();
    assert!(logits.is_empty());
}

#[test]
#[should_panic(expected = "token 192 of 192")]
fn tokens_outside_the_vocabulary_never_reach_the_device() {
    let mut executor = executor("tiny-llama/f32", 1);
    let mut batch = Batch::default();
    batch.push_sequence(&[1, 192], 0, &contiguous_table(0), BlockSize::DEFAULT, true);
    let _ = executor.forward(&batch, &mut Vec::new());
}
