//! The default model, opened once, and its pieces.

use crate::gguf_text;
use mini_infer_core::BlockSize;
use mini_infer_hub::{DEFAULT_ALIAS, HubOptions, ModelFiles, NoProgress, resolve};
use mini_infer_kernels::{Isa, KvDtype, KvLayout, KvStorage, SlidingPattern};
use mini_infer_model::ops::cpu::CpuOps;
use mini_infer_model::{Checkpoint, ModelExecutor, Transformer};
use mini_infer_text::Tokenizer;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// An original text that no model was trained on.
pub(crate) const FIXED_TEXT: &str = include_str!("../../testdata/fixed_text.txt");

/// Tests here use all cores; one at a time keeps them from slowing one another down.
pub(crate) fn all_cores() -> MutexGuard<'static, ()> {
    static CORES: Mutex<()> = Mutex::new(());
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the file of `alias`, fetched if it is not there.
pub(crate) fn model_file(alias: &str) -> PathBuf {
    let options = HubOptions::from_env().unwrap();
    match resolve(alias, &options, &mut NoProgress).unwrap().files {
        ModelFiles::Gguf(path) => path,
        ModelFiles::Checkpoint(path) => panic!("{alias} is a GGUF file, not {}", path.display()),
    }
}

/// Returns the default model.
pub(crate) fn checkpoint() -> &'static Checkpoint {
    static CHECKPOINT: OnceLock<Checkpoint> = OnceLock::new();
    CHECKPOINT.get_or_init(|| Checkpoint::open(&model_file(DEFAULT_ALIAS)).unwrap())
}

/// Returns the tokenizer of `checkpoint`.
pub(crate) fn tokenizer(checkpoint: &Checkpoint) -> Tokenizer {
    let metadata = checkpoint.gguf_metadata().expect("the aliases are GGUF files");
    Tokenizer::from_gguf(gguf_text::vocabulary(metadata).unwrap()).unwrap()
}

/// Returns the token ids of [`FIXED_TEXT`].
pub(crate) fn fixed_tokens() -> Vec<u32> {
    tokenizer(checkpoint()).encode_text(FIXED_TEXT).unwrap()
}

/// Returns the model on the fast ops, for up to 1,024 tokens and `num_blocks` blocks.
pub(crate) fn fast_executor(
    isa: Isa,
    num_threads: usize,
    dtype: KvDtype,
    block_size: BlockSize,
    num_blocks: u32,
) -> ModelExecutor<CpuOps> {
    let ops = CpuOps::new(isa, NonZeroUsize::new(num_threads).unwrap());
    let transformer = Transformer::load(checkpoint(), ops, 1024).unwrap();
    ModelExecutor::new(transformer, kv_storage(dtype, block_size, num_blocks))
}

/// Returns KV storage for the default model.
pub(crate) fn kv_storage(dtype: KvDtype, block_size: BlockSize, num_blocks: u32) -> KvStorage {
    let config = checkpoint().config();
    let layout = KvLayout {
        num_layers: config.num_layers,
        num_kv_heads: config.attention.num_kv_heads,
        head_dim: config.attention.head_dim,
        block_size,
        dtype,
        sliding: SlidingPattern::None,
    };
    KvStorage::reserve(layout, num_blocks).unwrap()
}
