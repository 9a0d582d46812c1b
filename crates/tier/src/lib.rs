//! Places for KV blocks outside the pool.
//!
//! An evicted block's bytes are kept in host memory ([`HostTier`]) and in files ([`FileTier`]),
//! under keys that name their content, so that the same prefix can be restored instead of computed:
//! after an eviction, after a preemption, and after a restart. [`TierStack`] is both as one.
//!
//! The rule of the crate: a restore gives exactly the bytes that were saved under the key by the
//! same model in the same build, or it says no. Whatever goes wrong costs a block, never an answer
//! and never a step's time. Deliberately absent: what is in a block, and which ones to save.
#![forbid(unsafe_code)]

mod block_copy;
mod content_key;
mod disk_storage;
mod error;
#[cfg(test)]
mod fake_storage;
mod file_format;
mod file_ledger;
mod file_name;
mod file_tier;
mod file_writer;
mod footprint;
mod host_tier;
mod identity;
mod lru_map;
mod restore_time;
mod shared;
mod stats;
mod storage;
mod tier_stack;
mod write_health;

pub use content_key::content_key;
pub use error::TierError;
pub use file_tier::{FileTier, FileTierConfig};
pub use footprint::footprint;
pub use host_tier::HostTier;
pub use identity::TierIdentity;
pub use stats::{FileStats, HostStats, TierMonitor, TierStats};
pub use tier_stack::TierStack;
