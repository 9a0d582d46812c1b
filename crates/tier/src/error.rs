//! Why a tier cannot be opened.
//!
//! Once a tier is open nothing is an error any more: it helps less, and counts.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a tier cannot be opened; the message says what to do.
#[derive(Debug)]
pub enum TierError {
    /// Not one block fits.
    TooSmall {
        /// The bytes that the tier may take.
        capacity_bytes: u64,
        /// The bytes that one block takes.
        needed_bytes: u64,
    },
    /// Another process keeps its blocks in the folder.
    InUse {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder cannot be used.
    Io {
        /// What was tried, as in "cannot create".
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The system starts no thread for writing.
    Thread {
        /// What the system says.
        source: io::Error,
    },
}

impl fmt::Display for TierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall { capacity_bytes, needed_bytes } => write!(
                f,
                "a KV tier of {capacity_bytes} bytes holds no block: one takes {needed_bytes} bytes"
            ),
            Self::InUse { dir } => write!(
                f,
                "another server keeps its KV tier in {}: give each a folder of its own",
                dir.display()
            ),
            Self::Io { action, path, source } => {
                write!(f, "cannot {action} {} for the KV tier: {source}", path.display())
            }
            Self::Thread { source } => {
                write!(f, "cannot start the thread that writes the KV tier: {source}")
            }
        }
    }
}

impl Error for TierError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } | Self::Thread { source } => Some(source),
            Self::TooSmall { .. } | Self::InUse { .. } => None,
        }
    }
}
