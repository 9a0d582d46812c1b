//! Places for KV blocks outside the pool.
//!
//! An evicted block's bytes are kept in host memory and in files, under keys that name their
//! content, so that the same prefix can be restored instead of computed: after an eviction, after a
//! preemption, and after a restart.
//!
//! The rule of the crate: a restore gives exactly the bytes that were saved under the key by the
//! same model in the same build, or it says no. Whatever goes wrong costs a block, never an answer
//! and never a step's time. Deliberately absent: what is in a block, and which ones to save.
#![forbid(unsafe_code)]

mod content_key;
mod identity;

pub use content_key::content_key;
pub use identity::TierIdentity;
