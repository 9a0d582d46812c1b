//! What tiers hold and did, readable from other threads.
//!
//! Whoever changes a number holds the lock for that long only, never while bytes are moved, so
//! readers wait for no device and delay nobody.

use std::fmt;

use crate::file_ledger::FileLedger;
use crate::shared::Shared;

/// What the tiers hold and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// The tier in host memory, where there is one.
    pub host: Option<HostStats>,
    /// The tier in files, where there is one.
    pub files: Option<FileStats>,
}

/// What the tier in host memory holds, and did since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Bytes that it may take.
    pub capacity_bytes: u64,
    /// Bytes that its blocks take.
    pub held_bytes: u64,
    /// Blocks that it holds.
    pub num_held_blocks: u64,
    /// Blocks saved.
    pub num_saved_blocks: u64,
    /// Blocks restored.
    pub num_restored_blocks: u64,
    /// Blocks evicted for others.
    pub num_evicted_blocks: u64,
}

/// What the tier in files holds, and did since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStats {
    /// Bytes of disk that it may take.
    pub capacity_bytes: u64,
    /// Bytes of disk that its files take, those of other models in the same folder included.
    pub held_bytes: u64,
    /// Files that it holds, those of other models in the same folder included.
    pub num_held_blocks: u64,
    /// Bytes that wait to be written.
    pub queued_bytes: u64,
    /// Blocks that wait to be written.
    pub num_queued_blocks: u64,
    /// Blocks written.
    pub num_saved_blocks: u64,
    /// Blocks restored, from a file or from among those that wait.
    pub num_restored_blocks: u64,
    /// Files removed for others.
    pub num_evicted_blocks: u64,
    /// Blocks not written because too many waited.
    pub num_dropped_queue_full: u64,
    /// Blocks not written because writing paused after failures.
    pub num_dropped_paused: u64,
    /// Blocks not written because one alone is above the capacity.
    pub num_dropped_too_large: u64,
    /// Blocks not written because the server ended first.
    pub num_dropped_closing: u64,
    /// Files refused because bytes are missing or too many.
    pub num_refused_length: u64,
    /// Files refused because their bytes are not those that were written.
    pub num_refused_damaged: u64,
    /// Files refused because another model, layout, build or version of the format wrote them.
    pub num_refused_foreign: u64,
    /// Files that somebody else removed.
    pub num_missing_files: u64,
    /// Files that the system could not read.
    pub num_read_errors: u64,
    /// Files that the system could not write.
    pub num_write_errors: u64,
    /// Files that the system could not remove.
    pub num_remove_errors: u64,
    /// Whether writing pauses after failures.
    pub is_writing_paused: bool,
}

/// Reads the statistics of tiers from any thread; clones read the same tiers.
#[derive(Clone, Default)]
pub struct TierMonitor {
    pub(crate) host: Option<Shared<HostStats>>,
    pub(crate) files: Option<Shared<FileLedger>>,
}

impl TierMonitor {
    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        TierStats {
            host: self.host.as_ref().map(|stats| *stats.lock()),
            files: self.files.as_ref().map(|ledger| ledger.lock().stats()),
        }
    }
}

impl fmt::Debug for TierMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TierMonitor").field(&self.stats()).finish()
    }
}
