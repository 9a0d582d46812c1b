//! Blocks in files, which survive the process.
//!
//! Files are named by what is in them and for which model, and verified byte for byte before
//! anything of them is served; whatever fails that is removed and counted. All files of one folder
//! share one capacity, also those of other models and builds: these are never read, and go as they
//! grow old, so that a folder does not fill up with what earlier versions left.
//!
//! Saving is a copy into a queue of bounded size; a thread of the tier's own writes. Restoring
//! happens on the caller's thread. A disk that is full, slow or broken makes the tier help less,
//! never fail: blocks are dropped and counted, and writing pauses after failures in a row.
//!
//! Costs: a save is one copy of the block, a restore one read and one checksum, both with a look-up
//! in memory; opening reads the names, lengths and times of all files and the content of none.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mini_infer_core::{BlockKey, BlockTier};

use crate::block_copy::copy_block;
use crate::disk_storage::{DiskStorage, FoundFiles};
use crate::error::TierError;
use crate::file_format::{HEADER_BYTES, Refusal, verify};
use crate::file_ledger::{FileLedger, FileLimits, Place, WaitingBlock};
use crate::file_name::FileName;
use crate::file_writer::FileStore;
use crate::footprint::footprint;
use crate::identity::TierIdentity;
use crate::restore_time::RestoreTime;
use crate::shared::Shared;
use crate::stats::FileStats;
use crate::storage::{ReadError, Storage};

/// Bytes that may wait to be written: what a disk of 500 MB/s writes in an eighth of a second, and
/// small beside a model.
const QUEUE_BYTES: u64 = 64 << 20;
/// Bytes of memory that is kept for blocks that will wait: the evictions of one step or a few.
const SPARE_BYTES: usize = 8 << 20;
/// How long writing pauses at first after failures in a row.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// How long a tier that is dropped may go on writing what waits.
const CLOSING_PATIENCE: Duration = Duration::from_secs(5);

/// Where and for what a file tier keeps its blocks.
#[derive(Clone, Debug)]
pub struct FileTierConfig {
    /// The folder; created where needed. Files in it that this crate did not write are left alone.
    pub dir: PathBuf,
    /// Bytes of disk that all files together may take.
    pub capacity_bytes: u64,
    /// Length of one block.
    pub block_bytes: usize,
    /// What the blocks' bytes depend on besides their keys.
    pub identity: TierIdentity,
}

/// Blocks in files.
pub struct FileTier {
    store: Arc<FileStore>,
    /// The memory of blocks that were queued, the first one first.
    spares: VecDeque<Arc<[u8]>>,
    restore_time: RestoreTime,
    writer: Option<JoinHandle<()>>,
    closing_patience: Duration,
}

impl FileTier {
    /// Takes possession of the folder and finds what earlier processes left in it.
    ///
    /// # Errors
    /// [`TierError::InUse`] when another process has the folder: a server then runs without files,
    /// and says so. [`TierError::TooSmall`] when not one block fits, [`TierError::Io`] when the
    /// folder cannot be used, and [`TierError::Thread`].
    pub fn open(config: FileTierConfig) -> Result<Self, TierError> {
        let FileTierConfig { dir, capacity_bytes, block_bytes, identity } = config;
        let needed_bytes = footprint(block_bytes);
        if needed_bytes > capacity_bytes {
            return Err(TierError::TooSmall { capacity_bytes, needed_bytes });
        }
        let (storage, found) = DiskStorage::open(&dir)?;
        let limits =
            FileLimits { capacity_bytes, queue_bytes: QUEUE_BYTES, first_pause: FIRST_PAUSE };
        let mut ledger = FileLedger::new(limits);
        add_found(&mut ledger, &storage, &found, capacity_bytes);
        Self::start(FileStore::new(Shared::new(ledger), Box::new(storage), identity.digest(), dir))
    }

    /// Shrinks what is there to the capacity and starts the writer.
    fn start(store: FileStore) -> Result<Self, TierError> {
        store.shrink_to_capacity();
        let store = Arc::new(store);
        let of_writer = Arc::clone(&store);
        let writer = thread::Builder::new()
            .name("kv-tier-writer".to_owned())
            .spawn(move || of_writer.write_until_closed())
            .map_err(|source| TierError::Thread { source })?;
        Ok(Self {
            store,
            spares: VecDeque::new(),
            restore_time: RestoreTime::default(),
            writer: Some(writer),
            closing_patience: CLOSING_PATIENCE,
        })
    }

    /// Waits until all saved blocks are written, for at most `patience`; tells whether they are.
    pub fn flush(&self, patience: Duration) -> bool {
        self.store.wait_until_idle(patience)
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> FileStats {
        self.store.ledger.lock().stats()
    }

    /// Returns the statistics, to be read from other threads.
    pub(crate) fn shared_ledger(&self) -> Shared<FileLedger> {
        self.store.ledger.clone()
    }

    /// Saves a block whose bytes are shared with somebody else, without a copy.
    pub(crate) fn save_shared(&mut self, key: &BlockKey, bytes: &Arc<[u8]>) {
        let name = self.name(key);
        if self.admits(&name, bytes.len()) {
            self.store.push(name, WaitingBlock { key: *key, bytes: Arc::clone(bytes) });
        }
    }

    /// Tells whether a block should be queued. Nobody but this thread adds blocks, so the answer
    /// still holds after the block was copied.
    fn admits(&self, name: &FileName, num_bytes: usize) -> bool {
        self.store.ledger.lock().admits(name, num_bytes, Instant::now())
    }

    /// Copies a block, into memory of one that was written before where there is some.
    fn copy(&mut self, bytes: &[u8]) -> Arc<[u8]> {
        let is_free = self.spares.front().is_some_and(|spare| Arc::strong_count(spare) == 1);
        let spare = if is_free { self.spares.pop_front() } else { None };
        let copy = copy_block(spare, bytes);
        if (self.spares.len() + 1).saturating_mul(bytes.len()) <= SPARE_BYTES {
            self.spares.push_back(Arc::clone(&copy));
        }
        copy
    }

    /// Returns the name of a block's file.
    fn name(&self, key: &BlockKey) -> FileName {
        FileName::of(self.store.identity, key)
    }

    /// Fills `bytes` from wherever the block is.
    fn try_restore(&self, key: &BlockKey, bytes: &mut [u8]) -> bool {
        let name = self.name(key);
        let place = self.store.ledger.lock().find(&name);
        match place {
            Place::Nowhere => false,
            Place::Queue(waiting) if waiting.len() == bytes.len() => {
                bytes.copy_from_slice(&waiting);
                true
            }
            Place::Queue(_) => false,
            Place::File => self.read(&name, key, bytes),
        }
    }

    /// Reads and verifies a file. One that is not whole and right is removed, and so is one that
    /// cannot be read: as long as it is held, the block would not be saved again.
    fn read(&self, name: &FileName, key: &BlockKey, bytes: &mut [u8]) -> bool {
        let mut header = [0; HEADER_BYTES];
        let refusal = match self.store.storage.read(name, &mut header, bytes) {
            Ok(()) => match verify(&header, self.store.identity, key, bytes) {
                Ok(()) => return true,
                Err(refusal) => Some(refusal),
            },
            Err(ReadError::Length) => Some(Refusal::Length),
            Err(ReadError::Missing) => {
                let mut ledger = self.store.ledger.lock();
                // If it is off the books, the writer has just evicted it, and nothing is amiss.
                if let Some(footprint) = ledger.forget(name) {
                    ledger.release(footprint);
                    ledger.totals.num_missing_files += 1;
                }
                return false;
            }
            Err(ReadError::Io(error)) => {
                tracing::debug!(%name, %error, "a KV block's file cannot be read");
                self.store.ledger.lock().totals.num_read_errors += 1;
                None
            }
        };
        let forgotten = {
            let mut ledger = self.store.ledger.lock();
            if let Some(refusal) = refusal {
                tracing::debug!(%name, ?refusal, "a KV block's file is refused");
                ledger.count_refusal(refusal);
            }
            ledger.forget(name)
        };
        if let Some(footprint) = forgotten {
            // Counted there if it fails; the file is off the books in any case.
            self.store.remove(name, footprint).ok();
        }
        false
    }
}

/// Enters files into the books, the one used last at the end. Those that are above the capacity
/// alone, as damage or a planted hole can make them, are removed first: no other has to go for them.
fn add_found(
    ledger: &mut FileLedger,
    storage: &dyn Storage,
    found: &FoundFiles,
    capacity_bytes: u64,
) {
    for file in &found.files {
        if file.footprint <= capacity_bytes {
            ledger.add_found(file.name, file.footprint);
        } else if storage.remove(&file.name).is_err() {
            ledger.add_leftover(file.footprint);
        }
    }
    ledger.add_leftover(found.leftover_bytes);
}

impl BlockTier for FileTier {
    fn holds(&self, key: &BlockKey) -> bool {
        self.store.ledger.lock().holds(&self.name(key))
    }

    fn save(&mut self, key: &BlockKey, bytes: &[u8]) {
        let name = self.name(key);
        if self.admits(&name, bytes.len()) {
            let bytes = self.copy(bytes);
            self.store.push(name, WaitingBlock { key: *key, bytes });
        }
    }

    fn restore(&mut self, key: &BlockKey, bytes: &mut [u8]) -> bool {
        let start = Instant::now();
        let restored = self.try_restore(key, bytes);
        let end = Instant::now();
        if restored {
            self.restore_time.record(start, end);
            self.store.ledger.lock().totals.num_restored_blocks += 1;
        } else {
            self.restore_time.record_failure(start, end);
        }
        restored
    }

    fn restore_time(&self) -> Duration {
        self.restore_time.estimate(Instant::now())
    }
}

impl Drop for FileTier {
    /// Writes what waits, unless that takes too long; a writer that hangs in the disk is left to
    /// itself.
    fn drop(&mut self) {
        self.store.close();
        if !self.store.wait_until_idle(self.closing_patience) {
            self.store.ledger.lock().abandon();
            return;
        }
        if let Some(writer) = self.writer.take() {
            writer.join().ok();
        }
    }
}

impl fmt::Debug for FileTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileTier")
            .field("dir", &self.store.dir)
            .field("stats", &self.stats())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_storage::FakeDisk;
    use crate::identity::IdentityDigest;
    use mini_infer_core::mix64;
    use std::io::ErrorKind;

    const BLOCK_BYTES: usize = 1000;
    const NUM_BLOCKS: u64 = 8;
    const LIMITS: FileLimits = FileLimits {
        capacity_bytes: NUM_BLOCKS * footprint(BLOCK_BYTES),
        queue_bytes: 4 * BLOCK_BYTES as u64,
        first_pause: Duration::from_secs(3600),
    };
    const IDENTITY: IdentityDigest = IdentityDigest([3; 32]);
    const PATIENCE: Duration = Duration::from_secs(600);

    /// Opens a tier on the disk; what is on it is found in the order of names.
    fn open(disk: &FakeDisk, limits: FileLimits) -> FileTier {
        let mut ledger = FileLedger::new(limits);
        let state = disk.state();
        let mut names: Vec<_> = state.files.keys().copied().collect();
        names.sort_unstable();
        for name in names {
            ledger.add_found(name, footprint(state.files[&name].len() - HEADER_BYTES));
        }
        ledger.add_leftover(state.leftover_bytes);
        drop(state);
        let storage = Box::new(disk.clone());
        FileTier::start(FileStore::new(Shared::new(ledger), storage, IDENTITY, "disk".into()))
            .unwrap()
    }

    fn key(i: u8) -> BlockKey {
        BlockKey([i; 32])
    }

    fn save(tier: &mut FileTier, i: u8) {
        tier.save(&key(i), &[i; BLOCK_BYTES]);
        assert!(tier.flush(PATIENCE));
    }

    fn restores(tier: &mut FileTier, i: u8) -> bool {
        let mut bytes = [0xA5; BLOCK_BYTES];
        let is_there = tier.restore(&key(i), &mut bytes);
        assert!(!is_there || bytes == [i; BLOCK_BYTES], "block {i} has wrong bytes");
        is_there
    }

    #[test]
    fn saving_never_waits_for_a_disk_that_hangs() {
        let disk = FakeDisk::default();
        let mut tier = open(&disk, LIMITS);
        disk.state().is_hanging = true;
        // Would never return if one of them waited: nothing is written before the last is saved.
        for i in 0..100 {
            tier.save(&key(i), &[i; BLOCK_BYTES]);
            assert!(tier.stats().queued_bytes <= LIMITS.queue_bytes);
        }
        let stats = tier.stats();
        assert_eq!((stats.num_queued_blocks, stats.num_dropped_queue_full), (4, 96));
        assert!((0..4).all(|i| tier.holds(&key(i)) && restores(&mut tier, i)));
        assert!((4..100).all(|i| !tier.holds(&key(i)) && !restores(&mut tier, i)));
        assert!(!tier.flush(Duration::ZERO));
        disk.stop_hanging();
        assert!(tier.flush(PATIENCE));
        assert!((0..4).all(|i| restores(&mut tier, i)));
    }

    #[test]
    fn a_tier_that_is_dropped_does_not_wait_for_ever_for_a_disk_that_hangs() {
        let disk = FakeDisk::default();
        let mut tier = open(&disk, LIMITS);
        tier.closing_patience = Duration::ZERO;
        let writer = tier.writer.take().unwrap();
        let ledger = tier.shared_ledger();
        disk.state().is_hanging = true;
        (0..4).for_each(|i| tier.save(&key(i), &[i; BLOCK_BYTES]));
        drop(tier);
        assert_eq!(ledger.lock().stats().num_dropped_closing, 4);
        disk.stop_hanging();
        // The writer ends by itself, after at most the one block it was writing.
        writer.join().unwrap();
        assert!(disk.state().files.len() <= 1);
    }

    #[test]
    fn the_memory_of_written_blocks_is_used_again_and_little_is_kept() {
        let disk = FakeDisk::default();
        let mut tier = open(&disk, FileLimits { queue_bytes: u64::MAX, ..LIMITS });
        save(&mut tier, 0);
        let place = tier.spares[0].as_ptr();
        save(&mut tier, 1);
        assert_eq!((tier.spares.len(), tier.spares[0].as_ptr()), (1, place));
        disk.state().is_hanging = true;
        let block = vec![7; SPARE_BYTES / 4];
        for i in 2..20 {
            tier.save(&key(i), &block);
            assert!(tier.spares.iter().map(|spare| spare.len()).sum::<usize>() <= SPARE_BYTES);
        }
        assert_eq!(tier.stats().num_dropped_queue_full, 0);
        disk.stop_hanging();
    }

    #[test]
    fn a_full_disk_stops_writing_and_nothing_else() {
        let disk = FakeDisk::default();
        let mut tier = open(&disk, LIMITS);
        save(&mut tier, 1);
        disk.state().write_fault = Some(ErrorKind::StorageFull);
        (2..5).for_each(|i| save(&mut tier, i));
        assert!(tier.stats().is_writing_paused);
        (5..9).for_each(|i| save(&mut tier, i));
        let stats = tier.stats();
        assert_eq!((stats.num_write_errors, stats.num_dropped_paused), (3, 4));
        assert_eq!((stats.num_held_blocks, stats.held_bytes), (1, footprint(BLOCK_BYTES)));
        assert!(restores(&mut tier, 1), "restores go on");
        assert!((2..9).all(|i| !restores(&mut tier, i)));
    }

    #[test]
    fn what_waits_when_writing_pauses_is_dropped_and_not_tried_one_by_one() {
        let disk = FakeDisk::default();
        let mut tier = open(&disk, FileLimits { queue_bytes: 1 << 20, ..LIMITS });
        disk.state().is_hanging = true;
        (0..50).for_each(|i| tier.save(&key(i), &[i; BLOCK_BYTES]));
        disk.state().write_fault = Some(ErrorKind::StorageFull);
        disk.stop_hanging();
        assert!(tier.flush(PATIENCE));
        let stats = tier.stats();
        assert_eq!((stats.num_write_errors, stats.num_dropped_paused), (3, 47));
        assert_eq!((stats.queued_bytes, stats.held_bytes), (0, 0));
    }

    #[test]
    fn writing_goes_on_when_a_trial_after_the_pause_succeeds() {
        let disk = FakeDisk::default();
        let mut tier = open(&disk, FileLimits { first_pause: Duration::ZERO, ..LIMITS });
        disk.state().write_fault = Some(ErrorKind::StorageFull);
        (0..20).for_each(|i| save(&mut tier, i));
        assert_eq!(tier.stats().num_write_errors, 20);
        disk.state().write_fault = None;
        (0..8).for_each(|i| save(&mut tier, i));
        assert!((0..8).all(|i| restores(&mut tier, i)));
    }

    #[test]
    fn bytes_that_cannot_be_removed_count_against_the_capacity() {
        let disk = FakeDisk::default();
        let mut tier = open(&disk, LIMITS);
        disk.state().leaves_partial = true;
        disk.state().write_fault = Some(ErrorKind::Other);
        (0..2).for_each(|i| save(&mut tier, i));
        disk.state().write_fault = None;
        (0..20).for_each(|i| save(&mut tier, i));
        assert_eq!(tier.stats().num_held_blocks, NUM_BLOCKS - 2);
        assert_eq!(tier.stats().held_bytes, LIMITS.capacity_bytes);

        disk.state().remove_fault = Some(ErrorKind::ReadOnlyFilesystem);
        (20..40).for_each(|i| save(&mut tier, i));
        let stats = tier.stats();
        assert_eq!(stats.held_bytes, LIMITS.capacity_bytes);
        assert!(stats.is_writing_paused && stats.num_remove_errors == 3, "{stats:?}");
        assert_eq!(disk.state().peak_bytes, LIMITS.capacity_bytes);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_dropped_and_can_be_saved_again() {
        let disk = FakeDisk::default();
        let mut tier = open(&disk, LIMITS);
        save(&mut tier, 1);
        disk.state().read_fault = Some(ErrorKind::Other);
        assert!(!restores(&mut tier, 1) && !tier.holds(&key(1)));
        assert_eq!((tier.stats().num_read_errors, tier.stats().held_bytes), (1, 0));
        disk.state().read_fault = None;
        save(&mut tier, 1);
        assert!(restores(&mut tier, 1));
    }

    #[test]
    fn a_block_that_cannot_fit_is_dropped_and_evicts_nothing() {
        let disk = FakeDisk::default();
        let mut tier = open(&disk, LIMITS);
        save(&mut tier, 1);
        let too_large = 1 + usize::try_from(LIMITS.capacity_bytes).unwrap();
        tier.save(&key(2), &vec![2; too_large]);
        assert_eq!(tier.stats().num_dropped_too_large, 1);
        assert!(restores(&mut tier, 1));
    }

    /// Does something random to the disk: faults that come and go, and damage.
    fn change_disk(disk: &FakeDisk, random: u64) {
        let mut state = disk.state();
        let fault = random.is_multiple_of(3).then_some(ErrorKind::Other);
        match random / 3 % 6 {
            0 => state.write_fault = fault,
            1 => state.read_fault = fault,
            2 => state.remove_fault = fault,
            3 => state.leaves_partial = fault.is_some() && state.leftover_bytes == 0,
            kind => {
                let num_files = state.files.len().max(1) as u64;
                let at = usize::try_from(random / 18 % num_files).unwrap();
                let mut names: Vec<_> = state.files.keys().copied().collect();
                names.sort_unstable();
                let Some(name) = names.get(at) else { return };
                if kind == 4 {
                    state.files.remove(name);
                    return;
                }
                let content = state.files.get_mut(name).unwrap();
                let i = usize::try_from(random / 1000).unwrap() % content.len();
                content[i] ^= 1 << (random % 8);
            }
        }
    }

    #[test]
    fn on_any_disk_restores_give_what_was_saved_or_nothing_and_the_capacity_holds() {
        let one = std::env::var("MINI_INFER_TIER_SEED").ok().map(|seed| seed.parse().unwrap());
        for seed in one.map_or(0..60, |seed: u64| seed..seed + 1) {
            println!("replay with MINI_INFER_TIER_SEED={seed}");
            let disk = FakeDisk::default();
            let limits = FileLimits { first_pause: Duration::ZERO, ..LIMITS };
            let mut tier = open(&disk, limits);
            for step in 0..2000 {
                let random = mix64(seed << 32 | step);
                let i = (random >> 40).to_le_bytes()[0] % 20;
                match random % 16 {
                    0..6 => tier.save(&key(i), &[i; BLOCK_BYTES]),
                    6..13 => {
                        restores(&mut tier, i);
                    }
                    13 => change_disk(&disk, random / 16),
                    14 => assert!(tier.flush(PATIENCE)),
                    _ if (random / 16).is_multiple_of(20) => {
                        drop(tier);
                        tier = open(&disk, limits);
                    }
                    _ => {}
                }
                assert!(tier.stats().held_bytes <= limits.capacity_bytes);
                assert!(disk.state().peak_bytes <= limits.capacity_bytes);
            }
        }
    }
}
