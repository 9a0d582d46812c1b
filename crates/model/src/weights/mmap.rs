//! The bytes of a checkpoint file, mapped into memory.
//!
//! The only unsafe code of the crate. Pages are read from disk on first touch and can be dropped
//! by the system at any time, so a mapped checkpoint costs no memory of its own.

use crate::error::ModelError;
use memmap2::Mmap;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// Shared, immutable bytes: a mapped file, or a buffer where there is no file.
#[derive(Clone, Debug)]
pub struct FileBytes(Arc<Storage>);

#[derive(Debug)]
enum Storage {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps a file.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped.
    pub fn map(path: &Path) -> Result<Self, ModelError> {
        let io = |source| ModelError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(io(std::io::Error::other("not a regular file")));
        }
        #[expect(unsafe_code, reason = "mapping a file has no safe form")]
        // SAFETY: the mapping is private and read-only, and bytes of it are only ever read as
        // `u8`, for which every value is valid. What remains is the usual contract of mapped
        // model files: nobody truncates or rewrites the file in place while the server runs.
        // Downloads are written under another name and renamed, so this process never does.
        let mapped = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self(Arc::new(Storage::Mapped(mapped))))
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Storage::Owned(bytes)))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.0 {
            Storage::Mapped(mapped) => mapped,
            Storage::Owned(bytes) => bytes,
        }
    }
}
