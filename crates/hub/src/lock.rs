//! Exclusion of processes that fetch the same file.
//!
//! An advisory lock on a file of its own, released by the system when the process ends in whatever
//! way. On Unix it is `flock`, which `huggingface_hub` takes on the same file, so the two exclude
//! each other. The lock file stays: removing it would let two processes hold two files of one name.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use crate::error::HubError;
use crate::progress::{Progress, ProgressEvent};

/// A held lock; released on drop.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until the lock on `path` is held, creating the file where needed; `name` is what is
    /// fetched under it, to tell the user what is waited for.
    ///
    /// # Errors
    ///
    /// [`HubError::Io`] where the file cannot be created, or the file system has no locks.
    pub(crate) fn acquire(
        path: &Path,
        name: &str,
        progress: &mut dyn Progress,
    ) -> Result<Self, HubError> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|error| HubError::io("create", folder, error))?;
        }
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)
            .map_err(|error| HubError::io("open", path, error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.report(ProgressEvent::Waiting { name });
                file.lock().map_err(|error| HubError::io("lock", path, error))?;
            }
            Err(TryLockError::Error(error)) => return Err(HubError::io("lock", path, error)),
        }
        Ok(Self { _file: file })
    }
}
