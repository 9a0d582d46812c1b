//! The binary under test, and the model that it serves.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The default model's alias.
pub(crate) const MODEL: &str = "smollm2-135m";
/// Settings of the user's shell that would change what the checks see.
const OWN_VARIABLES: [&str; 6] = [
    "MINI_INFER_MODEL",
    "MINI_INFER_HOST",
    "MINI_INFER_PORT",
    "MINI_INFER_API_KEY",
    "MINI_INFER_LOG",
    "MINI_INFER_ISA",
];

/// Returns a command that runs the binary with nothing set but its arguments.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mini-infer"));
    command.args(arguments);
    for variable in OWN_VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// Runs the binary to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Returns the standard output of a run that must succeed.
pub(crate) fn stdout_of(arguments: &[&str]) -> String {
    let output = run(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Returns where the model lies; the first call fetches it if needed, as a user would.
pub(crate) fn model_path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| PathBuf::from(stdout_of(&["pull", MODEL]).trim_end()))
}
