//! Gives KV memory back to the system after a time without work.
//!
//! Happens in slices, each followed by a look at the commands that wait, so that a request that
//! comes meanwhile waits for one slice and not for gigabytes to be saved to a tier. Whoever only
//! looks at the server does not put the release off.

use crate::engine_thread::EngineThreadConfig;
use mini_infer_core::{Clock, Executor};
use mini_infer_engine::Engine;
use std::time::{Duration, Instant};

/// Cached blocks that one slice evicts: 16,384 tokens at the default block size, some hundred
/// megabytes of a small model's KV, which a tier copies in a few tens of milliseconds.
const SLICE_BLOCKS: u32 = 1024;

/// When to release how much.
#[derive(Debug)]
pub(crate) struct IdleRelease {
    after: Option<Duration>,
    keep_blocks: u32,
    due: Option<Instant>,
}

impl IdleRelease {
    /// Starts without work: loading, too, leaves memory behind.
    pub(crate) fn new(config: EngineThreadConfig) -> Self {
        let EngineThreadConfig { idle_release, idle_keep_blocks } = config;
        let mut release = Self { after: idle_release, keep_blocks: idle_keep_blocks, due: None };
        release.work_ended(Instant::now());
        release
    }

    /// Starts the time anew.
    pub(crate) fn work_ended(&mut self, now: Instant) {
        // A time too far to be counted never comes.
        self.due = self.after.and_then(|after| now.checked_add(after));
    }

    /// Returns when the next slice is due; `None` when nothing is left to release.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Releases a slice; the next one is due at once, if there is one.
    pub(crate) fn release<E: Executor, C: Clock>(&mut self, engine: &mut Engine<E, C>) {
        let before = engine.stats().kv.num_cached_blocks;
        let left = before.saturating_sub(SLICE_BLOCKS).max(self.keep_blocks);
        engine.trim_kv(left);
        let is_stuck = engine.stats().kv.num_cached_blocks >= before;
        if left == self.keep_blocks || is_stuck {
            self.due = None;
        }
    }
}
