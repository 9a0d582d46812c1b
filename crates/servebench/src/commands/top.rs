//! `servebench top`.

use crate::error::ServebenchError;
use clap::Args;
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {}

pub(crate) fn run(_args: &TopArgs) -> Result<ExitCode, ServebenchError> {
    Ok(ExitCode::SUCCESS)
}
