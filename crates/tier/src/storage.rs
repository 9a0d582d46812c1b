//! Where files are kept, as far as the file tier needs to know.
//!
//! One implementation is a folder on disk; tests have others that are full, slow or broken.

use std::io;

use crate::file_format::Header;
use crate::file_name::FileName;

/// Keeps files by name.
pub(crate) trait Storage: Send + Sync {
    /// Writes a file, which gets its name only when all its bytes are written.
    fn write(&self, name: &FileName, header: &Header, block: &[u8]) -> Result<(), WriteError>;

    /// Reads a whole file into `header` and `block`, and notes that it was used.
    fn read(&self, name: &FileName, header: &mut Header, block: &mut [u8])
    -> Result<(), ReadError>;

    /// Removes a file; one that is not there is removed already.
    fn remove(&self, name: &FileName) -> io::Result<()>;
}

/// A file that could not be written.
#[derive(Debug)]
pub(crate) struct WriteError {
    /// What the system says.
    pub(crate) source: io::Error,
    /// Whether bytes may still lie on the disk.
    pub(crate) leftover: Leftover,
}

/// What a failed write leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// Nothing.
    None,
    /// Some of the bytes, which could not be removed.
    Partial,
}

/// A file that could not be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// It is not there.
    Missing,
    /// It has more or fewer bytes than expected.
    Length,
    /// The system does not give its bytes.
    Io(io::Error),
}
