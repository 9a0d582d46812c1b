//! `servebench run`.

use crate::error::ServebenchError;
use clap::Args;
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {}

pub(crate) fn run(_args: &RunArgs) -> Result<ExitCode, ServebenchError> {
    Ok(ExitCode::SUCCESS)
}
