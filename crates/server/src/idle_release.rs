//! Gives KV memory back to the system after a time without work.
//!
//! Happens in slices, each followed by a look at the commands that wait, so that a request that
//! comes meanwhile waits for one slice and not for gigabytes to be saved to a tier. Whoever only
//! looks at the server does not put the release off.

use crate::engine_thread::EngineThreadConfig;
use mini_infer_core::{Clock, Executor};
use mini_infer_engine::Engine;
use std::time::{Duration, Instant};

/// How long handing everything to the tiers may take when the server ends.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// When to release how much.
#[derive(Debug)]
pub(crate) struct IdleRelease {
    after: Option<Duration>,
    keep_blocks: u32,
    slice_blocks: u32,
    slice_pause: Duration,
    due: Option<Instant>,
}

impl IdleRelease {
    /// Starts without work: loading, too, leaves memory behind.
    pub(crate) fn new(config: EngineThreadConfig) -> Self {
        let mut release = Self {
            after: config.idle_release,
            keep_blocks: config.idle_keep_blocks,
            slice_blocks: config.idle_slice_blocks.max(1),
            slice_pause: config.idle_slice_pause,
            due: None,
        };
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

    /// Releases a slice; the next one is due after the pause, if there is one.
    pub(crate) fn release<E: Executor, C: Clock>(
        &mut self,
        engine: &mut Engine<E, C>,
        now: Instant,
    ) {
        let is_more_left = self.release_slice(engine, self.keep_blocks);
        self.due = is_more_left.then(|| now + self.slice_pause);
    }

    /// Releases everything, slice by slice, as far as there is time: the server ends.
    pub(crate) fn release_all<E: Executor, C: Clock>(&mut self, engine: &mut Engine<E, C>) {
        let deadline = Instant::now() + STOP_PATIENCE;
        while self.release_slice(engine, 0) && Instant::now() < deadline {
            std::thread::sleep(self.slice_pause);
        }
    }

    /// Evicts a slice of the cached blocks but the `keep_blocks` used last, and tells whether there
    /// are more.
    fn release_slice<E: Executor, C: Clock>(
        &self,
        engine: &mut Engine<E, C>,
        keep_blocks: u32,
    ) -> bool {
        let before = engine.stats().kv.num_cached_blocks;
        let left = before.saturating_sub(self.slice_blocks).max(keep_blocks);
        engine.trim_kv(left);
        let is_stuck = engine.stats().kv.num_cached_blocks >= before;
        left > keep_blocks && !is_stuck
    }
}
