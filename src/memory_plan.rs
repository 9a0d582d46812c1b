//! How much memory a model takes here: the one computation behind `info` and `serve`.
//!
//! The pool is what the user asked for, or a share of the memory that is free beside the
//! weights; never more than the limits on sequences and their length can use. Its memory is
//! committed on first touch, so an unused pool costs nothing.

use crate::byte_size::ByteSize;
use crate::cli::KvAllocatorArg;
use crate::config::{ConfigError, EngineSettings, MemorySource, PoolSize};
use mini_infer_core::KvPart;
use mini_infer_engine::{BlockHashing, EngineConfig, KvAllocator};
use mini_infer_kernels::{KvLayout, QuantizedType, SlidingPattern};
use mini_infer_kv::{Reservation, WindowConfig};
use mini_infer_model::Checkpoint;
use mini_infer_model::weights::TensorView;

/// Memory kept for activations, logits, the tokenizer and the process itself.
const WORKING_BYTES: u64 = 256 << 20;
/// Percent of what is free beside weights and working memory that the pool may take: the rest
/// stays for the file cache and other programs, whose needs vary while the server runs.
const POOL_PERCENT: u64 = 70;
/// Most bytes that the pool takes unasked: prefixes stay cached until their blocks are needed, so
/// a server that runs for long fills whatever pool it has. Holds 32,000 tokens of an 8B model with
/// grouped heads (Llama 3.1: 128 KiB a token), and 186,000 of SmolLM2-135M.
const MAX_UNASKED_POOL_BYTES: u64 = 4 << 30;
/// The pool's bytes where the system does not tell what is free.
const UNKNOWN_FREE_POOL_BYTES: u64 = 1 << 30;

/// What a block of a model whose layers all have a window weighs beside the mere number of a block
/// that the window has passed: so many more numbers than whole blocks there are, at about 150 bytes.
const WEIGHT_OF_WINDOW_ALONE: u32 = 16;

/// The sizes of a model that the plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModelSizes {
    /// Bytes of all weights as the kernels keep them.
    pub(crate) weight_bytes: u64,
    /// Tokens of context that the model was made for.
    pub(crate) context_length: u32,
    /// Layers that have keys and values.
    pub(crate) num_layers: usize,
    /// Key and value heads of a layer.
    pub(crate) num_kv_heads: usize,
    /// Dimensions of a head.
    pub(crate) head_dim: usize,
    /// Layers that see a window of tokens only, where there are such.
    pub(crate) sliding: Option<SlidingSizes>,
}

/// Layers that see only the last tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingSizes {
    /// Tokens that they see.
    pub(crate) window: u32,
    /// Every layer whose number, from 1, is a multiple of this sees all tokens.
    pub(crate) full_every: usize,
}

impl ModelSizes {
    /// Takes the sizes out of a checkpoint.
    pub(crate) fn new(checkpoint: &Checkpoint) -> Self {
        let config = checkpoint.config();
        let tensors = checkpoint.tensor_names().filter_map(|name| checkpoint.tensor(name));
        Self {
            weight_bytes: tensors.map(|tensor| loaded_bytes(checkpoint, &tensor) as u64).sum(),
            context_length: u32::try_from(config.context_length).unwrap_or(u32::MAX),
            num_layers: config.num_layers,
            num_kv_heads: config.attention.num_kv_heads,
            head_dim: config.attention.head_dim,
            sliding: config.sliding.as_ref().map(|sliding| SlidingSizes {
                window: u32::try_from(sliding.window).unwrap_or(u32::MAX),
                full_every: sliding.full_every,
            }),
        }
    }
}

/// Returns the bytes that a tensor takes once loaded: vectors are kept as f32, matrices packed.
fn loaded_bytes(checkpoint: &Checkpoint, tensor: &TensorView<'_>) -> usize {
    if tensor.shape.len() < 2 {
        return tensor.num_weights() * size_of::<f32>();
    }
    let quantized = checkpoint.quantization_of(tensor).map(QuantizedType::weight_type);
    let weight_type = quantized.unwrap_or(tensor.weight_type);
    tensor.packed_bytes(weight_type)
}

/// What a server allocates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryPlan {
    /// Limits of the engine.
    pub(crate) engine: EngineConfig,
    /// Shape of the KV pool.
    pub(crate) layout: KvLayout,
    /// Bytes of all weights as the kernels keep them.
    pub(crate) weight_bytes: u64,
    /// What decided the number of blocks.
    pub(crate) bound: PoolBound,
}

/// What decided the number of blocks in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolBound {
    /// The user set the number.
    NumBlocks,
    /// `--kv-cache-memory` holds no more.
    KvCacheMemory,
    /// The memory that is free holds no more.
    FreeMemory {
        /// Bytes that were free.
        available_bytes: u64,
    },
    /// More is free than a server takes unasked.
    UnaskedLimit,
    /// The system does not tell what is free.
    UnknownMemory,
    /// `max_num_seqs` sequences of `max_model_len` tokens use no more.
    MostThatCanBeUsed,
}

impl MemoryPlan {
    /// Plans for `model` with `available_bytes` free before its weights are loaded.
    ///
    /// # Errors
    /// Returns what does not fit, with the arithmetic.
    pub(crate) fn new(
        settings: &EngineSettings,
        model: ModelSizes,
        available_bytes: Option<u64>,
    ) -> Result<Self, ConfigError> {
        let layout = KvLayout {
            num_layers: model.num_layers,
            num_kv_heads: model.num_kv_heads,
            head_dim: model.head_dim,
            block_size: settings.block_size,
            dtype: settings.kv_dtype,
            sliding: SlidingPattern::None,
        };
        let (num_blocks, bound) = match settings.pool {
            PoolSize::Blocks(num_blocks) => (u64::from(num_blocks), PoolBound::NumBlocks),
            PoolSize::Bytes(budget) => blocks_in(budget, PoolBound::KvCacheMemory, &layout),
            PoolSize::FromFreeMemory => {
                let (budget, bound) = free_budget(available_bytes, model.weight_bytes);
                blocks_in(budget, bound, &layout)
            }
        };
        let max_model_len = max_model_len(settings, model, num_blocks, &layout)?;
        let usable = u64::from(settings.max_num_seqs)
            * u64::from(settings.block_size.blocks_for(max_model_len));
        let is_fixed = bound == PoolBound::NumBlocks;
        let (num_blocks, bound) = if usable < num_blocks && !is_fixed {
            (usable, PoolBound::MostThatCanBeUsed)
        } else {
            (num_blocks, bound)
        };
        let limit = u32::MAX / settings.block_size.tokens();
        let num_blocks = match u32::try_from(num_blocks) {
            Ok(num_blocks) if num_blocks <= limit => num_blocks,
            Ok(_) | Err(_) => return Err(ConfigError::TooManyBlocks { num_blocks, limit }),
        };
        let layout = KvLayout { sliding: sliding_pattern(model, max_model_len), ..layout };
        let engine = EngineConfig {
            block_size: settings.block_size,
            num_blocks,
            max_model_len,
            max_num_seqs: settings.max_num_seqs,
            max_batched_tokens: settings.max_batched_tokens,
            target_itl: settings.target_itl,
            max_queue_len: settings.max_queue_len,
            prefix_caching: settings.prefix_caching,
            block_hashing: BlockHashing::Chained,
            allocator: allocator(settings.allocator, max_model_len),
            window: window(model, &layout),
            content_hash: None,
        };
        Ok(Self { engine, layout, weight_bytes: model.weight_bytes, bound })
    }

    /// Returns the bytes of the whole pool.
    #[must_use]
    pub(crate) fn pool_bytes(&self) -> u64 {
        u64::from(self.engine.num_blocks) * self.layout.block_bytes() as u64
    }

    /// Returns the plan as lines of text, the arithmetic included.
    #[must_use]
    pub(crate) fn describe(&self) -> Vec<String> {
        let EngineConfig { num_blocks, max_model_len, max_num_seqs, .. } = self.engine;
        let block_tokens = self.layout.block_size.tokens();
        let num_tokens = u64::from(num_blocks) * u64::from(block_tokens);
        let why = match self.bound {
            PoolBound::NumBlocks => "--num-blocks".to_owned(),
            PoolBound::KvCacheMemory => "--kv-cache-memory".to_owned(),
            PoolBound::FreeMemory { available_bytes } => format!(
                "{POOL_PERCENT} % of {} free - {} weights - {} working memory",
                ByteSize(available_bytes),
                ByteSize(self.weight_bytes),
                ByteSize(WORKING_BYTES),
            ),
            PoolBound::UnaskedLimit => {
                "the most taken unasked; --kv-cache-memory sets it".to_owned()
            }
            PoolBound::UnknownMemory => "default, as the free memory is unknown".to_owned(),
            PoolBound::MostThatCanBeUsed => {
                format!("the most that {max_num_seqs} sequences of {max_model_len} tokens use")
            }
        };
        vec![
            format!("weights          {}", ByteSize(self.weight_bytes)),
            format!(
                "KV per token     {} (2 x {} layers x {} heads x {}, {})",
                ByteSize(self.layout.token_bytes() as u64),
                self.layout.num_layers,
                self.layout.num_kv_heads,
                head_arithmetic(&self.layout),
                self.layout.dtype.name(),
            ),
            format!(
                "KV pool          {} = {num_blocks} blocks x {block_tokens} tokens x {} ({why})",
                ByteSize(self.pool_bytes()),
                ByteSize(self.layout.token_bytes() as u64),
            ),
            format!("tokens at once   {num_tokens}"),
            format!("longest sequence {max_model_len} tokens (prompt and output)"),
        ]
    }
}

/// Returns how the bytes of one token's key, or value, of one head come about.
fn head_arithmetic(layout: &KvLayout) -> String {
    let (elements, scales) = (layout.dtype.element_bytes(), layout.dtype.scale_bytes());
    let dimensions = format!("{} dimensions x {elements} bytes", layout.head_dim);
    if scales == 0 { dimensions } else { format!("({dimensions} + {scales})") }
}

/// Returns the length of the longest sequence: what the user set, else the model's context as far
/// as the pool holds it.
fn max_model_len(
    settings: &EngineSettings,
    model: ModelSizes,
    num_blocks: u64,
    layout: &KvLayout,
) -> Result<u32, ConfigError> {
    let (asked, context_length) = (settings.max_model_len, model.context_length);
    if let Some(max_model_len) = asked.filter(|&asked| asked > context_length) {
        return Err(ConfigError::BeyondContext { max_model_len, context_length });
    }
    let longest = asked.unwrap_or(context_length);
    let layout = KvLayout { sliding: sliding_pattern(model, longest), ..*layout };
    let is_paged = settings.allocator == KvAllocatorArg::Paged;
    let window = window(model, &layout).filter(|_| is_paged);
    let of_one = match (u32::try_from(num_blocks), window) {
        (Ok(num_blocks), Some(window)) => {
            u64::from(window.max_blocks_of_one(num_blocks, layout.block_size))
        }
        (Ok(_) | Err(_), _) => num_blocks,
    };
    let num_slots = of_one.saturating_mul(u64::from(layout.block_size.tokens()));
    match u32::try_from(num_slots) {
        Ok(num_slots) if num_slots < longest && (asked.is_some() || num_slots == 0) => {
            let needed_blocks = layout.block_size.blocks_for(longest);
            let needed_blocks = window.map_or(needed_blocks, |window| {
                window.fewest_blocks_for_one(needed_blocks, layout.block_size)
            });
            Err(ConfigError::TooLittleMemory {
                source: match settings.pool {
                    PoolSize::FromFreeMemory => MemorySource::FreeMemory,
                    PoolSize::Bytes(_) | PoolSize::Blocks(_) => MemorySource::Flag,
                },
                num_blocks,
                max_model_len: longest,
                needed_blocks,
                block_bytes: layout.block_bytes() as u64,
            })
        }
        Ok(num_slots) => Ok(longest.min(num_slots)),
        Err(_) => Ok(longest),
    }
}

/// Returns the layers whose part of a block can go before the rest; a window that holds the longest
/// sequence hides nothing.
fn sliding_pattern(model: ModelSizes, max_model_len: u32) -> SlidingPattern {
    match model.sliding {
        Some(SlidingSizes { window, full_every }) if window < max_model_len => {
            SlidingPattern::AllButEvery(full_every)
        }
        Some(_) | None => SlidingPattern::None,
    }
}

/// Returns the window of the sliding layers of `layout`, and what they weigh beside the others.
fn window(model: ModelSizes, layout: &KvLayout) -> Option<WindowConfig> {
    let (SlidingPattern::AllButEvery(_), Some(sliding)) = (layout.sliding, model.sliding) else {
        return None;
    };
    let weight = |part| u32::try_from(layout.num_part_layers(part)).unwrap_or(u32::MAX);
    let (full_weight, window_weight) = match weight(KvPart::FullAttention) {
        0 => (1, WEIGHT_OF_WINDOW_ALONE),
        full => (full, weight(KvPart::SlidingWindow)),
    };
    Some(WindowConfig { num_tokens: sliding.window, full_weight, window_weight })
}

fn allocator(arg: KvAllocatorArg, max_model_len: u32) -> KvAllocator {
    match arg {
        KvAllocatorArg::Paged => KvAllocator::Paged,
        KvAllocatorArg::ContiguousMax => {
            KvAllocator::Contiguous(Reservation::MaxLength { max_model_len })
        }
        KvAllocatorArg::ContiguousPow2 => {
            KvAllocator::Contiguous(Reservation::NextPowerOfTwo { max_model_len })
        }
        KvAllocatorArg::ContiguousExact => KvAllocator::Contiguous(Reservation::ExactLength),
    }
}

/// Returns the bytes that the pool may take of the free memory.
fn free_budget(available_bytes: Option<u64>, weight_bytes: u64) -> (u64, PoolBound) {
    let Some(available_bytes) = available_bytes else {
        return (UNKNOWN_FREE_POOL_BYTES, PoolBound::UnknownMemory);
    };
    let left = available_bytes.saturating_sub(weight_bytes).saturating_sub(WORKING_BYTES);
    let share = left / 100 * POOL_PERCENT;
    if share > MAX_UNASKED_POOL_BYTES {
        return (MAX_UNASKED_POOL_BYTES, PoolBound::UnaskedLimit);
    }
    (share, PoolBound::FreeMemory { available_bytes })
}

fn blocks_in(budget_bytes: u64, bound: PoolBound, layout: &KvLayout) -> (u64, PoolBound) {
    (budget_bytes / layout.block_bytes() as u64, bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_core::BlockSize;
    use mini_infer_core::PrefixCaching;
    use mini_infer_engine::TargetItl;
    use mini_infer_kernels::KvDtype;

    /// A model whose blocks of 16 tokens take 360 KiB, as SmolLM2-135M's do.
    const MODEL: ModelSizes = ModelSizes {
        weight_bytes: 100 << 20,
        context_length: 8192,
        num_layers: 30,
        num_kv_heads: 3,
        head_dim: 64,
        sliding: None,
    };
    const BLOCK_BYTES: u64 = 360 << 10;

    fn settings(pool: PoolSize) -> EngineSettings {
        EngineSettings {
            max_model_len: None,
            max_num_seqs: 4,
            max_batched_tokens: 512,
            target_itl: TargetItl::Derived,
            max_queue_len: 16,
            block_size: BlockSize::DEFAULT,
            pool,
            kv_dtype: KvDtype::F16,
            prefix_caching: PrefixCaching::On,
            allocator: KvAllocatorArg::Paged,
        }
    }

    fn plan(settings: EngineSettings, available_bytes: Option<u64>) -> MemoryPlan {
        MemoryPlan::new(&settings, MODEL, available_bytes).unwrap()
    }

    #[test]
    fn a_pool_is_never_larger_than_its_limits_can_use() {
        let small = EngineSettings {
            max_num_seqs: 1,
            max_model_len: Some(1024),
            ..settings(PoolSize::FromFreeMemory)
        };
        let plan = plan(small, Some(64 << 30));
        assert_eq!(plan.engine.num_blocks, 64);
        assert_eq!(plan.bound, PoolBound::MostThatCanBeUsed);
        assert_eq!(plan.pool_bytes(), 64 * BLOCK_BYTES);
    }

    #[test]
    fn free_memory_bounds_the_pool_beside_weights_and_working_memory() {
        let free = MODEL.weight_bytes + WORKING_BYTES + (500 << 20);
        let plan = plan(settings(PoolSize::FromFreeMemory), Some(free));
        let budget = (500 << 20) / 100 * POOL_PERCENT;
        assert_eq!(u64::from(plan.engine.num_blocks), budget / BLOCK_BYTES);
        assert!(plan.pool_bytes() <= budget);
    }

    #[test]
    fn plenty_of_free_memory_is_not_taken_unasked() {
        let many = EngineSettings { max_num_seqs: 512, ..settings(PoolSize::FromFreeMemory) };
        let unasked = plan(many, Some(64 << 30));
        assert_eq!(unasked.bound, PoolBound::UnaskedLimit);
        assert!(unasked.pool_bytes() <= MAX_UNASKED_POOL_BYTES);
        let asked = EngineSettings { pool: PoolSize::Bytes(8 << 30), ..many };
        assert!(plan(asked, None).pool_bytes() > MAX_UNASKED_POOL_BYTES);
    }

    #[test]
    fn without_a_limit_the_context_shrinks_to_the_pool() {
        let plan = plan(settings(PoolSize::Bytes(10 * BLOCK_BYTES + 1)), None);
        assert_eq!((plan.engine.num_blocks, plan.engine.max_model_len), (10, 160));
    }

    #[test]
    fn a_limit_that_the_pool_cannot_hold_is_an_error_with_the_arithmetic() {
        let asked = EngineSettings {
            max_model_len: Some(8192),
            ..settings(PoolSize::Bytes(256 * BLOCK_BYTES))
        };
        let error = MemoryPlan::new(&asked, MODEL, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--max-model-len 8192 needs 512 blocks x 360 KiB = 180 MiB of KV memory, \
             --kv-cache-memory holds 256 blocks; raise it or lower --max-model-len"
        );
        let beyond = EngineSettings { max_model_len: Some(8193), ..asked };
        let error = MemoryPlan::new(&beyond, MODEL, None).unwrap_err();
        assert!(matches!(error, ConfigError::BeyondContext { .. }), "{error}");
    }

    #[test]
    fn a_pool_without_a_single_block_is_an_error() {
        for (pool, available) in [(PoolSize::Bytes(5), None), (PoolSize::FromFreeMemory, Some(5))] {
            let error = MemoryPlan::new(&settings(pool), MODEL, available).unwrap_err();
            assert!(matches!(error, ConfigError::TooLittleMemory { .. }), "{error}");
        }
    }

    #[test]
    fn where_all_layers_have_a_window_the_longest_sequence_outgrows_the_pool() {
        let sliding = Some(SlidingSizes { window: 1024, full_every: 31 });
        let model = ModelSizes { sliding, ..MODEL };
        let plan = |pool| MemoryPlan::new(&settings(pool), model, None);
        // 65 blocks whole, the other 15 as numbers of blocks that the window has passed.
        let small = plan(PoolSize::Blocks(80)).unwrap().engine;
        assert_eq!(small.max_model_len, 16 * (80 + 15 * 16));
        let window = WindowConfig {
            num_tokens: 1024,
            full_weight: 1,
            window_weight: WEIGHT_OF_WINDOW_ALONE,
        };
        assert_eq!(small.window, Some(window));
        assert_eq!(small.validate(), Ok(()));
        let asked = EngineSettings {
            max_model_len: Some(8192),
            ..settings(PoolSize::Bytes(80 * BLOCK_BYTES))
        };
        let error = MemoryPlan::new(&asked, model, None).unwrap_err().to_string();
        assert!(error.starts_with("--max-model-len 8192 needs 92 blocks x 360 KiB"), "{error}");
        let within = plan(PoolSize::Blocks(64)).unwrap().engine;
        assert_eq!((within.max_model_len, within.window), (1024, None));
    }

    #[test]
    fn block_counts_stay_within_what_slots_can_number() {
        let error =
            MemoryPlan::new(&settings(PoolSize::Blocks(u32::MAX)), MODEL, None).unwrap_err();
        assert!(matches!(error, ConfigError::TooManyBlocks { .. }), "{error}");
    }

    #[test]
    fn every_plan_is_a_valid_engine_configuration() {
        let pools = [
            PoolSize::FromFreeMemory,
            PoolSize::Bytes(BLOCK_BYTES),
            PoolSize::Bytes(1 << 34),
            PoolSize::Blocks(1),
            PoolSize::Blocks(100_000),
        ];
        for pool in pools {
            for available in [None, Some(1 << 30), Some(1 << 40)] {
                let plan = plan(settings(pool), available);
                assert_eq!(plan.engine.validate(), Ok(()), "{pool:?} {available:?}");
            }
        }
    }
}
