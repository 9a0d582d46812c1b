//! The `mini-infer` binary: glue only.
//!
//! `cli` parses, `config` and `memory_plan` validate, `assemble` puts the crates together, and
//! `commands` runs them. Everything worth testing lives in the crates or in pure functions here.
#![forbid(unsafe_code)]

mod access;
mod adapters;
mod assemble;
mod byte_size;
mod cli;
mod cli_simulate;
mod commands;
mod config;
mod download_progress;
mod error;
mod folder_text;
mod gguf_text;
mod kv_tier;
mod load_progress;
mod logging;
mod machine;
mod memory_plan;
mod model_details;
mod output;
mod output_format;
mod speed_bounds;
mod target_itl;
mod time_span;

use clap::Parser;
use cli::{Cli, Command};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => commands::serve::run(*args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::Info(args) => commands::info::run(&args),
        Command::Simulate(args) => commands::simulate::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut source = error.source();
            while let Some(error) = source {
                eprintln!("  because: {error}");
                source = error.source();
            }
            ExitCode::FAILURE
        }
    }
}
