//! What a run is told: the machine, its memory, the limits of the engine, and the load.

use crate::SimulateError;
use crate::allocator::Allocator;
use crate::executor::MachineSpeed;
use crate::latency::LatencyLimits;
use mini_infer_engine::{BlockHashing, EngineConfig, KvAllocator, TargetItl};
use mini_infer_kv::{ContiguousConfig, Reservation};

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// All are there from the start: a saturated queue.
    Backlog,
    /// At the times of the trace, or that many times as fast.
    Arrivals {
        /// 2 halves the time between arrivals.
        rate_scale: f64,
    },
    /// So that always this many are in the system, until none is left to come.
    Concurrent {
        /// Requests that wait or run.
        num_requests: u32,
    },
}

/// What a run is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// When requests come.
    pub load: Load,
    /// Size of the KV memory, in tokens; what does not fill a block is left over.
    pub kv_tokens: u64,
    /// Most tokens of one sequence, prompt and output together.
    pub max_model_len: u32,
    /// Most sequences that run at once.
    pub max_num_seqs: u32,
    /// Token budget of one step.
    pub max_batched_tokens: u32,
    /// How long steps take.
    pub speed: MachineSpeed,
    /// What a request has to meet to count for goodput.
    pub limits: LatencyLimits,
}

impl Settings {
    /// Returns the size of the KV memory where none is asked for, in tokens: what the paper that
    /// introduced paging had (Kwon et al., SOSP 2023; 12 GiB for OPT-13B, whose tokens take
    /// 800 KiB each), or eight of the longest sequences where they are longer than its 2,048.
    #[must_use]
    pub fn default_kv_tokens(max_model_len: u32) -> u64 {
        if max_model_len <= 2048 { 15_728 } else { 8 * u64::from(max_model_len) }
    }

    /// Returns the token budget of a step where none is asked for: that of `serve` when the machine
    /// has a speed, for then a step must stay short; otherwise so much that memory is what limits
    /// (the longest prompts at hand have 190,000 tokens, and longer ones change nothing).
    #[must_use]
    pub fn default_max_batched_tokens(speed: &MachineSpeed) -> u32 {
        if speed.prefill_rate.is_some() { 512 } else { 65_536 }
    }

    /// Checks what does not depend on the allocator.
    ///
    /// # Errors
    /// Returns the first number that is out of its range.
    pub fn validate(&self) -> Result<(), SimulateError> {
        self.speed.validate()?;
        if let Load::Arrivals { rate_scale } = self.load
            && !(1e-6..=1e6).contains(&rate_scale)
        {
            let expected = "between 0.000001 and 1000000".to_owned();
            let got = rate_scale.to_string();
            return Err(SimulateError::OutOfRange { what: "--rate-scale", got, expected });
        }
        Ok(())
    }

    /// Returns the engine's configuration for one allocator.
    pub(crate) fn engine_config(
        &self,
        allocator: Allocator,
    ) -> Result<EngineConfig, SimulateError> {
        let block_size = allocator.block_size();
        let num_blocks = self.kv_tokens / u64::from(block_size.tokens());
        let num_blocks = u32::try_from(num_blocks).unwrap_or(u32::MAX);
        let max_model_len = self.max_model_len;
        let reservation = match allocator {
            Allocator::ContiguousMax => Some(Reservation::MaxLength { max_model_len }),
            Allocator::ContiguousPow2 => Some(Reservation::NextPowerOfTwo { max_model_len }),
            Allocator::ContiguousOracle => Some(Reservation::ExactLength),
            Allocator::Paged { .. } => None,
        };
        if let Some(reservation) = reservation {
            let config = ContiguousConfig { block_size, num_blocks, reservation };
            if config.num_slots_of_longest_run() < max_model_len {
                return Err(SimulateError::MemoryTooSmall {
                    allocator,
                    kv_tokens: self.kv_tokens,
                    least: u64::from(max_model_len.div_ceil(block_size.tokens()))
                        .next_power_of_two()
                        * u64::from(block_size.tokens()),
                });
            }
        } else if self.kv_tokens < u64::from(max_model_len) {
            let least = u64::from(block_size.blocks_for(max_model_len) * block_size.tokens());
            let kv_tokens = self.kv_tokens;
            return Err(SimulateError::MemoryTooSmall { allocator, kv_tokens, least });
        }
        Ok(EngineConfig {
            block_size,
            num_blocks,
            max_model_len,
            max_num_seqs: self.max_num_seqs,
            max_batched_tokens: self.max_batched_tokens,
            target_itl: TargetItl::Off,
            // The driver keeps the queue short.
            max_queue_len: u32::MAX,
            prefix_caching: allocator.prefix_caching(),
            block_hashing: BlockHashing::Chained,
            allocator: reservation.map_or(KvAllocator::Paged, KvAllocator::Contiguous),
            window: None,
            content_hash: None,
        })
    }
}
