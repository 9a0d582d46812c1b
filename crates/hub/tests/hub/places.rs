//! Where a model of the Hub lies: revisions, subfolders, moved repositories, shards.

use std::fs;

use crate::stand_in::{COMMIT, Fault, Host, StandIn, content, offline_options};
use mini_infer_hub::{HubError, NoProgress, resolve};

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:\
    4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

#[test]
fn a_file_in_a_subfolder_of_another_revision_is_fetched_and_found_again() {
    let hub = StandIn::start(&[("sub/m-Q8_0.gguf", b"q8"), ("m-Q4_0.gguf", b"q4")]);
    let home = tempfile::tempdir().unwrap();
    let name = "org/model@refs/pr/1:sub/m-Q8_0.gguf";
    let model = resolve(name, &hub.options(home.path()), &mut NoProgress).unwrap();
    let folder = home.path().join("hub/models--org--model");
    let expected = folder.join("snapshots").join(COMMIT).join("sub/m-Q8_0.gguf");
    assert_eq!(model.files.path(), expected);
    assert_eq!(fs::read(model.files.path()).unwrap(), b"q8");
    assert_eq!(fs::read_to_string(folder.join("refs/refs/pr/1")).unwrap(), COMMIT);
    let asked = &hub.seen(Host::Hub)[0].path;
    assert!(asked.starts_with("/api/models/org/model/revision/refs%2Fpr%2F1"), "{asked}");
    let offline = offline_options(home.path());
    assert_eq!(resolve(name, &offline, &mut NoProgress).unwrap(), model);
    let main = resolve("org/model:sub/m-Q8_0.gguf", &offline, &mut NoProgress);
    assert!(matches!(main, Err(HubError::Offline { .. })), "{main:?}");
}

#[test]
fn a_repository_that_moved_is_found_under_its_old_name() {
    let hub = StandIn::start(&[("m.gguf", b"bytes")]);
    hub.change(|state| {
        let moved =
            [("/api/models/old/name/", "/api/models/org/model/"), ("/old/name/", "/org/model/")];
        state.redirects.extend(moved.map(|(from, to)| (from.to_owned(), to.to_owned())));
    });
    let home = tempfile::tempdir().unwrap();
    let model = resolve("old/name", &hub.options(home.path()), &mut NoProgress).unwrap();
    assert_eq!(fs::read(model.files.path()).unwrap(), b"bytes");
    // The token stays with the Hub's own redirects, and only with those.
    assert!(hub.seen(Host::Hub).iter().all(|seen| seen.authorization.is_some()));
    assert!(hub.seen(Host::Storage).iter().all(|seen| seen.authorization.is_none()));
}

#[test]
fn a_redirect_to_another_host_does_not_take_the_token_along() {
    let hub = StandIn::start(&[("m.gguf", b"bytes")]);
    let elsewhere = format!("{}/api/", hub.storage);
    hub.change(|state| drop(state.redirects.insert("/api/".to_owned(), elsewhere)));
    let home = tempfile::tempdir().unwrap();
    let error = resolve("org/model", &hub.options(home.path()), &mut NoProgress).unwrap_err();
    assert!(matches!(error, HubError::UnexpectedStatus { status: 403, .. }), "{error}");
    let seen = hub.seen(Host::Storage);
    assert!(seen.len() == 1 && seen[0].authorization.is_none(), "{seen:?}");
}

#[test]
fn redirects_without_end_are_given_up() {
    let hub = StandIn::start(&[("m.gguf", b"bytes")]);
    hub.change(|state| drop(state.redirects.insert("/api/".to_owned(), "/api/".to_owned())));
    let home = tempfile::tempdir().unwrap();
    let error = resolve("org/model", &hub.options(home.path()), &mut NoProgress).unwrap_err();
    assert!(error.to_string().contains("redirects without end"), "{error}");
    assert!(hub.seen(Host::Hub).len() < 20);
}

#[test]
fn shards_that_are_here_are_not_fetched_again() {
    let index = br#"{"weight_map":{"a":"m-1.safetensors","b":"sub/m-2.safetensors"}}"#;
    let (first, second) = (content(200_000), content(300_000));
    let files: [(&str, &[u8]); 5] = [
        ("config.json", b"{}"),
        ("tokenizer.json", b"{ }"),
        ("model.safetensors.index.json", index),
        ("m-1.safetensors", &first),
        ("sub/m-2.safetensors", &second),
    ];
    let hub = StandIn::start(&files);
    let home = tempfile::tempdir().unwrap();
    let mut options = hub.options(home.path());
    options.retries.max_failures = 1;
    hub.fail_next(Host::Storage, Fault::Pass);
    hub.fail_next(Host::Storage, Fault::DropAfter(100_000));
    let error = resolve("org/model", &options, &mut NoProgress).unwrap_err();
    assert!(matches!(error, HubError::Interrupted { .. }), "{error}");
    let model = resolve("org/model", &options, &mut NoProgress).unwrap();
    assert!(fs::read(model.files.path().join("sub/m-2.safetensors")).unwrap() == second);
    let seen = hub.seen(Host::Storage);
    let seen: Vec<_> = seen.iter().map(|seen| seen.range.as_deref()).collect();
    assert_eq!(seen, [None, None, Some("bytes=100000-")]);
    assert_eq!(
        resolve("org/model", &offline_options(home.path()), &mut NoProgress).unwrap(),
        model
    );
}

#[test]
fn a_clone_without_its_large_files_says_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let resolve_path = |path: &std::path::Path| {
        resolve(path.to_str().unwrap(), &offline_options(home.path()), &mut NoProgress)
    };
    let file = home.path().join("m.gguf");
    fs::write(&file, POINTER).unwrap();
    for path in [home.path(), file.as_path()] {
        let error = resolve_path(path).unwrap_err().to_string();
        assert!(error.contains("m.gguf is a Git LFS pointer"), "{error}");
        assert!(error.contains("git lfs pull"), "{error}");
    }
    fs::remove_file(file).unwrap();
    fs::write(home.path().join("config.json"), "{}").unwrap();
    fs::write(home.path().join("tokenizer.json"), POINTER).unwrap();
    fs::write(home.path().join("model.safetensors"), "weights").unwrap();
    let error = resolve_path(home.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json is a Git LFS pointer"), "{error}");
}

#[test]
fn a_server_that_sends_the_pointer_for_the_file_is_refused() {
    let hub = StandIn::start(&[("m.gguf", POINTER.as_bytes())]);
    hub.change(|state| state.announced = Some("ab".repeat(32)));
    let home = tempfile::tempdir().unwrap();
    let error = resolve("org/model", &hub.options(home.path()), &mut NoProgress).unwrap_err();
    assert!(matches!(error, HubError::ChecksumMismatch { .. }), "{error}");
}
