//! The program `servebench`: parses the command line and runs one command.
#![forbid(unsafe_code)]

use clap::Parser;
use servebench::commands::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    Cli::parse().run()
}
