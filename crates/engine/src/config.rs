//! The numbers that bound an engine, validated together.

use crate::TargetItl;
use mini_infer_core::{BlockSize, ContentHash, PrefixCaching};
use mini_infer_kv::{
    BlockHashing, ContiguousConfig, ContiguousMemory, KvConfig, KvManager, KvMemory, Reservation,
    WindowConfig,
};
use std::fmt;

/// The kind of KV memory that sequences live in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvAllocator {
    /// Blocks given as tokens come, anywhere, and shared where prefixes are equal.
    #[default]
    Paged,
    /// One run of blocks for each sequence, reserved when it starts: for comparison.
    Contiguous(Reservation),
}

/// The limits of one engine.
#[derive(Clone, Copy, Debug)]
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
    /// What a step's time is kept within while sequences decode.
    pub target_itl: TargetItl,
    /// Most requests that wait for their first step; an eighth more where those are of clients that
    /// had none.
    pub max_queue_len: u32,
    /// Whether the KV of earlier requests is kept and matched.
    pub prefix_caching: PrefixCaching,
    /// How block hashes are made; [`BlockHashing::AllEqual`] is for tests.
    pub block_hashing: BlockHashing,
    /// The kind of KV memory.
    pub allocator: KvAllocator,
    /// The layers with a sliding window, where the model has some.
    pub window: Option<WindowConfig>,
    /// Names the content of full blocks, where the executor has a tier.
    pub content_hash: Option<ContentHash>,
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
        let of_window = self.window.map(|window| {
            [
                ("window.num_tokens", window.num_tokens, 1),
                ("window.full_weight", window.full_weight, 1),
                ("window.window_weight", window.window_weight, 1),
            ]
        });
        for (field, got, least) in limits.into_iter().chain(of_window.into_iter().flatten()) {
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
        let limit = u32::MAX / block_size;
        if self.num_block_ids() > u64::from(limit) {
            return Err(ConfigError::TooManyBlocks { num_blocks: self.num_blocks, limit });
        }
        if self.num_slots_of_one() < self.max_model_len {
            return Err(ConfigError::PoolTooSmall {
                max_model_len: self.max_model_len,
                num_blocks: self.num_blocks,
                block_size,
                needed_blocks: self.num_blocks_of_longest(),
            });
        }
        Ok(())
    }

    /// Creates the KV memory that the configuration asks for.
    pub(crate) fn kv_memory(&self) -> Box<dyn KvMemory> {
        match self.allocator {
            KvAllocator::Paged => Box::new(KvManager::new(KvConfig {
                block_size: self.block_size,
                num_blocks: self.num_blocks,
                prefix_caching: self.prefix_caching,
                block_hashing: self.block_hashing,
                window: self.window,
                content_hash: self.content_hash,
            })),
            KvAllocator::Contiguous(reservation) => {
                Box::new(ContiguousMemory::new(self.contiguous(reservation)))
            }
        }
    }

    fn contiguous(&self, reservation: Reservation) -> ContiguousConfig {
        let Self { block_size, num_blocks, .. } = *self;
        ContiguousConfig { block_size, num_blocks, reservation }
    }

    /// Returns for how many whole blocks the longest sequence needs memory.
    fn num_blocks_of_longest(&self) -> u32 {
        let num_blocks = self.block_size.blocks_for(self.max_model_len);
        match (self.allocator, self.window) {
            (KvAllocator::Paged, Some(window)) => {
                window.fewest_blocks_for_one(num_blocks, self.block_size)
            }
            (KvAllocator::Paged | KvAllocator::Contiguous(_), _) => num_blocks,
        }
    }

    /// Returns the most tokens that one sequence has room for in an empty memory.
    fn num_slots_of_one(&self) -> u32 {
        match self.allocator {
            KvAllocator::Paged => {
                let num_blocks = self.window.map_or(self.num_blocks, |window| {
                    window.max_blocks_of_one(self.num_blocks, self.block_size)
                });
                num_blocks.saturating_mul(self.block_size.tokens())
            }
            KvAllocator::Contiguous(reservation) => {
                self.contiguous(reservation).num_slots_of_longest_run()
            }
        }
    }

    /// Returns how many block ids there may be, so how many blocks the executor must have places for:
    /// where window parts come and go by themselves, more than there are whole blocks.
    ///
    /// # Panics
    /// When a weight of the window is 0, which is not valid.
    #[must_use]
    pub fn num_block_ids(&self) -> u64 {
        let num_blocks = u64::from(self.num_blocks);
        self.window.map_or(num_blocks, |window| {
            let WindowConfig { full_weight, window_weight, .. } = window;
            num_blocks * (u64::from(full_weight) + u64::from(window_weight))
                / u64::from(full_weight)
        })
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
            target_itl: TargetItl::Off,
            max_queue_len: 1,
            prefix_caching: PrefixCaching::On,
            block_hashing: BlockHashing::Chained,
            allocator: KvAllocator::Paged,
            window: None,
            content_hash: None,
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
    fn contiguous_memory_must_hold_the_longest_sequence_in_one_piece() {
        let allocator = KvAllocator::Contiguous(Reservation::ExactLength);
        let config = EngineConfig { allocator, num_blocks: 7, max_model_len: 64, ..config() };
        assert_eq!(config.validate(), Ok(()));
        // Of 7 blocks, no more than 4 are in one piece.
        let error = EngineConfig { max_model_len: 65, ..config }.validate().unwrap_err();
        assert!(matches!(error, ConfigError::PoolTooSmall { .. }));
    }

    #[test]
    fn a_sequence_may_be_longer_than_the_memory_of_whole_blocks_where_layers_have_a_window() {
        let window = WindowConfig { num_tokens: 16, full_weight: 1, window_weight: 16 };
        // Two blocks are whole, and instead of the others there are 17 that the window has passed.
        let config = EngineConfig { window: Some(window), max_model_len: 36 * 16, ..config() };
        assert_eq!(config.validate(), Ok(()));
        let error = EngineConfig { max_model_len: 36 * 16 + 1, ..config }.validate().unwrap_err();
        assert!(matches!(error, ConfigError::PoolTooSmall { needed_blocks: 5, .. }), "{error}");
    }

    #[test]
    fn ids_of_blocks_without_window_parts_must_be_addressable_too() {
        let window = WindowConfig { num_tokens: 512, full_weight: 1, window_weight: 3 };
        let config = EngineConfig { num_blocks: 1 << 26, window: Some(window), ..config() };
        assert_eq!(config.num_block_ids(), 1 << 28);
        assert!(matches!(config.validate(), Err(ConfigError::TooManyBlocks { .. })));
        assert_eq!(EngineConfig { window: None, ..config }.validate(), Ok(()));
        let weightless = WindowConfig { full_weight: 0, ..window };
        let error = EngineConfig { window: Some(weightless), ..config }.validate().unwrap_err();
        assert!(matches!(error, ConfigError::TooSmall { field: "window.full_weight", .. }));
    }

    #[test]
    fn slots_must_be_addressable() {
        let error = EngineConfig { num_blocks: 1 << 28, ..config() }.validate().unwrap_err();
        assert_eq!(error, ConfigError::TooManyBlocks { num_blocks: 1 << 28, limit: (1 << 28) - 1 });
    }
}
