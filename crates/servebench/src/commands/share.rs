//! `servebench share`: a run as Markdown on standard output, and as a picture beside it.

use crate::error::ServebenchError;
use crate::output;
use crate::report::{card, share};
use crate::results::RunResult;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct ShareArgs {
    /// File of a run, from `run`, `quick` or `find-capacity`
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Where to write the picture [default: beside the run, as NAME-card.png]
    #[arg(long, value_name = "PATH")]
    card: Option<PathBuf>,

    /// Write the Markdown only
    #[arg(long, conflicts_with = "card")]
    no_card: bool,
}

pub(crate) fn run(args: &ShareArgs) -> Result<ExitCode, ServebenchError> {
    let run = RunResult::read(&args.run)?;
    output::text(share::markdown(&run));
    if !args.no_card {
        let path = args.card.clone().unwrap_or_else(|| beside(&args.run));
        write_picture(&path, &card::png(&run))?;
        // Standard output holds the Markdown and nothing else, so that it can be piped.
        eprintln!("card: {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn beside(run: &Path) -> PathBuf {
    let mut name = run.file_stem().unwrap_or_default().to_owned();
    name.push("-card.png");
    run.with_file_name(name)
}

fn write_picture(path: &Path, picture: &[u8]) -> Result<(), ServebenchError> {
    let failed = |source| ServebenchError::File { action: "write", path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    std::fs::write(path, picture).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_lies_beside_the_run() {
        assert_eq!(beside(Path::new("runs/a.b.json")), Path::new("runs/a.b-card.png"));
    }
}
