//! Paged KV memory bookkeeping: which block holds which tokens of which sequence.
//!
//! Owns the block pool, block tables, reference counts, the prefix index, eviction and the
//! accounting, all as ids and numbers; the bytes belong to whoever runs the model. Pure and
//! synchronous, one owner, nothing of the engine assumed. Paging follows vLLM's PagedAttention
//! (Kwon et al., SOSP 2023) and the block pool of its version 1 engine; comparing tokens on a hit
//! and the identity of prefixes are our own.
//!
//! Start with [`KvManager`], the view of one sequence; [`BlockPool`] lies beneath it.
#![forbid(unsafe_code)]

mod accounting;
mod block_pool;
mod free_list;
mod kv_manager;
mod prefix_index;

pub use accounting::{KvStats, KvWaste};
pub use block_pool::{Allocation, BlockPool, BlockState, PoolCounts, Retention};
pub use kv_manager::{BlockTable, KvConfig, KvManager, OutOfBlocks, PrefixMatch};
pub use prefix_index::BlockHashing;
