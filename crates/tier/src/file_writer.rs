//! The thread that writes and removes files.
//!
//! It takes blocks from the queue one by one, removes old files until there is room, and writes.
//! The lock on the ledger is never held while a file is touched.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::{Duration, Instant};

use crate::file_format::header;
use crate::file_ledger::{FileLedger, Room, WaitingBlock};
use crate::file_name::FileName;
use crate::footprint::footprint;
use crate::identity::IdentityDigest;
use crate::shared::Shared;
use crate::storage::{Leftover, Storage};
use crate::write_health::HealthChange;

/// What the tier and its writer share.
pub(crate) struct FileStore {
    /// What is held and what waits.
    pub(crate) ledger: Shared<FileLedger>,
    /// The files.
    pub(crate) storage: Box<dyn Storage>,
    /// What they are written under.
    pub(crate) identity: IdentityDigest,
    /// The folder, for the log.
    pub(crate) dir: PathBuf,
    /// Told when there is something to write, or nothing ever again.
    work: Condvar,
    /// Told when nothing waits.
    idle: Condvar,
}

impl FileStore {
    /// Puts the parts together.
    pub(crate) fn new(
        ledger: Shared<FileLedger>,
        storage: Box<dyn Storage>,
        identity: IdentityDigest,
        dir: PathBuf,
    ) -> Self {
        Self { ledger, storage, identity, dir, work: Condvar::new(), idle: Condvar::new() }
    }

    /// Queues a block that was admitted.
    pub(crate) fn push(&self, name: FileName, block: WaitingBlock) {
        self.ledger.lock().push(name, block);
        self.work.notify_one();
    }

    /// Asks the writer to end when nothing waits any more.
    pub(crate) fn close(&self) {
        self.ledger.lock().close();
        self.work.notify_one();
    }

    /// Waits until nothing waits to be written, for at most `patience`; tells whether it came so.
    pub(crate) fn wait_until_idle(&self, patience: Duration) -> bool {
        let ledger = self.ledger.lock();
        let waited = self.idle.wait_timeout_while(ledger, patience, |ledger| !ledger.is_idle());
        let (ledger, _) = waited.unwrap_or_else(PoisonError::into_inner);
        ledger.is_idle()
    }

    /// Removes the oldest files until all that are left fit, as they may not at a start.
    pub(crate) fn shrink_to_capacity(&self) {
        loop {
            let excess = self.ledger.lock().excess();
            let Some((name, footprint)) = excess else { return };
            // One that cannot be removed keeps its room, and others have to go for it.
            self.remove(&name, footprint).ok();
        }
    }

    /// Writes what waits until the tier is closed; the body of the writer's thread.
    pub(crate) fn write_until_closed(self: &Arc<Self>) {
        while let Some((name, block)) = self.wait_for_work() {
            let written = self.write(&name, &block);
            // Before it is finished, so that the memory is free for the next block by then.
            drop(block);
            let change = {
                let mut ledger = self.ledger.lock();
                match &written {
                    Ok(footprint) => ledger.finish(&name, *footprint),
                    Err(_) => ledger.fail(&name, Instant::now()),
                }
            };
            self.idle.notify_all();
            self.log(change, written.err());
        }
    }

    /// Returns the first block that waits, once there is one; `None` when there never will be.
    fn wait_for_work(&self) -> Option<(FileName, WaitingBlock)> {
        let ledger = self.ledger.lock();
        let has_none = |ledger: &mut FileLedger| ledger.is_idle() && !ledger.is_closed();
        let ledger = self.work.wait_while(ledger, has_none).unwrap_or_else(PoisonError::into_inner);
        ledger.first_waiting()
    }

    /// Writes one block and returns what its file takes.
    fn write(&self, name: &FileName, block: &WaitingBlock) -> io::Result<u64> {
        let footprint = footprint(block.bytes.len());
        self.make_room(footprint)?;
        let header = header(self.identity, &block.key, &block.bytes);
        match self.storage.write(name, &header, &block.bytes) {
            Ok(()) => Ok(footprint),
            Err(failure) => {
                // What is left behind keeps its room: the capacity holds for what is on the disk.
                if failure.leftover == Leftover::None {
                    self.ledger.lock().release(footprint);
                }
                Err(failure.source)
            }
        }
    }

    /// Takes room for one file, removing the oldest ones where needed.
    fn make_room(&self, footprint: u64) -> io::Result<()> {
        loop {
            let room = self.ledger.lock().take_room(footprint);
            match room {
                Room::Taken => return Ok(()),
                Room::Evict(name, footprint) => {
                    self.remove(&name, footprint)?;
                    self.ledger.lock().totals.num_evicted_blocks += 1;
                }
                Room::None => return Err(io::ErrorKind::QuotaExceeded.into()),
            }
        }
    }

    /// Removes a file that is off the books, and gives back its room once it is gone.
    pub(crate) fn remove(&self, name: &FileName, footprint: u64) -> io::Result<()> {
        let removed = self.storage.remove(name);
        let mut ledger = self.ledger.lock();
        match &removed {
            Ok(()) => ledger.release(footprint),
            Err(_) => ledger.totals.num_remove_errors += 1,
        }
        removed
    }

    /// Tells the operator, once, when writing stops, and when it works again.
    fn log(&self, change: HealthChange, error: Option<io::Error>) {
        let dir = self.dir.display();
        match (change, error) {
            (HealthChange::Paused(pause), Some(error)) => tracing::warn!(
                "no more KV blocks are written to {dir} until a trial succeeds, the first in \
                 {} s: writing failed several times in a row, lastly with: {error}",
                pause.as_secs()
            ),
            (HealthChange::Recovered, _) => tracing::info!("KV blocks are written to {dir} again"),
            _ => {}
        }
    }
}
