//! Models as files: fetched, missing, damaged, or too small for what flags ask of them.

use crate::binary::{self, MODEL};
use libtest_mimic::Trial;
use std::fs;
use std::path::PathBuf;

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        flags_that_do_not_fit_the_model_are_named,
        a_missing_model_is_named,
        damaged_models_are_refused_with_their_file,
        pull_prints_a_model_that_serve_takes_as_a_file,
    ]
}

/// Checks that the binary fails and says every one of `expected`.
fn check_fails(arguments: &[&str], expected: &[&str]) {
    let output = binary::run(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{arguments:?} must fail");
    assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
    for text in expected {
        assert!(stderr.contains(text), "{arguments:?} must say {text}: {stderr}");
    }
}

fn flags_that_do_not_fit_the_model_are_named() {
    binary::model_path();
    let checks: [(&[&str], &[&str]); 3] = [
        (&["--max-model-len", "100000"], &["--max-model-len", "8192"]),
        (&["--kv-cache-memory", "1KiB"], &["--kv-cache-memory"]),
        (&["--chat-template", "no-such.jinja"], &["--chat-template", "no-such.jinja"]),
    ];
    for (flags, expected) in checks {
        check_fails(&[&["serve", "--port", "0", "--model", MODEL], flags].concat(), expected);
    }
}

fn a_missing_model_is_named() {
    for command in ["serve", "info"] {
        check_fails(&[command, "--model", "./no-such-model.gguf"], &["no-such-model.gguf"]);
    }
    let output = binary::command(&["pull", "nobody/no-such-model"])
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && stderr.contains("nobody/no-such-model"), "{stderr}");
    assert!(stderr.contains("HF_HUB_OFFLINE"), "{stderr}");
}

/// Writes a file for a check, and returns where.
fn file_of(name: &str, bytes: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn damaged_models_are_refused_with_their_file() {
    let whole = fs::read(binary::model_path()).unwrap();
    let mut zeroed = whole[..1 << 20].to_vec();
    zeroed[64..4096].fill(0);
    let damaged: [(&str, &[u8]); 5] = [
        ("empty.gguf", &[]),
        ("text.gguf", b"this is not a model"),
        ("cut-in-metadata.gguf", &whole[..1000]),
        ("cut-in-weights.gguf", &whole[..whole.len() / 2]),
        ("zeroed.gguf", &zeroed),
    ];
    for (name, bytes) in damaged {
        let path = file_of(name, bytes);
        let path = path.to_str().unwrap();
        check_fails(&["info", "--model", path], &[name]);
        check_fails(&["serve", "--port", "0", "--model", path], &[name]);
        fs::remove_file(path).unwrap();
    }
}

fn pull_prints_a_model_that_serve_takes_as_a_file() {
    let path = binary::model_path();
    assert!(path.is_file(), "{}", path.display());
    assert_eq!(binary::stdout_of(&["pull", MODEL]).trim_end(), path.to_str().unwrap());
    let info = binary::stdout_of(&["info", "--model", path.to_str().unwrap()]);
    assert!(info.contains("KV per token"), "{info}");
}
