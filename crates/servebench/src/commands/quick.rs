//! `servebench quick`.

use crate::error::ServebenchError;
use clap::Args;
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct QuickArgs {}

pub(crate) fn run(_args: &QuickArgs) -> Result<ExitCode, ServebenchError> {
    Ok(ExitCode::SUCCESS)
}
