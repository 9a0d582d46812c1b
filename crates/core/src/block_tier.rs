//! A place for the bytes of evicted blocks: host memory, files, or one behind the other.

use crate::BlockKey;
use std::time::Duration;

/// Keeps the bytes of full blocks under their keys.
///
/// A tier is a help and never a duty: it may decline what it is given and lose what it has. What
/// it must never do is restore other bytes than those that were saved under the key. Calls come
/// from the thread that runs steps, so none may wait for a device longer than a restore takes.
pub trait BlockTier: Send {
    /// Tells whether the tier believes that it holds `key`; cheap, and no promise.
    fn holds(&self, key: &BlockKey) -> bool;

    /// Offers `bytes`, a whole block, to be kept under `key`; they are copied before the call
    /// returns, or declined.
    fn save(&mut self, key: &BlockKey, bytes: &[u8]);

    /// Fills `bytes` with what was saved under `key`; `false`, with `bytes` undefined, when it is
    /// gone, damaged or of another length.
    fn restore(&mut self, key: &BlockKey, bytes: &mut [u8]) -> bool;

    /// Returns how long one [`Self::restore`] is expected to take.
    fn restore_time(&self) -> Duration;
}
