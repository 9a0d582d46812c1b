//! What the file tier holds, and what waits to be written.
//!
//! Numbers only: no file is touched here, so whoever holds the lock on it holds it briefly.
//! Invariant: `occupied_bytes` is what the files in `held` take, the one being written, and those
//! that could not be removed; it never passes the capacity, except at a start with a smaller one
//! than before. A name is in `held`, or waits, or neither; never both.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mini_infer_core::{BlockKey, FixedHashMap};

use crate::file_format::Refusal;
use crate::file_name::FileName;
use crate::footprint::footprint;
use crate::lru_map::LruMap;
use crate::stats::FileStats;
use crate::write_health::{HealthChange, WriteHealth};

/// What the file tier holds.
#[derive(Debug)]
pub(crate) struct FileLedger {
    held: LruMap<FileName, u64>,
    occupied_bytes: u64,
    limits: FileLimits,
    /// Names of the blocks that wait, in order; the first may be being written.
    queue: VecDeque<FileName>,
    waiting: FixedHashMap<FileName, WaitingBlock>,
    queued_bytes: u64,
    health: WriteHealth,
    is_closing: bool,
    /// Totals since the start; the gauges in it are filled in when it is read.
    pub(crate) totals: FileStats,
}

/// The limits of a file tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileLimits {
    /// Bytes of disk that all files together may take.
    pub(crate) capacity_bytes: u64,
    /// Bytes that may wait to be written, or one block if that is more.
    pub(crate) queue_bytes: u64,
    /// How long writing pauses at first after failures in a row.
    pub(crate) first_pause: Duration,
}

/// A block that waits to be written.
#[derive(Clone, Debug)]
pub(crate) struct WaitingBlock {
    /// Its key.
    pub(crate) key: BlockKey,
    /// Its bytes.
    pub(crate) bytes: Arc<[u8]>,
}

/// Where a block is.
#[derive(Debug)]
pub(crate) enum Place {
    /// Not here.
    Nowhere,
    /// Among those that wait.
    Queue(Arc<[u8]>),
    /// In its file.
    File,
}

/// Whether there is room for one more file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is, and it is taken.
    Taken,
    /// Once this file, whose place is now the caller's to release, is removed.
    Evict(FileName, u64),
    /// There is none, and no file left to remove.
    None,
}

impl FileLedger {
    /// Creates an empty ledger.
    pub(crate) fn new(limits: FileLimits) -> Self {
        Self {
            held: LruMap::new(),
            occupied_bytes: 0,
            limits,
            queue: VecDeque::new(),
            waiting: FixedHashMap::default(),
            queued_bytes: 0,
            health: WriteHealth::new(limits.first_pause),
            is_closing: false,
            totals: FileStats::default(),
        }
    }

    /// Adds a file that lies in the folder, as the one used last.
    pub(crate) fn add_found(&mut self, name: FileName, footprint: u64) {
        self.held.insert(name, footprint);
        self.occupied_bytes = self.occupied_bytes.saturating_add(footprint);
    }

    /// Adds bytes that lie in the folder and cannot be removed.
    pub(crate) fn add_leftover(&mut self, num_bytes: u64) {
        self.occupied_bytes = self.occupied_bytes.saturating_add(num_bytes);
    }

    /// Tells whether `name` is held or waits.
    pub(crate) fn holds(&self, name: &FileName) -> bool {
        self.held.contains(name) || self.waiting.contains_key(name)
    }

    /// Finds a block and notes that it is used.
    pub(crate) fn find(&mut self, name: &FileName) -> Place {
        if let Some(block) = self.waiting.get(name) {
            return Place::Queue(Arc::clone(&block.bytes));
        }
        if self.held.touch(name).is_some() { Place::File } else { Place::Nowhere }
    }

    /// Tells whether a block that is to be saved should be copied and queued; counts it if not.
    pub(crate) fn admits(&mut self, name: &FileName, num_bytes: usize, now: Instant) -> bool {
        if self.held.touch(name).is_some() || self.waiting.contains_key(name) {
            return false;
        }
        let is_queue_full = !self.queue.is_empty()
            && self.queued_bytes + num_bytes as u64 > self.limits.queue_bytes;
        let totals = &mut self.totals;
        let reason = if footprint(num_bytes) > self.limits.capacity_bytes {
            &mut totals.num_dropped_too_large
        } else if self.health.is_paused(now) {
            &mut totals.num_dropped_paused
        } else if is_queue_full {
            &mut totals.num_dropped_queue_full
        } else {
            return true;
        };
        *reason += 1;
        false
    }

    /// Queues a block that was admitted.
    pub(crate) fn push(&mut self, name: FileName, block: WaitingBlock) {
        self.queued_bytes += block.bytes.len() as u64;
        self.waiting.insert(name, block);
        self.queue.push_back(name);
    }

    /// Returns the first block that waits; it goes on waiting until [`Self::finish`].
    pub(crate) fn first_waiting(&self) -> Option<(FileName, WaitingBlock)> {
        let name = self.queue.front()?;
        self.waiting.get(name).map(|block| (*name, block.clone()))
    }

    /// Takes room for a file, or says which one has to go first.
    pub(crate) fn take_room(&mut self, footprint: u64) -> Room {
        if self.occupied_bytes.saturating_add(footprint) <= self.limits.capacity_bytes {
            self.occupied_bytes += footprint;
            return Room::Taken;
        }
        self.held.pop_oldest().map_or(Room::None, |(name, footprint)| Room::Evict(name, footprint))
    }

    /// Returns the oldest file as long as all together pass the capacity.
    pub(crate) fn excess(&mut self) -> Option<(FileName, u64)> {
        if self.occupied_bytes > self.limits.capacity_bytes { self.held.pop_oldest() } else { None }
    }

    /// Gives back the room of a file that is gone.
    pub(crate) fn release(&mut self, footprint: u64) {
        self.occupied_bytes = self.occupied_bytes.saturating_sub(footprint);
    }

    /// Takes a file off the books, without its room; `None` when it is off already.
    pub(crate) fn forget(&mut self, name: &FileName) -> Option<u64> {
        self.held.remove(name)
    }

    /// Ends the wait of the block `name`, whose file was written and takes `footprint`.
    pub(crate) fn finish(&mut self, name: &FileName, footprint: u64) -> HealthChange {
        self.stop_waiting(name);
        self.held.insert(*name, footprint);
        self.totals.num_saved_blocks += 1;
        self.health.succeeded()
    }

    /// Ends the wait of the block `name`, whose file could not be written. When writing pauses, all
    /// that wait are dropped: they would fail one by one.
    pub(crate) fn fail(&mut self, name: &FileName, now: Instant) -> HealthChange {
        self.stop_waiting(name);
        self.totals.num_write_errors += 1;
        let change = self.health.failed(now);
        if matches!(change, HealthChange::Paused(_) | HealthChange::StillPaused) {
            self.totals.num_dropped_paused += self.drop_waiting();
        }
        change
    }

    /// Counts a file that was refused.
    pub(crate) fn count_refusal(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Length => self.totals.num_refused_length += 1,
            Refusal::Damaged => self.totals.num_refused_damaged += 1,
            Refusal::Foreign => self.totals.num_refused_foreign += 1,
        }
    }

    /// Asks the writer to end when nothing waits any more.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
    }

    /// Drops all that wait, so that the writer ends after the file it is writing.
    pub(crate) fn abandon(&mut self) {
        self.totals.num_dropped_closing += self.drop_waiting();
    }

    /// Tells whether nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Tells whether the writer is to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closing && self.is_idle()
    }

    /// Returns the totals and the gauges.
    pub(crate) fn stats(&self) -> FileStats {
        FileStats {
            capacity_bytes: self.limits.capacity_bytes,
            held_bytes: self.occupied_bytes,
            num_held_blocks: self.held.len() as u64,
            queued_bytes: self.queued_bytes,
            num_queued_blocks: self.queue.len() as u64,
            is_writing_paused: self.health.is_paused(Instant::now()),
            ..self.totals
        }
    }

    /// Takes a block out of the queue, where it is the first, unless all were dropped meanwhile.
    fn stop_waiting(&mut self, name: &FileName) {
        if let Some(block) = self.waiting.remove(name) {
            self.queued_bytes -= block.bytes.len() as u64;
            let first = self.queue.pop_front();
            debug_assert_eq!(first, Some(*name), "blocks are written in the order of the queue");
        }
    }

    /// Empties the queue and returns how many blocks it held.
    fn drop_waiting(&mut self) -> u64 {
        let num_dropped = self.queue.len() as u64;
        self.queue = VecDeque::new();
        self.waiting = FixedHashMap::default();
        self.queued_bytes = 0;
        num_dropped
    }
}
