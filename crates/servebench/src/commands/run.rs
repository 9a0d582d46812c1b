//! `servebench run`.

use super::config_file;
use super::console::{Console, exit_code, save, stop_on_ctrl_c};
use super::level_list::LevelList;
use super::workload_args::{Levels, WorkloadArgs};
use crate::error::ServebenchError;
use crate::load::runtime;
use crate::output;
use crate::results::{Mode, RunConfig, RunResult};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RunArgs {
    /// Closed loop: requests in flight, one level for each, such as 1,2,4,8
    #[arg(long, value_name = "N,N,...")]
    concurrency: Option<LevelList>,
    /// Open loop: arrivals per second, one level for each; "inf" sends everything at once
    #[arg(long, value_name = "R,R,...", conflicts_with = "concurrency")]
    rate: Option<LevelList>,
    /// Read flags from a YAML, TOML or JSON file, "_" for "-"; the command line wins
    #[arg(short, long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Run each level so often, to see how much the figures vary [default: 1]
    #[arg(short, long, value_name = "N")]
    repeat: Option<usize>,
    /// Send requests for at least so many seconds
    #[arg(long, value_name = "SECONDS")]
    min_duration: Option<f64>,
    /// Replay the arrivals of the trace, so many times as fast; the default with --trace, without
    /// --rate or --concurrency [default: 1]
    #[arg(long, value_name = "FACTOR")]
    trace_speed: Option<f64>,
    /// Write the levels to this CSV file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the requests to this CSV file
    #[arg(long, value_name = "FILE")]
    csv_requests: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    workload: WorkloadArgs,
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, ServebenchError> {
    let args = with_file(args)?;
    let config = config(&args)?;
    let benchmark = args.workload.benchmark(config)?;
    print_start(benchmark.config(), args.workload.seed());
    let out = args.workload.out.as_deref();
    let mut console = Console::new(out);
    let runtime = runtime(args.workload.client_threads())?;
    let result = runtime.block_on(async {
        let stop = stop_on_ctrl_c();
        benchmark.run(&mut console, &stop).await
    });
    console.finish();
    let run = result?;
    finish(&run, out, &args)?;
    Ok(exit_code(&run))
}

/// Returns the arguments with those of the file that they name.
fn with_file(args: &RunArgs) -> Result<RunArgs, ServebenchError> {
    let mut args = args.clone();
    args.workload.resolve_switches();
    let Some(path) = args.config.clone() else { return Ok(args) };
    let mut keys = config_file::read(&path)?;
    if args.concurrency.is_some() || args.rate.is_some() {
        // One of the two replaces either of the file.
        keys.remove("concurrency");
        keys.remove("rate");
    }
    config_file::merge(&args, keys, &path)
}

/// Returns the run that is asked for.
fn config(args: &RunArgs) -> Result<RunConfig, ServebenchError> {
    let usage = |flag: &str, message: &str| ServebenchError::Usage {
        flag: flag.to_owned(),
        message: message.to_owned(),
    };
    let (levels, trace_speed) = match (&args.concurrency, &args.rate) {
        (Some(_), Some(_)) => {
            return Err(usage("--rate", "cannot be given together with --concurrency"));
        }
        (Some(LevelList(values)), None) => {
            (Levels { mode: Mode::Concurrency, values: values.clone() }, args.trace_speed)
        }
        (None, Some(LevelList(values))) => {
            if args.trace_speed.is_some() {
                let message = "replays the arrivals of the trace; leave out --rate";
                return Err(usage("--trace-speed", message));
            }
            (Levels { mode: Mode::Rate, values: values.clone() }, None)
        }
        (None, None) if args.workload.has_trace() => {
            let speed = args.trace_speed.unwrap_or(1.0);
            (Levels { mode: Mode::Rate, values: Vec::new() }, Some(speed))
        }
        (None, None) => {
            return Err(usage("--concurrency", "give it, --rate, or --trace to replay one"));
        }
    };
    if args.trace_speed.is_some() && !args.workload.has_trace() {
        return Err(usage("--trace-speed", "needs --trace"));
    }
    Ok(RunConfig {
        min_duration: args.min_duration,
        repeat: args.repeat.unwrap_or(1),
        trace_speed,
        ..args.workload.config(levels)
    })
}

/// Says what is about to happen, and the seed where the user did not choose it.
fn print_start(config: &RunConfig, seed: Option<u64>) {
    let levels: Vec<String> = config.levels.iter().map(ToString::to_string).collect();
    let what = match (config.mode, &config.trace) {
        (Mode::Rate, Some(trace)) if levels.is_empty() => format!("replay of {trace}"),
        (Mode::Rate, _) => format!("rates {} per second", levels.join(", ")),
        (Mode::Concurrency, _) => format!("concurrency {}", levels.join(", ")),
    };
    let repeat =
        if config.repeat > 1 { format!(" ({} times each)", config.repeat) } else { String::new() };
    output::line(format!(
        "servebench {}: {what}{repeat} against {} ({})",
        env!("CARGO_PKG_VERSION"),
        config.url,
        config.model
    ));
    print_seed(config.seed, seed);
}

/// Says the seed where the user did not choose it.
pub(crate) fn print_seed(seed: u64, given: Option<u64>) {
    if given.is_none() {
        output::line(format!("seed {seed} (--seed {seed} repeats these prompts and arrivals)"));
    }
}

/// Prints the run and writes its files.
fn finish(run: &RunResult, out: Option<&Path>, args: &RunArgs) -> Result<(), ServebenchError> {
    print_and_save(run, out)?;
    let _ = args;
    Ok(())
}

/// Prints the run and writes it to `out`.
pub(crate) fn print_and_save(run: &RunResult, out: Option<&Path>) -> Result<(), ServebenchError> {
    if run.levels.is_empty() {
        output::line("stopped before any request had ended; nothing was measured");
    } else {
        output::line("");
    }
    if let Some(path) = save(run, out)? {
        output::line(format!("saved {}", path.display()));
    }
    Ok(())
}
