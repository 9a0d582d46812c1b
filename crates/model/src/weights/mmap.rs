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

impl FileBytes {
    /// Gives the memory of `bytes`, a part of these, back to the system where it has a call for
    /// that; they are read from the file again when somebody looks at them.
    pub(crate) fn release(&self, bytes: &[u8]) {
        #[cfg(target_os = "linux")]
        if let Storage::Mapped(mapped) = &*self.0 {
            let first = bytes.as_ptr().addr().checked_sub(mapped.as_ptr().addr());
            let Some(first) = first.filter(|first| first + bytes.len() <= mapped.len()) else {
                return;
            };
            let advice = memmap2::UncheckedAdvice::DontNeed;
            #[expect(unsafe_code, reason = "the call has no safe form")]
            // SAFETY: the mapping is of a file and never written to, so a page that is dropped comes
            // back with the bytes of the file: nobody who holds a reference sees a change. The range
            // lies inside the mapping, as checked above.
            let result = unsafe { mapped.unchecked_advise_range(advice, first, bytes.len()) };
            // Advice only: memory that the system does not take back costs memory, nothing else.
            let _refused = result;
        }
        #[cfg(not(target_os = "linux"))]
        let _only_linux_takes_advice = bytes;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_bytes_are_those_of_the_file_when_they_are_read_again() {
        let content: Vec<u8> = (0..100_000_u32).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
        let name = format!("mini-infer-released-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, &content).unwrap();
        for bytes in [FileBytes::map(&path).unwrap(), content.clone().into()] {
            assert!(*bytes == content[..]);
            for range in [0..100_000, 5_000..90_001, 7..8, 40_000..40_000] {
                bytes.release(&bytes[range]);
                assert!(*bytes == content[..]);
            }
            bytes.release(b"bytes of somebody else");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
