//! Paged KV memory bookkeeping: which block holds which tokens of which sequence.
//!
//! Owns the block pool, block tables, reference counts, the prefix tree, eviction and the
//! accounting, all as ids and numbers; the bytes belong to whoever runs the model. Pure and
//! synchronous, one owner, nothing of the engine assumed. Paging follows vLLM's PagedAttention
//! (Kwon et al., SOSP 2023) and the block pool of its version 1 engine; hits that count tokens, the
//! tree of blocks that finds them and keeping equal KV once are our own.
//!
//! Start with [`KvMemory`], what a scheduler sees, and [`KvManager`], which pages it; [`BlockPool`]
//! lies beneath. [`ContiguousMemory`] is what paging is compared with.
#![forbid(unsafe_code)]

mod accounting;
mod block_contents;
mod block_hashes;
mod block_pool;
mod block_table;
mod buddy;
mod contiguous;
mod kv_config;
mod kv_manager;
mod kv_memory;
mod pool_counts;
mod prefix_match;
mod prefix_roots;
mod prefix_tree;
mod reclaimed;
mod release_order;
mod sibling_trie;
mod sliding_window;

pub use accounting::{BlockInfo, KvStats, KvWaste};
pub use block_hashes::BlockHashing;
pub use block_pool::{BlockPool, BlockState, Retention};
pub use block_table::{BlockTable, SequenceShape, SequenceStart};
pub use contiguous::{ContiguousConfig, ContiguousMemory, Reservation};
pub use kv_config::{KvConfig, WindowConfig};
pub use kv_manager::KvManager;
pub use kv_memory::{KvMemory, OutOfBlocks};
pub use pool_counts::{PoolCounts, PoolMemory, Room};
pub use prefix_match::PrefixMatch;
pub use reclaimed::Reclaimed;
