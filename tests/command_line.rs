//! The command line as a user meets it: what is printed where, and the exit code.

use std::path::Path;
use std::process::{Command, Output};

/// Runs the binary with a cache in `home` and no network.
fn run(home: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mini-infer"))
        .args(arguments)
        .env("HF_HOME", home)
        .env("HF_HUB_OFFLINE", "1")
        .env_remove("HF_HUB_CACHE")
        .env_remove("MINI_INFER_MODEL")
        .output()
        .expect("the binary of this package runs")
}

/// Checks that `arguments` fail with a message on standard error that holds `expected`.
fn check_refused(arguments: &[&str], expected: &str) {
    let output = run(Path::new(env!("CARGO_TARGET_TMPDIR")), arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?}");
    assert!(message.contains(expected), "{arguments:?}: {message}");
}

#[test]
fn numbers_that_do_not_fit_are_refused_before_anything_is_fetched() {
    check_refused(
        &["serve", "--max-model-len", "8192", "--num-blocks", "256"],
        "--max-model-len 8192 needs 512 blocks of 16 tokens, --num-blocks gives 256",
    );
    check_refused(&["serve", "--max-num-seqs", "600"], "--max-num-batched-tokens gives 512");
    check_refused(&["serve", "--block-size", "24"], "--block-size");
    check_refused(&["serve", "--kv-cache-memory", "2XB"], "not a size such as 2GiB");
    check_refused(&["serve", "--num-blocks", "9", "--kv-cache-memory", "1GiB"], "cannot be used");
    check_refused(&["serve", "--threads", "0"], "--threads");
}

#[test]
fn unknown_flags_and_models_say_what_is_known() {
    check_refused(&["serve", "--num-block", "9"], "--num-blocks");
    check_refused(&["pull", "no-such-alias"], "smollm2-135m");
    check_refused(&["info", "--model", "organisation/name"], "`mini-infer pull organisation/name`");
}

#[test]
fn info_without_a_model_prints_the_machine() {
    let output = run(Path::new(env!("CARGO_TARGET_TMPDIR")), &["info"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for line in ["cores ", "instruction set ", "memory ", "no model in the cache yet"] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn help_names_every_command_and_flag() {
    let help = |arguments: &[&str]| {
        let output = run(Path::new(env!("CARGO_TARGET_TMPDIR")), arguments);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let commands = help(&["--help"]);
    let names = ["serve", "pull", "info", "simulate"];
    assert!(names.iter().all(|command| commands.contains(command)));
    let flags = [
        "--model",
        "--host",
        "--port",
        "--served-model-name",
        "--max-model-len",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--block-size",
        "--num-blocks",
        "--kv-cache-memory",
        "--kv-cache-dtype",
        "--no-prefix-caching",
        "--threads",
        "--seed",
        "--api-key",
        "--api-key-file",
        "--management-key",
        "--allowed-host",
        "--cors-origin",
        "--tls-cert",
        "--tls-key",
        "--max-connections",
        "--client-timeout",
        "--request-timeout",
        "--max-requests-per-client",
        "--response-store",
        "--access-log",
        "--otlp-endpoint",
        "--shutdown-timeout",
        "--chat-template",
        "--tool-call-parser",
        "--reasoning-parser",
    ];
    let serve = help(&["serve", "--help"]);
    assert!(flags.iter().all(|flag| serve.contains(flag)), "{serve}");
}

#[test]
fn a_simulation_prints_a_table_or_json_and_draws_a_figure() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let figure = folder.join("simulation.svg");
    let figure = figure.to_str().expect("a path of Cargo's is text");
    let simulate = ["simulate", "--requests", "60", "--allocator", "contiguous-max,paged-16"];
    let output = run(folder, &[&simulate[..], &["--svg", figure]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8_lossy(&output.stdout);
    for text in ["a saturated queue", "15728 tokens", "contiguous-max ", "paged-16 "] {
        assert!(table.contains(text), "{table}");
    }
    let svg = std::fs::read_to_string(figure).expect("the figure was written");
    assert!(svg.starts_with("<svg") && svg.contains("contiguous-max"));
    let output = run(folder, &[&simulate[..], &["--json", "-"]].concat());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("only JSON");
    assert_eq!(json["allocators"][1]["name"], "paged-16");
}

#[test]
fn simulations_that_cannot_run_say_what_is_missing() {
    check_refused(&["simulate", "--trace", "no-such-file"], "no-such-file cannot be read");
    check_refused(&["simulate", "--allocator", "paged"], "there is no allocator `paged`");
    check_refused(
        &["simulate", "--kv-tokens", "900"],
        "contiguous-max needs KV memory for at least",
    );
    check_refused(&["simulate", "--step-floor", "0ms"], "--step-floor is 0 ms");
    check_refused(&["simulate", "--concurrency", "4", "--saturate"], "cannot be used with");
    let sized = ["simulate", "--kv-cache-memory", "1GiB", "--kv-bytes-per-token", "0"];
    check_refused(&sized, "--kv-bytes-per-token must be at least 1");
}

#[test]
fn keys_and_certificates_that_cannot_be_used_end_a_server_before_it_serves() {
    check_refused(&["serve", "--api-key-file", "no-such-file"], "--api-key-file no-such-file");
    check_refused(&["serve", "--api-key", "two words"], "visible ASCII characters");
    check_refused(&["serve", "--tls-cert", "cert.pem"], "--tls-key");
    check_refused(
        &["serve", "--tls-cert", "no-such-file", "--tls-key", "no-such-file"],
        "no-such-file cannot be read as certificates in PEM",
    );
    check_refused(&["serve", "--cors-origin", "chat.example"], "is not an origin");
}
