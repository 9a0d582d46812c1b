//! The program `servebench`: parses the command line and runs one command.
#![forbid(unsafe_code)]

use clap::Parser;
use servebench::commands::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    // There is one provider of cryptography in this program, so nobody can have set another.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Cli::parse().run()
}
