//! `servebench find_capacity`.

use crate::error::ServebenchError;
use clap::Args;
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct FindCapacityArgs {}

pub(crate) fn run(_args: &FindCapacityArgs) -> Result<ExitCode, ServebenchError> {
    Ok(ExitCode::SUCCESS)
}
