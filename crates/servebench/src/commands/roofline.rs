//! `servebench roofline`.

use crate::error::ServebenchError;
use crate::output;
use crate::results::RunResult;
use crate::roofline::{self, ModelFacts, ModelSize, PeakFlags, Peaks};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct RooflineArgs {
    /// A run's run.json, or the folder that holds it; without it, tells what is possible at most
    run: Option<PathBuf>,
    /// Name of the model, which may tell its size, such as llama3:8b-q4_k_m
    #[arg(long, short)]
    model: Option<String>,
    /// Parameters of the model, such as 135M or 1.5B
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    params: Option<f64>,
    /// Bytes of the model's weights, such as 98000000 or 4.9G
    #[arg(long, value_name = "BYTES", value_parser = number, conflicts_with = "model_file")]
    model_bytes: Option<f64>,
    /// File of the model's weights, whose size counts
    #[arg(long, value_name = "PATH")]
    model_file: Option<PathBuf>,
    /// GPU that serves, by the name that its driver gives it; "none" for the processor
    #[arg(long, short, alias = "gpu-name", value_name = "NAME")]
    gpu: Option<String>,
    /// Memory bandwidth at most, in GB/s
    #[arg(long, short, alias = "gpu-mem-bw", value_name = "GB/s", value_parser = number)]
    bandwidth: Option<f64>,
    /// Arithmetic at most, in TFLOP/s
    #[arg(long, alias = "gpu-tflops", value_name = "TFLOP/s", value_parser = number)]
    peak_tflops: Option<f64>,
}

fn number(text: &str) -> Result<f64, String> {
    roofline::parse_number(text)
        .ok_or_else(|| "expected a positive number, such as 98000000, 135M or 1.5B".to_owned())
}

pub(crate) fn run(args: &RooflineArgs) -> Result<ExitCode, ServebenchError> {
    let run = args.run.as_deref().map(read_run).transpose()?;
    let model = model_size(args, run.as_ref())?;
    let flags = PeakFlags {
        gpu: args.gpu.as_deref(),
        bandwidth_gb_s: args.bandwidth,
        peak_tflops: args.peak_tflops,
    };
    let peaks = Peaks::find(flags, run.as_ref(), model.as_ref())
        .map_err(|message| usage("--gpu", message))?;
    match (&run, &model) {
        (Some(run), Some(model)) => output::text(roofline::run_text(run, &peaks, model)),
        (_, model) => output::text(roofline::limits_text(&peaks, model.as_ref())),
    }
    Ok(ExitCode::SUCCESS)
}

fn read_run(path: &Path) -> Result<RunResult, ServebenchError> {
    let file = if path.is_dir() { path.join("run.json") } else { path.to_owned() };
    Ok(RunResult::read(&file)?)
}

/// Returns the size of the model; `None` when there is no run and no word about a model.
fn model_size(
    args: &RooflineArgs,
    run: Option<&RunResult>,
) -> Result<Option<ModelSize>, ServebenchError> {
    let name = args.model.as_deref().or(run.map(|run| run.config.model.as_str()));
    let file_name = || args.model_file.as_deref()?.file_name()?.to_str();
    let facts = ModelFacts {
        name: name.or_else(file_name),
        num_parameters: args.params,
        weight_bytes: args.model_bytes,
        file: args.model_file.as_deref(),
        // What the server said is about the run's model, not about one that the user names.
        server: run
            .filter(|run| args.model.as_ref().is_none_or(|name| *name == run.config.model))
            .and_then(|run| run.environment.model_info.as_ref()),
    };
    let is_asked = facts.name.is_some() || args.params.is_some() || args.model_bytes.is_some();
    if !is_asked {
        return Ok(None);
    }
    ModelSize::find(&facts).map(Some).map_err(|message| usage("--model", message))
}

fn usage(flag: &str, message: String) -> ServebenchError {
    ServebenchError::Usage { flag: flag.to_owned(), message }
}
