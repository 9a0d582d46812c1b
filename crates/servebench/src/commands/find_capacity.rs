//! `servebench find-capacity`.

use super::console::{Console, exit_code, stop_on_ctrl_c};
use super::run::{print_and_save, print_seed};
use super::workload_args::{Levels, WorkloadArgs};
use crate::capacity::{CapacitySearch, LoadScale, passes};
use crate::error::ServebenchError;
use crate::load::{Benchmark, Observer, StopHandle, runtime};
use crate::output;
use crate::results::{CapacityResult, LoadValue, Mode, RunResult};
use clap::{Args, ValueEnum};
use std::process::ExitCode;

/// What the search counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LoadKind {
    /// Requests in flight
    Concurrency,
    /// Arrivals per second
    Rate,
}

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct FindCapacityArgs {
    /// What the load counts
    #[arg(long, default_value = "concurrency")]
    mode: LoadKind,
    /// First load to try
    #[arg(long, value_name = "LOAD", default_value_t = 1.0)]
    start: f64,
    /// Highest load to try
    #[arg(long, value_name = "LOAD", default_value_t = 256.0)]
    max: f64,
    /// Share of requests that must meet the SLO for a level to pass; none may fail
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    target: f64,
    /// Stop when the gap between pass and fail is within this share of the passing load
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    tolerance: f64,
    #[command(flatten)]
    workload: WorkloadArgs,
}

/// Which loads are searched, and what they must meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SearchRange {
    /// First load.
    pub(crate) start: f64,
    /// Highest load.
    pub(crate) max: f64,
    /// Share of requests that must meet the SLO.
    pub(crate) target: f64,
    /// Largest gap to end with, as a share of the passing load.
    pub(crate) tolerance: f64,
}

pub(crate) fn run(args: &FindCapacityArgs) -> Result<ExitCode, ServebenchError> {
    let mut workload = args.workload.clone();
    workload.resolve_switches();
    let range = SearchRange {
        start: args.start,
        max: args.max,
        target: args.target,
        tolerance: args.tolerance,
    };
    check_range(range)?;
    let mode = match args.mode {
        LoadKind::Concurrency => Mode::Concurrency,
        LoadKind::Rate => Mode::Rate,
    };
    let benchmark = workload.benchmark(workload.config(Levels { mode, values: Vec::new() }))?;
    let config = benchmark.config();
    output::line(format!(
        "servebench {}: capacity of {} ({}); a level passes when no request fails and {:.0}% meet \
         the SLO",
        env!("CARGO_PKG_VERSION"),
        config.url,
        config.model,
        range.target * 100.0,
    ));
    print_seed(config.seed, workload.seed());
    let mut console = Console::new(workload.out.as_deref()).with_target(range.target);
    let runtime = runtime(workload.client_threads())?;
    let result = runtime.block_on(async {
        let stop = stop_on_ctrl_c();
        search(&benchmark, range, &mut console, &stop).await
    });
    console.finish();
    let run = result?;
    print_and_save(&run, workload.out.as_deref())?;
    Ok(exit_code(&run))
}

fn check_range(range: SearchRange) -> Result<(), ServebenchError> {
    let rules = [
        (range.start > 0.0, "--start", "must be above 0"),
        (range.max.is_finite(), "--max", "must be finite"),
        (range.max >= range.start, "--max", "must not be below --start"),
        (range.target > 0.0 && range.target <= 1.0, "--target", "is a share above 0, up to 1"),
        (
            range.tolerance.is_finite() && range.tolerance >= 0.0,
            "--tolerance",
            "must be 0 or more and finite",
        ),
    ];
    match rules.into_iter().find(|(holds, ..)| !holds) {
        Some((_, flag, message)) => {
            Err(ServebenchError::Usage { flag: flag.to_owned(), message: message.to_owned() })
        }
        None => Ok(()),
    }
}

/// Searches the highest load that passes. A search that was stopped has no result.
///
/// # Errors
/// When the server does not answer.
pub(crate) async fn search(
    benchmark: &Benchmark,
    range: SearchRange,
    observer: &mut dyn Observer,
    stop: &StopHandle,
) -> Result<RunResult, ServebenchError> {
    let config = benchmark.config();
    let scale = match config.mode {
        Mode::Concurrency => LoadScale::Whole,
        Mode::Rate => LoadScale::Continuous,
    };
    let mut measurement = benchmark.start(observer, stop).await?;
    let mut search = CapacitySearch::new(range.start, range.max, scale, range.tolerance);
    while let Some(load) = search.next() {
        if stop.is_requested() {
            break;
        }
        let level = measurement.measure(LoadValue(load)).await?;
        // Of a level that was stopped nobody knows whether it would have passed.
        match level.filter(|level| level.num_interrupted.is_none()) {
            Some(level) => search.record(load, passes(level, range.target)),
            None => break,
        }
    }
    if search.next().is_none() {
        let outcome = search.outcome();
        measurement.set_capacity(CapacityResult {
            mode: config.mode,
            target: range.target,
            slo_ttft_ms: config.slo_ttft_ms,
            slo_tpot_ms: config.slo_tpot_ms,
            capacity: outcome.capacity,
            first_fail: outcome.first_fail,
            reason: outcome.reason,
        });
    }
    Ok(measurement.finish().await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_cannot_be_is_refused_by_flag() {
        let range = SearchRange { start: 1.0, max: 8.0, target: 0.9, tolerance: 0.1 };
        check_range(range).unwrap();
        for (bad, flag) in [
            (SearchRange { start: 0.0, ..range }, "--start"),
            (SearchRange { start: f64::NAN, ..range }, "--start"),
            (SearchRange { max: 0.5, ..range }, "--max"),
            (SearchRange { max: f64::INFINITY, ..range }, "--max"),
            (SearchRange { target: 0.0, ..range }, "--target"),
            (SearchRange { target: 90.0, ..range }, "--target"),
            (SearchRange { tolerance: -0.1, ..range }, "--tolerance"),
        ] {
            let message = check_range(bad).unwrap_err().to_string();
            assert!(message.starts_with(flag), "{message}");
        }
    }
}
