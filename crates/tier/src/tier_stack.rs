//! Host memory first, then files, as one tier.
//!
//! A block is saved to both at once, in one copy that both share. So it is in a file even if the
//! process is killed soon after, and evicting it from host memory moves no bytes; if the files
//! could not take it at first, they are offered it again then. Letting blocks fall from host memory
//! to files only when evicted would write less, and lose at each restart what is used most. A block
//! that is restored from its file is not put into host memory: it is in the pool again, and is
//! saved when it is evicted from there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mini_infer_core::{BlockKey, BlockTier};

use crate::file_tier::FileTier;
use crate::host_tier::HostTier;
use crate::restore_time::RestoreTime;
use crate::stats::TierMonitor;

/// Host memory first, then files; either may be absent.
#[derive(Debug)]
pub struct TierStack {
    host: Option<HostTier>,
    files: Option<FileTier>,
    /// Over restores from both: what the next one will take is not known before it is looked up.
    restore_time: RestoreTime,
}

impl TierStack {
    /// Stacks the tiers that there are.
    #[must_use]
    pub fn new(host: Option<HostTier>, files: Option<FileTier>) -> Self {
        Self { host, files, restore_time: RestoreTime::default() }
    }

    /// Returns a reader of the statistics for other threads.
    #[must_use]
    pub fn monitor(&self) -> TierMonitor {
        TierMonitor {
            host: self.host.as_ref().map(HostTier::shared_stats),
            files: self.files.as_ref().map(FileTier::shared_ledger),
        }
    }

    /// Waits until all saved blocks are in files, for at most `patience`; tells whether they are.
    pub fn flush(&self, patience: Duration) -> bool {
        self.files.as_ref().is_none_or(|files| files.flush(patience))
    }
}

impl BlockTier for TierStack {
    fn holds(&self, key: &BlockKey) -> bool {
        self.host.as_ref().is_some_and(|host| host.holds(key))
            || self.files.as_ref().is_some_and(|files| files.holds(key))
    }

    fn save(&mut self, key: &BlockKey, bytes: &[u8]) {
        let mut files = self.files.as_mut();
        let kept = self.host.as_mut().and_then(|host| {
            host.keep(key, bytes, |evicted_key: &BlockKey, evicted: &Arc<[u8]>| {
                if let Some(files) = &mut files {
                    files.save_shared(evicted_key, evicted);
                }
            })
        });
        match (files, kept) {
            (Some(files), Some(kept)) => files.save_shared(key, &kept),
            (Some(files), None) => files.save(key, bytes),
            (None, _) => {}
        }
    }

    fn restore(&mut self, key: &BlockKey, bytes: &mut [u8]) -> bool {
        let start = Instant::now();
        let restored = self.host.as_mut().is_some_and(|host| host.restore(key, bytes))
            || self.files.as_mut().is_some_and(|files| files.restore(key, bytes));
        let end = Instant::now();
        if restored {
            self.restore_time.record(start, end);
        } else {
            self.restore_time.record_failure(start, end);
        }
        restored
    }

    fn restore_time(&self) -> Duration {
        self.restore_time.estimate(Instant::now())
    }
}
