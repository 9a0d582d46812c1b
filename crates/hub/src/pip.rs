//! Fetching packages from the Python index with the user's own pip.
//!
//! pip is started rather than replaced, because it knows what this crate does not: the mirror,
//! proxy and certificates configured for this machine. Nothing is installed or run: wheels only,
//! without dependencies, into a folder of ours. Both output streams are captured; the end of
//! standard error goes into the error message.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::alias::AliasPackage;
use crate::error::HubError;

/// Commands tried where `MINI_INFER_PIP` names none, in this order.
#[cfg(not(windows))]
const COMMANDS: [&[&str]; 4] =
    [&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];
#[cfg(windows)]
const COMMANDS: [&[&str]; 4] =
    [&["py", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];

/// Longest end of pip's standard error that is repeated in a message, if one line fits in it.
const MAX_TAIL_BYTES: usize = 800;

/// A pip that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pip {
    program: OsString,
    arguments: &'static [&'static str],
}

impl Pip {
    /// Finds the pip to use: the one named, else the first command that answers `--version`.
    ///
    /// # Errors
    ///
    /// [`HubError::PipMissing`] where none does.
    pub(crate) fn find(named: Option<&Path>) -> Result<Self, HubError> {
        let candidates: Vec<Self> = match named {
            Some(path) => vec![Self { program: path.into(), arguments: &[] }],
            None => COMMANDS
                .iter()
                .filter_map(|command| command.split_first())
                .map(|(program, arguments)| Self { program: program.into(), arguments })
                .collect(),
        };
        let tried = candidates.iter().map(Self::shown).collect();
        let answers = |pip: &Self| {
            let output = pip.command().arg("--version").output();
            output.is_ok_and(|output| output.status.success())
        };
        candidates.into_iter().find(answers).ok_or(HubError::PipMissing { tried })
    }

    /// Downloads the wheels of these packages into a folder.
    ///
    /// # Errors
    ///
    /// [`HubError::PipFailed`] with the end of what pip wrote.
    pub(crate) fn download(
        &self,
        packages: &[AliasPackage],
        folder: &Path,
    ) -> Result<(), HubError> {
        let requirements: Vec<String> = packages.iter().map(ToString::to_string).collect();
        let failed = |stderr_tail| HubError::PipFailed {
            command: format!("{} download {}", self.shown(), requirements.join(" ")),
            stderr_tail,
        };
        let output = self
            .command()
            .args(["download", "--no-deps", "--only-binary=:all:", "--no-input"])
            .args(["--disable-pip-version-check", "--progress-bar=off", "--dest"])
            .arg(folder)
            .args(&requirements)
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if output.status.success() { Ok(()) } else { Err(failed(tail(&output))) }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments).stdin(Stdio::null());
        command
    }

    fn shown(&self) -> String {
        let program = self.program.to_string_lossy();
        [&[program.as_ref()], self.arguments].concat().join(" ")
    }
}

/// Returns the last lines the process wrote to standard error, on one line.
fn tail(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let mut lines = Vec::new();
    let mut num_bytes = 0;
    for line in text.lines().rev().map(str::trim).filter(|line| !line.is_empty()) {
        num_bytes += line.len();
        if num_bytes > MAX_TAIL_BYTES && !lines.is_empty() {
            break;
        }
        lines.push(line);
    }
    if lines.is_empty() {
        return format!("it wrote nothing and ended with {}", output.status);
    }
    lines.reverse();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_pip_that_does_not_start_is_reported_by_its_name() {
        let error = Pip::find(Some(Path::new("/no/such/pip"))).unwrap_err();
        assert!(error.to_string().contains("/no/such/pip"), "{error}");
    }
}
