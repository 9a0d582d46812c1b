//! Why a trace cannot be read.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a trace cannot be read.
#[derive(Debug)]
pub enum TraceError {
    /// The file cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line is not as its format says.
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What the format has there.
        expected: String,
        /// What the line has instead.
        found: String,
    },
    /// The trace has no requests.
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, .. } => write!(f, "trace {} cannot be read", path.display()),
            Self::Line { path, line, expected, found } => write!(
                f,
                "trace {}, line {line}: expected {expected}, found {found}",
                path.display()
            ),
            Self::Empty { path } => write!(
                f,
                "trace {} has no requests; expected lines of {} or of {}",
                path.display(),
                crate::azure::HEADER,
                crate::mooncake::FIELDS
            ),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Line { .. } | Self::Empty { .. } => None,
        }
    }
}
