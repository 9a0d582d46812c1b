//! The numbers of one server, validated together before anything is loaded.
//!
//! [`EngineSettings`] holds what the command line alone decides; `memory_plan` brings the model
//! and the machine in. Every error names the flag to change and shows the arithmetic.

use crate::byte_size::ByteSize;
use crate::cli::{EngineArgs, KvAllocatorArg, KvArgs};
use mini_infer_core::{BlockSize, BlockSizeError, PrefixCaching};
use mini_infer_engine::TargetItl;
use mini_infer_kernels::KvDtype;
use std::fmt;

/// Engine flags that fit together, as far as they do not depend on the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineSettings {
    /// Longest prompt and output together, if the user set it.
    pub(crate) max_model_len: Option<u32>,
    /// Most sequences that run at once.
    pub(crate) max_num_seqs: u32,
    /// Most tokens of one step.
    pub(crate) max_batched_tokens: u32,
    /// `--target-itl-ms`.
    pub(crate) target_itl: TargetItl,
    /// Most requests that wait.
    pub(crate) max_queue_len: u32,
    /// Tokens per block.
    pub(crate) block_size: BlockSize,
    /// How the pool is sized.
    pub(crate) pool: PoolSize,
    /// How keys and values are stored.
    pub(crate) kv_dtype: KvDtype,
    /// Whether the KV of earlier requests is kept.
    pub(crate) prefix_caching: PrefixCaching,
    /// How sequences get their KV memory.
    pub(crate) allocator: KvAllocatorArg,
}

/// How the KV pool is sized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolSize {
    /// From the memory that is free.
    FromFreeMemory,
    /// `--kv-cache-memory`: at most this many bytes.
    Bytes(u64),
    /// `--num-blocks`: exactly this many blocks.
    Blocks(u32),
}

impl EngineSettings {
    /// Checks the flags against each other.
    ///
    /// # Errors
    /// Returns the first rule that does not hold.
    pub(crate) fn new(args: &EngineArgs, kv: &KvArgs) -> Result<Self, ConfigError> {
        let block_size = BlockSize::new(kv.block_size)?;
        let (budget, max_num_seqs) = (args.max_num_batched_tokens, args.max_num_seqs);
        if budget < max_num_seqs {
            return Err(ConfigError::BudgetBelowSequences { budget, max_num_seqs });
        }
        let pool = match (kv.num_blocks, kv.kv_cache_memory) {
            (Some(num_blocks), _) => PoolSize::Blocks(num_blocks),
            (None, Some(ByteSize(num_bytes))) => PoolSize::Bytes(num_bytes),
            (None, None) => PoolSize::FromFreeMemory,
        };
        if let (PoolSize::Blocks(num_blocks), Some(max_model_len)) = (pool, args.max_model_len) {
            let needed_blocks = block_size.blocks_for(max_model_len);
            if num_blocks < needed_blocks {
                return Err(ConfigError::TooFewBlocks {
                    max_model_len,
                    needed_blocks,
                    block_size: block_size.tokens(),
                    num_blocks,
                });
            }
        }
        Ok(Self {
            max_model_len: args.max_model_len,
            max_num_seqs,
            max_batched_tokens: budget,
            target_itl: args.target_itl_ms.0,
            max_queue_len: args.max_queue_len,
            block_size,
            pool,
            kv_dtype: kv.kv_cache_dtype.into(),
            prefix_caching: if kv.no_prefix_caching {
                PrefixCaching::Off
            } else {
                PrefixCaching::On
            },
            allocator: kv.kv_allocator,
        })
    }
}

/// Flags that do not fit together, the model, or the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConfigError {
    /// The block size is not supported.
    BlockSize(BlockSizeError),
    /// A step could not give each running sequence one token.
    BudgetBelowSequences { budget: u32, max_num_seqs: u32 },
    /// `--num-blocks` does not hold the longest sequence.
    TooFewBlocks { max_model_len: u32, needed_blocks: u32, block_size: u32, num_blocks: u32 },
    /// `--max-model-len` is beyond what the model was made for.
    BeyondContext { max_model_len: u32, context_length: u32 },
    /// The KV memory does not hold the longest sequence.
    TooLittleMemory {
        source: MemorySource,
        num_blocks: u64,
        max_model_len: u32,
        needed_blocks: u32,
        block_bytes: u64,
    },
    /// More blocks than can be numbered.
    TooManyBlocks { num_blocks: u64, limit: u32 },
}

/// Where the bytes for the KV pool come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemorySource {
    /// `--kv-cache-memory`.
    Flag,
    /// What is free beside the weights.
    FreeMemory,
}

impl From<BlockSizeError> for ConfigError {
    fn from(error: BlockSizeError) -> Self {
        Self::BlockSize(error)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize(error) => write!(f, "--block-size: {error}"),
            Self::BudgetBelowSequences { budget, max_num_seqs } => write!(
                f,
                "--max-num-seqs {max_num_seqs} needs {max_num_seqs} tokens in a step, one for each \
                 running sequence, --max-num-batched-tokens gives {budget}; raise it or lower \
                 --max-num-seqs"
            ),
            Self::TooFewBlocks { max_model_len, needed_blocks, block_size, num_blocks } => write!(
                f,
                "--max-model-len {max_model_len} needs {needed_blocks} blocks of {block_size} \
                 tokens, --num-blocks gives {num_blocks}"
            ),
            Self::BeyondContext { max_model_len, context_length } => write!(
                f,
                "--max-model-len {max_model_len} is beyond the model's context of \
                 {context_length} tokens"
            ),
            Self::TooLittleMemory {
                source,
                num_blocks,
                max_model_len,
                needed_blocks,
                block_bytes,
            } => {
                let (given, way_out) = match source {
                    MemorySource::Flag => ("--kv-cache-memory", "raise it or"),
                    MemorySource::FreeMemory => ("the free memory", "free some or"),
                };
                write!(
                    f,
                    "--max-model-len {max_model_len} needs {needed_blocks} blocks x {} = {} of KV \
                     memory, {given} holds {num_blocks} blocks; {way_out} lower --max-model-len",
                    ByteSize(*block_bytes),
                    ByteSize(u64::from(*needed_blocks) * block_bytes),
                )
            }
            Self::TooManyBlocks { num_blocks, limit } => write!(
                f,
                "{num_blocks} KV blocks are more than the {limit} that can be numbered; lower \
                 --num-blocks or --kv-cache-memory, or raise --block-size"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn settings(flags: &[&str]) -> Result<EngineSettings, ConfigError> {
        let arguments = ["mini-infer", "serve"].iter().chain(flags);
        let Command::Serve(serve) = Cli::parse_from(arguments).command else {
            panic!("`serve` was asked for");
        };
        EngineSettings::new(&serve.engine, &serve.kv)
    }

    #[test]
    fn the_longest_sequence_must_fit_the_blocks() {
        let error = settings(&["--max-model-len", "8192", "--num-blocks", "256"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--max-model-len 8192 needs 512 blocks of 16 tokens, --num-blocks gives 256"
        );
        assert!(settings(&["--max-model-len", "4096", "--num-blocks", "256"]).is_ok());
    }

    #[test]
    fn a_step_must_hold_a_token_of_every_sequence() {
        let error =
            settings(&["--max-num-seqs", "32", "--max-num-batched-tokens", "16"]).unwrap_err();
        assert_eq!(error, ConfigError::BudgetBelowSequences { budget: 16, max_num_seqs: 32 });
    }

    #[test]
    fn only_supported_block_sizes_pass() {
        let error = settings(&["--block-size", "24"]).unwrap_err();
        assert!(error.to_string().starts_with("--block-size: "), "{error}");
        assert_eq!(settings(&["--block-size", "64"]).unwrap().block_size.tokens(), 64);
    }

    #[test]
    fn the_defaults_fit_together() {
        assert_eq!(settings(&[]).unwrap().pool, PoolSize::FromFreeMemory);
    }
}
