//! `mini-infer pull`: fetches a model into the cache.

use crate::assemble::model_sources;
use crate::cli::PullArgs;
use crate::download_progress::DownloadProgress;
use crate::error::CommandError;
use crate::output;
use mini_infer_hub::resolve;

/// Fetches the model, or finds that it is there, and prints where it lies.
///
/// # Errors
/// When it cannot be found or fetched.
pub(crate) fn run(args: &PullArgs) -> Result<(), CommandError> {
    let options = model_sources()?;
    let resolved = resolve(&args.model, &options, &mut DownloadProgress::default())?;
    output::line(resolved.files.path().display());
    Ok(())
}
