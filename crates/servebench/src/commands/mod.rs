//! The command line: one file per command, each with its arguments.

pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod config_file;
pub(crate) mod console;
pub(crate) mod find_capacity;
pub(crate) mod find_context_limit;
pub(crate) mod level_list;
pub(crate) mod mock_server;
pub(crate) mod quick;
pub(crate) mod report;
pub(crate) mod roofline;
pub(crate) mod run;
pub(crate) mod share;
pub(crate) mod top;
pub(crate) mod tune;
pub(crate) mod workload_args;

use crate::error::ServebenchError;
use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;

/// Measures any OpenAI-compatible LLM server: latency, throughput, goodput and capacity.
#[derive(Debug, Parser)]
#[command(name = "servebench", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure a server at several levels of load
    Run(Box<run::RunArgs>),
    /// Find a local server, measure it for a minute, and say what the figures mean
    Quick(quick::QuickArgs),
    /// Find the highest load that still meets the latency targets
    FindCapacity(Box<find_capacity::FindCapacityArgs>),
    /// Find the longest prompt that the server takes
    FindContextLimit(find_context_limit::FindContextLimitArgs),
    /// Set runs side by side
    #[command(alias = "compare-models")]
    Compare(compare::CompareArgs),
    /// Compare a run with a baseline, and fail when it is slower than allowed
    Check(check::CheckArgs),
    /// Print saved runs, and write them as HTML, Markdown or CSV
    Report(report::ReportArgs),
    /// Write a run as Markdown and a picture, to show to others
    Share(share::ShareArgs),
    /// Compare a run with what the machine could do at most
    Roofline(roofline::RooflineArgs),
    /// Recommend settings for the server from a run
    Tune(tune::TuneArgs),
    /// Watch a server live
    Top(top::TopArgs),
    /// Serve made-up tokens at exact times, to test clients
    MockServer(mock_server::MockServerArgs),
}

impl Cli {
    /// Runs the command; errors go to standard error.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let result = match &self.command {
            Command::Run(args) => run::run(args),
            Command::Quick(args) => quick::run(args),
            Command::FindCapacity(args) => find_capacity::run(args),
            Command::FindContextLimit(args) => find_context_limit::run(args),
            Command::Compare(args) => compare::run(args),
            Command::Check(args) => check::run(args),
            Command::Report(args) => report::run(args),
            Command::Share(args) => share::run(args),
            Command::Roofline(args) => roofline::run(args),
            Command::Tune(args) => tune::run(args),
            Command::Top(args) => top::run(args),
            Command::MockServer(args) => mock_server::run(args),
        };
        result.unwrap_or_else(|error| {
            print_error(&error);
            ExitCode::from(2)
        })
    }
}

fn print_error(error: &ServebenchError) {
    let mut message = format!("error: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        message.push_str(&format!(": {error}"));
        source = error.source();
    }
    eprintln!("{message}");
}
