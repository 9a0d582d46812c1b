//! `servebench compare`.

use crate::error::ServebenchError;
use crate::output;
use crate::report::comparison;
use crate::results::RunResult;
use crate::statistics::complete;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Runs to set side by side; the first is what the others are measured against
    #[arg(value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<PathBuf>,
}

pub(crate) fn run(args: &CompareArgs) -> Result<ExitCode, ServebenchError> {
    if args.files.len() < 2 {
        return Err(ServebenchError::Usage {
            flag: "FILE".to_owned(),
            message: "one run has nothing to be compared with; name two or more".to_owned(),
        });
    }
    let mut runs =
        args.files.iter().map(|path| RunResult::read(path)).collect::<Result<Vec<_>, _>>()?;
    runs.iter_mut().for_each(complete);
    output::text(comparison::text(&runs));
    Ok(ExitCode::SUCCESS)
}
