//! The numbers that bound an engine, validated together.

use mini_infer_core::{BlockSize, PrefixCaching};
use mini_infer_kv::{BlockHashing, KvConfig};
use std::fmt;

/// The limits of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Tokens per KV block.
    pub block_size: BlockSize,
    /// Blocks in the KV pool.
    pub num_blocks: u32,
    /// Most tokens of one sequence, prompt and output together.
    pub max_model_len: u32,
    /// Most sequences that run at once.
    pub max_num_seqs: u32,
    /// Token budget of one step.
    pub max_batched_tokens: u32,
    /// Most requests that wait for their first step.
    pub max_queue_len: u32,
    /// Whether the KV of earlier requests is kept and matched.
    pub prefix_caching: PrefixCaching,
    /// How block hashes are made; [`BlockHashing::AllEqual`] is for tests.
    pub block_hashing: BlockHashing,
}

impl EngineConfig {
    /// Checks that the numbers fit together: then every accepted request can run to its end alone.
    ///
    /// # Errors
    /// Returns the first rule that does not hold.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let limits = [
            ("max_model_len", self.max_model_len, 2),
            ("max_num_seqs", self.max_num_seqs, 1),
            ("max_queue_len", self.max_queue_len, 1),
        ];
        for (field, got, least) in limits {
            if got < least {
                return Err(ConfigError::TooSmall { field, got, least });
            }
        }
        if self.max_batched_tokens < self.max_num_seqs {
            return Err(ConfigError::BudgetBelowSequences {
                max_batched_tokens: self.max_batched_tokens,
                max_num_seqs: self.max_num_seqs,
            });
        }
        let block_size = self.block_size.tokens();
        let Some(num_slots) = self.num_blocks.checked_mul(block_size) else {
            return Err(ConfigError::TooManyBlocks {
                num_blocks: self.num_blocks,
                limit: u32::MAX / block_size,
            });
        };
        if num_slots < self.max_model_len {
            return Err(ConfigError::PoolTooSmall {
                max_model_len: self.max_model_len,
                num_blocks: self.num_blocks,
                block_size,
                needed_blocks: self.block_size.blocks_for(self.max_model_len),
            });
        }
        Ok(())
    }

    /// Returns the part of the configuration that sizes the KV bookkeeping.
    pub(crate) fn kv(&self) -> KvConfig {
        KvConfig {
            block_size: self.block_size,
            num_blocks: self.num_blocks,
            prefix_caching: self.prefix_caching,
            block_hashing: self.block_hashing,
            window: None,
            content_hash: None,
        }
    }
}

/// Numbers of an [`EngineConfig`] that do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A limit is too small to serve anything.
    TooSmall {
        /// Name of the limit.
        field: &'static str,
        /// The value given.
        got: u32,
        /// The smallest that works.
        least: u32,
    },
    /// A step could not give every running sequence its one token.
    BudgetBelowSequences {
        /// The token budget given.
        max_batched_tokens: u32,
        /// The most running sequences given.
        max_num_seqs: u32,
    },
    /// The longest sequence would not fit into the pool.
    PoolTooSmall {
        /// The longest sequence, in tokens.
        max_model_len: u32,
        /// The blocks given.
        num_blocks: u32,
        /// Tokens per block.
        block_size: u32,
        /// The fewest blocks that work.
        needed_blocks: u32,
    },
    /// Slots are numbered with 32 bits.
    TooManyBlocks {
        /// The blocks given.
        num_blocks: u32,
        /// The most blocks of this size.
        limit: u32,
    },
    /// The executor gives rows without logits.
    EmptyVocabulary,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooSmall { field, got, least } => {
                write!(f, "{field} is {got}, but must be at least {least}")
            }
            Self::BudgetBelowSequences { max_batched_tokens, max_num_seqs } => write!(
                f,
                "max_batched_tokens is {max_batched_tokens}, but max_num_seqs = {max_num_seqs} \
                 running sequences need one token each per step"
            ),
            Self::PoolTooSmall { max_model_len, num_blocks, block_size, needed_blocks } => write!(
                f,
                "max_model_len = {max_model_len} tokens need {needed_blocks} KV blocks of \
                 {block_size} tokens, but the pool has {num_blocks}"
            ),
            Self::TooManyBlocks { num_blocks, limit } => {
                write!(f, "num_blocks is {num_blocks}, but at most {limit} can be addressed")
            }
            Self::EmptyVocabulary => write!(f, "the model's vocabulary is empty"),
        }
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EngineConfig {
        EngineConfig {
            block_size: BlockSize::DEFAULT,
            num_blocks: 4,
            max_model_len: 64,
            max_num_seqs: 8,
            max_batched_tokens: 8,
            max_queue_len: 1,
            prefix_caching: PrefixCaching::On,
            block_hashing: BlockHashing::Chained,
        }
    }

    #[test]
    fn the_longest_sequence_must_fit_into_the_pool() {
        assert_eq!(config().validate(), Ok(()));
        let error = EngineConfig { max_model_len: 65, ..config() }.validate().unwrap_err();
        assert_eq!(
            error.to_string(),
            "max_model_len = 65 tokens need 5 KV blocks of 16 tokens, but the pool has 4"
        );
    }

    #[test]
    fn every_running_sequence_must_get_its_token_in_a_step() {
        let error = EngineConfig { max_num_seqs: 9, ..config() }.validate().unwrap_err();
        assert!(matches!(error, ConfigError::BudgetBelowSequences { .. }));
    }

    #[test]
    fn slots_must_be_addressable() {
        let error = EngineConfig { num_blocks: 1 << 28, ..config() }.validate().unwrap_err();
        assert_eq!(error, ConfigError::TooManyBlocks { num_blocks: 1 << 28, limit: (1 << 28) - 1 });
    }
}
