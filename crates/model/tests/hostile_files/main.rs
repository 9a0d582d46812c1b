//! Damaged checkpoints: seeded changes to real files, each of which must be read or refused.
//!
//! Whatever a file says, reading it ends with a value or an error: no panic, no more time or
//! memory than its size explains. A failure prints its case; `MODEL_SEED` starts another run.

mod mutation;

use mini_infer_core::{Batch, BlockId, BlockSize, Executor};
use mini_infer_model::gguf::GgufFile;
use mini_infer_model::ops::reference::{ReferenceKv, ReferenceOps};
use mini_infer_model::weights::ModelTensors;
use mini_infer_model::{Checkpoint, ModelExecutor, Transformer};
use mutation::{Numbers, mutate};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Changed files for each whole one.
const NUM_CASES: u64 = 1500;
/// Far more than a file of this size takes, and far less than one that is believed blindly.
const MAX_TIME: Duration = Duration::from_secs(20);
/// Memory that the process may have held at most, with all that a test harness takes.
#[cfg(target_os = "linux")]
const MAX_MEMORY_KIB: u64 = 256 << 10;
/// Tokens that a changed model which is still valid computes.
const NUM_TOKENS: u32 = 3;

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata")).join(name)
}

/// What became of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Refused,
    Used,
}

/// Runs `read` on changed copies of a file whose head, `head_len` bytes, holds all but weights.
fn check(name: &str, whole: &[u8], head_len: usize, read: impl Fn(Vec<u8>) -> Outcome) {
    assert!(read(whole.to_vec()) == Outcome::Used, "{name} is valid as it is");
    let mut num_used = 0;
    let first: u64 =
        std::env::var("MODEL_SEED").map_or(1, |seed| seed.parse().expect("MODEL_SEED is a number"));
    for seed in first..first + NUM_CASES {
        let changed = mutate(whole, head_len, &mut Numbers::new(seed));
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| read(changed)));
        let elapsed = start.elapsed();
        let outcome = result.unwrap_or_else(|_| panic!("{name} panics, MODEL_SEED={seed}"));
        num_used += u64::from(outcome == Outcome::Used);
        assert!(elapsed < MAX_TIME, "{name} takes {elapsed:?}, MODEL_SEED={seed}");
    }
    // Changes that all files survive, or none, would show nothing.
    let usual = NUM_CASES / 100..NUM_CASES - NUM_CASES / 50;
    assert!(usual.contains(&num_used), "{num_used} of {NUM_CASES} changed {name} are used");
    #[cfg(target_os = "linux")]
    assert!(peak_memory_kib() < MAX_MEMORY_KIB, "{} KiB", peak_memory_kib());
}

/// The most memory that this process has held.
#[cfg(target_os = "linux")]
fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse().ok()).expect("a number of KiB")
}

/// Looks at everything in a GGUF file, then computes a few tokens if it is a model.
fn read_gguf(bytes: Vec<u8>) -> Outcome {
    let Ok(file) = GgufFile::parse(bytes.clone().into()) else { return Outcome::Refused };
    let metadata = file.metadata();
    for key in metadata.keys() {
        let _ = metadata.get::<Vec<&str>>(key);
        let _ = metadata.get::<Vec<Vec<u64>>>(key);
        let _ = metadata.get::<i32>(key);
        let _ = metadata.get::<f32>(key);
        let _ = metadata.get::<bool>(key);
    }
    for name in file.tensor_names() {
        let tensor = file.tensor(name).expect("a tensor of the list");
        assert_eq!(tensor.to_f32().len(), tensor.num_weights());
    }
    match Checkpoint::from_bytes(bytes.into()) {
        Ok(checkpoint) => compute(&checkpoint),
        Err(_) => Outcome::Refused,
    }
}

/// A folder of its own, with the files of a fixture, that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    /// `purpose` tells the folders of different tests apart.
    fn copy_of(fixture: &str, purpose: &str) -> Self {
        let name = fixture.replace('/', "-");
        let name = format!("mini-infer-hostile-{purpose}-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a writable folder");
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(path(fixture).join(file), folder.join(file)).expect("a fixture");
        }
        Self(folder)
    }

    /// Opens the folder with other content of one file.
    fn read_with(&self, file: &str, bytes: &[u8]) -> Outcome {
        std::fs::write(self.0.join(file), bytes).expect("a writable folder");
        match Checkpoint::open(&self.0) {
            Ok(checkpoint) => compute(&checkpoint),
            Err(_) => Outcome::Refused,
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_dir_all(&self.0);
    }
}

/// Loads the model and computes a few tokens; what it refuses is refused.
fn compute(checkpoint: &Checkpoint) -> Outcome {
    if ModelTensors::find(checkpoint).is_err() {
        return Outcome::Refused;
    }
    let config = checkpoint.config();
    let num_tokens = NUM_TOKENS.min(u32::try_from(config.context_length).unwrap_or(u32::MAX));
    let max_model_len = num_tokens as usize;
    let Ok(model) = Transformer::load(checkpoint, ReferenceOps::new(1), max_model_len) else {
        return Outcome::Refused;
    };
    let last = u32::try_from(config.vocab_size - 1).expect("a tensor has so many rows");
    let kv = ReferenceKv::new(model.config(), 1, BlockSize::DEFAULT);
    let mut executor = ModelExecutor::new(model, kv);
    let tokens: Vec<_> = (0..num_tokens).map(|i| last.min(i)).collect();
    let mut batch = Batch::default();
    batch.push_sequence(&tokens, 0, &[BlockId(0)], BlockSize::DEFAULT, false);
    batch.logits_rows = vec![0];
    let mut logits = Vec::new();
    executor.forward(&batch, &mut logits).expect("a device of the host cannot fail");
    assert_eq!(logits.len(), config.vocab_size);
    Outcome::Used
}

#[test]
fn changed_gguf_files_are_read_or_refused() {
    for name in [
        "tiny-llama/q4_1.gguf",
        "tiny-gemma3/q8_0.gguf",
        "tiny-phi3/f16.gguf",
        "tiny-qwen3-moe/f16.gguf",
    ] {
        let whole = std::fs::read(path(name)).expect("a fixture");
        let checkpoint = Checkpoint::from_bytes(whole.clone().into()).expect("a valid file");
        let weight_bytes = usize::try_from(checkpoint.weight_bytes()).expect("a small file");
        check(name, &whole, whole.len() - weight_bytes, read_gguf);
    }
}

#[test]
fn changed_safetensors_files_are_read_or_refused() {
    for fixture in ["tiny-safetensors/qwen2", "tiny-int4/gptq", "tiny-int4/awq"] {
        let folder = Folder::copy_of(fixture, "weights");
        let whole = std::fs::read(path(fixture).join("model.safetensors")).expect("a fixture");
        let header = u64::from_le_bytes(*whole.first_chunk().expect("the header's length"));
        let head_len = 8 + usize::try_from(header).expect("a short header");
        check(fixture, &whole, head_len, |bytes| folder.read_with("model.safetensors", &bytes));
    }
}

#[test]
fn changed_configurations_are_read_or_refused() {
    for fixture in ["tiny-safetensors/gemma3", "tiny-int4/gptq"] {
        let folder = Folder::copy_of(fixture, "config");
        let whole = std::fs::read(path(fixture).join("config.json")).expect("a fixture");
        check(fixture, &whole, whole.len(), |bytes| folder.read_with("config.json", &bytes));
    }
}
