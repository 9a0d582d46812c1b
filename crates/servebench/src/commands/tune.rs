//! `servebench tune`.

use super::console::{Console, stop_on_ctrl_c};
use super::quick::choose;
use super::run::print_seed;
use super::workload_args::random_seed;
use crate::error::ServebenchError;
use crate::load::{Benchmark, runtime};
use crate::output;
use crate::report::tuning;
use crate::results::{LoadValue, RunConfig, RunResult, Slo};
use crate::statistics::resummarize;
use crate::tune::{Engine, Targets, tune};
use clap::Args;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Levels that are measured when there is no run.
const LEVELS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// A saved run [default: measures 1, 2, 4, 8 and 16 requests at once]
    #[arg(value_name = "FILE")]
    run: Option<PathBuf>,
    /// Base URL of the API [default: the first server found on the usual ports of this machine]
    #[arg(short, long, conflicts_with = "run")]
    url: Option<String>,
    /// Model to measure [default: the one that is loaded, or the first that can chat]
    #[arg(short, long, conflicts_with = "run")]
    model: Option<String>,
    /// Bearer token
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// Where what is measured is saved
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    out: Option<PathBuf>,
    /// Longest time to the first token
    #[arg(long, value_name = "MS", default_value_t = 150.0, value_parser = milliseconds)]
    target_ttft_ms: f64,
    /// Longest time per further token
    #[arg(long, value_name = "MS", default_value_t = 40.0, value_parser = milliseconds)]
    target_itl_ms: f64,
    /// Share of requests that must meet both
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    target: f64,
    /// Engine to write settings for [default: the one that the run was measured against]
    #[arg(short, long)]
    engine: Option<Engine>,
}

pub(crate) fn run(args: &TuneArgs) -> Result<ExitCode, ServebenchError> {
    let slo = Slo { ttft_ms: Some(args.target_ttft_ms), tpot_ms: Some(args.target_itl_ms) };
    let targets = Targets { slo, share: args.target };
    let (mut run, named) = match &args.run {
        Some(path) => (RunResult::read(path)?, path.display().to_string()),
        None => (measure(args, slo)?, "the run".to_owned()),
    };
    resummarize(&mut run, slo);
    let Some(found) = tune(&run, targets) else {
        let message = format!("{named} has no requests; measure some levels first");
        return Err(ServebenchError::Usage { flag: "FILE".to_owned(), message });
    };
    let told = run.environment.engine.as_deref().and_then(Engine::from_name);
    output::text(tuning::text(&run, &found, targets, args.engine.or(told)));
    Ok(if found.knee.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures the usual levels.
fn measure(args: &TuneArgs, slo: Slo) -> Result<RunResult, ServebenchError> {
    let runtime = runtime(NonZeroUsize::MIN)?;
    let (server, model) = runtime.block_on(choose(
        args.url.as_deref(),
        args.model.as_deref(),
        args.api_key.as_deref(),
    ))?;
    output::line(format!("servebench tune: {} at {}, model {model}", server.engine, server.url));
    let config = RunConfig {
        url: server.url,
        levels: LEVELS.map(LoadValue).to_vec(),
        seed: random_seed(),
        slo_ttft_ms: slo.ttft_ms,
        slo_tpot_ms: slo.tpot_ms,
        model,
        ..RunConfig::default()
    };
    print_seed(config.seed, None);
    let benchmark = Benchmark::new(config)?.api_key(args.api_key.clone());
    let mut console = Console::new(args.out.as_deref()).with_target(args.target);
    let result = runtime.block_on(async {
        let stop = stop_on_ctrl_c();
        benchmark.run(&mut console, &stop).await
    });
    console.finish();
    let run = result?;
    if let Some(path) = &args.out {
        run.write(path)?;
    }
    output::line("");
    Ok(run)
}

/// Reads a length of time in milliseconds.
fn milliseconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of milliseconds")?;
    if number.is_finite() && number > 0.0 {
        Ok(number)
    } else {
        Err("a target is above zero milliseconds".to_owned())
    }
}

/// Reads a share.
fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number")?;
    if number > 0.0 && number <= 1.0 {
        Ok(number)
    } else {
        Err("a share is above 0 and at most 1, such as 0.9".to_owned())
    }
}
