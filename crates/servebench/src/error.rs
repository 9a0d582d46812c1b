//! Why a command could not do what it was asked.

use crate::results::RunFileError;
use mini_infer_text::TokenizerError;
use mini_infer_trace::TraceError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a command could not do what it was asked.
#[derive(Debug)]
pub enum ServebenchError {
    /// A flag, or two of them together, ask for what cannot be.
    Usage {
        /// Which, as the user writes it.
        flag: String,
        /// What is wrong and what would work.
        message: String,
    },
    /// A run's file cannot be used.
    RunFile(RunFileError),
    /// A trace cannot be read.
    Trace(TraceError),
    /// A file cannot be read or written.
    File {
        /// What was to be done, such as `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The server cannot be reached, or does not answer as it should.
    Server {
        /// Its address.
        url: String,
        /// What happened and what to do.
        message: String,
    },
    /// A line of a file of prompts is not as it should be.
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is there and what should be.
        message: String,
    },
    /// A tokenizer cannot be used.
    Tokenizer {
        /// The file that holds it.
        path: PathBuf,
        /// What is wrong with it.
        source: TokenizerError,
    },
    /// The system refuses something that a measurement needs.
    System {
        /// What was to be done.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

impl fmt::Display for ServebenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage { flag, message } => write!(f, "{flag}: {message}"),
            Self::RunFile(error) => error.fmt(f),
            Self::Trace(error) => error.fmt(f),
            Self::File { action, path, .. } => write!(f, "cannot {action} {}", path.display()),
            Self::Server { url, message } => write!(f, "{url}: {message}"),
            Self::Line { path, line, message } => {
                write!(f, "{}, line {line}: {message}", path.display())
            }
            Self::Tokenizer { path, .. } => {
                write!(f, "the tokenizer in {} cannot be used", path.display())
            }
            Self::System { action, .. } => write!(f, "cannot {action}"),
        }
    }
}

impl std::error::Error for ServebenchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { source, .. } | Self::System { source, .. } => Some(source),
            // These print as the error below them.
            Self::RunFile(error) => error.source(),
            Self::Trace(error) => error.source(),
            Self::Tokenizer { source, .. } => Some(source),
            Self::Usage { .. } | Self::Server { .. } | Self::Line { .. } => None,
        }
    }
}

impl From<RunFileError> for ServebenchError {
    fn from(error: RunFileError) -> Self {
        Self::RunFile(error)
    }
}

impl From<TraceError> for ServebenchError {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}
