//! What limits a server, read from its levels.

use crate::results::{Diagnosis, RunResult};

/// Returns what limits the server, and what to do about it.
#[must_use]
pub fn diagnose(_run: &RunResult) -> Diagnosis {
    Diagnosis::default()
}
