//! A disk in memory that is as full, slow or broken as a test wants.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::file_format::{HEADER_BYTES, Header};
use crate::file_name::FileName;
use crate::footprint::footprint;
use crate::storage::{Leftover, ReadError, Storage, WriteError};

/// The disk; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct FakeDisk {
    shared: Arc<(Mutex<DiskState>, Condvar)>,
}

/// What is on the disk and how it behaves.
#[derive(Default)]
pub(crate) struct DiskState {
    /// Content of the files.
    pub(crate) files: HashMap<FileName, Vec<u8>>,
    /// Footprints of partial files that failed writes left.
    pub(crate) leftover_bytes: u64,
    /// The most that was on the disk at any time.
    pub(crate) peak_bytes: u64,
    /// Writes hang.
    pub(crate) is_hanging: bool,
    /// Writes fail with this.
    pub(crate) write_fault: Option<ErrorKind>,
    /// A failed write leaves this.
    pub(crate) leaves_partial: bool,
    /// Reads fail with this.
    pub(crate) read_fault: Option<ErrorKind>,
    /// Removals fail with this.
    pub(crate) remove_fault: Option<ErrorKind>,
}

impl FakeDisk {
    /// Looks at the disk, or changes it.
    pub(crate) fn state(&self) -> MutexGuard<'_, DiskState> {
        self.shared.0.lock().unwrap()
    }

    /// Lets writes that hang go on.
    pub(crate) fn stop_hanging(&self) {
        self.state().is_hanging = false;
        self.shared.1.notify_all();
    }
}

impl Storage for FakeDisk {
    fn write(&self, name: &FileName, header: &Header, block: &[u8]) -> Result<(), WriteError> {
        let state = self.state();
        let mut state = self.shared.1.wait_while(state, |state| state.is_hanging).unwrap();
        let held: u64 = state.files.values().map(|file| footprint(file.len() - HEADER_BYTES)).sum();
        let bytes = held + state.leftover_bytes + footprint(block.len());
        state.peak_bytes = state.peak_bytes.max(bytes);
        if let Some(fault) = state.write_fault {
            let leftover = if state.leaves_partial {
                state.leftover_bytes += footprint(block.len());
                Leftover::Partial
            } else {
                Leftover::None
            };
            return Err(WriteError { source: fault.into(), leftover });
        }
        state.files.insert(*name, [header.as_slice(), block].concat());
        Ok(())
    }

    fn read(
        &self,
        name: &FileName,
        header: &mut Header,
        block: &mut [u8],
    ) -> Result<(), ReadError> {
        let state = self.state();
        if let Some(fault) = state.read_fault {
            // What a device gave before it failed lies in the caller's memory.
            block.fill(0xEE);
            return Err(ReadError::Io(fault.into()));
        }
        let content = state.files.get(name).ok_or(ReadError::Missing)?;
        if content.len() != header.len() + block.len() {
            return Err(ReadError::Length);
        }
        header.copy_from_slice(&content[..HEADER_BYTES]);
        block.copy_from_slice(&content[HEADER_BYTES..]);
        Ok(())
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        let mut state = self.state();
        if let Some(fault) = state.remove_fault {
            return Err(fault.into());
        }
        state.files.remove(name);
        Ok(())
    }
}
