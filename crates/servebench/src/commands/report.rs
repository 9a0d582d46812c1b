//! `servebench report`.

use crate::error::ServebenchError;
use clap::Args;
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {}

pub(crate) fn run(_args: &ReportArgs) -> Result<ExitCode, ServebenchError> {
    Ok(ExitCode::SUCCESS)
}
