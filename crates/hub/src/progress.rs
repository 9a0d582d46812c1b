//! What the user is told while a model is fetched.
//!
//! This crate prints nothing. It reports events to a [`Progress`], which the binary turns into
//! bars and lines and a test into a list.

use std::time::Duration;

use crate::error::HubError;

/// Receiver of what happens while a model is resolved.
pub trait Progress {
    /// Takes one event; called on the thread that resolves the model.
    fn report(&mut self, event: ProgressEvent<'_>);
}

/// One thing that happened while a model is resolved.
#[derive(Debug)]
pub enum ProgressEvent<'a> {
    /// A repository or folder holds several GGUF files and this one was taken.
    Chosen {
        /// Path of the file in the repository or folder.
        file: &'a str,
        /// Number of GGUF files it was chosen from.
        num_candidates: usize,
    },
    /// A transfer starts, or starts again after an interruption.
    Started {
        /// Name to show: a file, or a package of the Python index.
        name: &'a str,
        /// Length in bytes, where it is known beforehand.
        total_bytes: Option<u64>,
        /// Bytes that are already here.
        done_bytes: u64,
    },
    /// The transfer of the last [`Self::Started`] has come this far, counted from the file's start.
    Advanced {
        /// Bytes that are here.
        done_bytes: u64,
    },
    /// The transfer of the last [`Self::Started`] is complete and verified.
    Finished {
        /// The name given when it started.
        name: &'a str,
    },
    /// An attempt failed and is repeated after a pause.
    Retrying {
        /// Why it failed.
        reason: &'a HubError,
        /// The pause before the next attempt.
        delay: Duration,
    },
    /// Another process fetches the same file; this one waits for it.
    Waiting {
        /// Name of the file.
        name: &'a str,
    },
    /// The Hub did not deliver an alias; the Python index is asked instead.
    FallingBack {
        /// Why the Hub did not deliver.
        reason: &'a HubError,
    },
}

/// A [`Progress`] that ignores everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn report(&mut self, _event: ProgressEvent<'_>) {}
}
