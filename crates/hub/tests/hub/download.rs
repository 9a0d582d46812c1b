//! Models of the Hub, fetched from a stand-in that behaves like the real one.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::setup::{FILE, NUM_BYTES, Setup};
use crate::stand_in::{COMMIT, Events, Fault, Host, StandIn, git_blob, offline_options, sha256};
use mini_infer_hub::{CacheLookup, HubError, HubOptions, ModelFiles, Network, NoProgress, resolve};

fn range(start: usize) -> Option<String> {
    Some(format!("bytes={start}-"))
}

#[test]
fn file_lands_in_the_standard_cache_layout() {
    let setup = Setup::new();
    setup.check_fetched();
    let blob = setup.repo_folder().join("blobs").join(sha256(&setup.bytes));
    assert!(blob.is_file());
    assert_eq!(fs::read_to_string(setup.repo_folder().join("refs/main")).unwrap(), COMMIT);
    #[cfg(unix)]
    {
        let link = setup.repo_folder().join("snapshots").join(COMMIT).join(FILE);
        let target = fs::read_link(link).unwrap();
        assert_eq!(target, Path::new("../../blobs").join(sha256(&setup.bytes)));
    }
}

#[test]
fn cached_model_is_found_without_a_request() {
    let setup = Setup::new();
    setup.check_fetched();
    let num_seen = setup.hub.seen(Host::Hub).len();
    setup.check_fetched();
    assert_eq!(setup.hub.seen(Host::Hub).len(), num_seen);
    let offline = resolve("org/model", &offline_options(setup.home.path()), &mut NoProgress);
    assert_eq!(offline.unwrap().name, "org/model");
}

#[cfg(unix)]
#[test]
fn model_cached_by_huggingface_hub_is_found_offline() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("hub/models--org--model");
    let snapshot = folder.join("snapshots").join(COMMIT);
    for name in ["blobs", "refs"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::write(folder.join("blobs").join(file), file).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{file}"), snapshot.join(file)).unwrap();
    }
    let options = offline_options(home.path());
    let files = resolve("org/model", &options, &mut NoProgress).unwrap().files;
    assert_eq!(files, ModelFiles::Checkpoint(snapshot.clone()));
    fs::remove_file(folder.join("blobs/model.safetensors")).unwrap();
    let error = resolve("org/model", &options, &mut NoProgress).unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
}

#[test]
fn dropped_connection_goes_on_where_it_stopped() {
    let setup = Setup::new();
    setup.hub.fail_next(Host::Storage, Fault::DropAfter(300_000));
    setup.hub.fail_next(Host::Storage, Fault::DropAfter(100_000));
    setup.check_fetched();
    assert_eq!(setup.ranges(), [None, range(300_000), range(400_000)]);
}

#[test]
fn stalled_connection_is_given_up_and_goes_on_where_it_stopped() {
    let setup = Setup::new();
    let mut options = setup.options();
    options.timeouts.stall = Duration::from_secs(1);
    setup.hub.fail_next(Host::Storage, Fault::StallAfter(200_000));
    resolve("org/model", &options, &mut NoProgress).unwrap();
    // On a machine busy enough, a healthy connection counts as stalled too.
    assert_eq!(setup.ranges()[..2], [None, range(200_000)]);
    setup.check_fetched();
}

#[test]
fn killed_transfer_is_never_taken_for_a_model_and_goes_on_in_the_next_process() {
    let setup = Setup::new();
    let mut options = setup.options();
    options.retries.max_failures = 1;
    setup.hub.fail_next(Host::Storage, Fault::DropAfter(500_000));
    let error = resolve("org/model", &options, &mut NoProgress).unwrap_err();
    assert!(matches!(error, HubError::Interrupted { .. }), "{error}");
    setup.check_nothing_cached();
    setup.check_fetched();
    assert_eq!(setup.ranges(), [None, range(500_000)]);
}

#[test]
fn wrong_bytes_of_an_earlier_transfer_are_discarded_and_fetched_again() {
    let setup = Setup::new();
    setup.leave_incomplete(&[0; 1000]);
    setup.check_fetched();
    assert_eq!(setup.ranges(), [range(1000), None]);
}

#[test]
fn complete_but_unverified_bytes_are_verified_without_a_transfer() {
    let setup = Setup::new();
    setup.leave_incomplete(&setup.bytes);
    setup.check_fetched();
    assert!(setup.ranges().is_empty());
    let longer = Setup::new();
    longer.leave_incomplete(&[0; NUM_BYTES + 1]);
    longer.check_fetched();
    assert_eq!(longer.ranges(), [None]);
}

#[test]
fn server_that_ignores_ranges_is_read_from_the_start() {
    let setup = Setup::new();
    setup.hub.change(|state| state.honours_ranges = false);
    setup.hub.fail_next(Host::Storage, Fault::DropAfter(300_000));
    setup.check_fetched();
    assert_eq!(setup.ranges(), [None, range(300_000)]);
}

#[test]
fn bytes_with_another_checksum_are_refused_and_not_kept() {
    let setup = Setup::new();
    setup.hub.fail_next(Host::Storage, Fault::Corrupt);
    let error = setup.resolve().unwrap_err();
    assert!(matches!(error, HubError::ChecksumMismatch { .. }), "{error}");
    setup.check_nothing_cached();
    setup.check_fetched();
    assert_eq!(setup.ranges(), [None, None]);
}

#[test]
fn server_that_announces_another_checksum_is_refused_before_the_transfer() {
    let setup = Setup::new();
    setup.hub.change(|state| state.announced = Some("ab".repeat(32)));
    let error = setup.resolve().unwrap_err();
    assert!(matches!(error, HubError::ChecksumMismatch { .. }), "{error}");
    setup.check_nothing_cached();
}

#[test]
fn overloaded_server_is_asked_again_after_the_pause_it_names() {
    let setup = Setup::new();
    setup.hub.fail_next(Host::Hub, Fault::Status(429, &[("Retry-After", "0")]));
    setup.hub.fail_next(Host::Hub, Fault::Status(503, &[]));
    setup.hub.fail_next(Host::Storage, Fault::Status(500, &[]));
    setup.check_fetched();
}

#[test]
fn pause_longer_than_our_patience_is_reported_instead_of_waited_for() {
    let setup = Setup::new();
    setup.hub.fail_next(Host::Hub, Fault::Status(429, &[("Retry-After", "3600")]));
    let error = setup.resolve().unwrap_err();
    assert!(error.to_string().contains("asks to wait 3600 s"), "{error}");
    assert_eq!(setup.hub.seen(Host::Hub).len(), 1);
}

#[test]
fn token_goes_to_the_hub_and_never_to_storage() {
    let setup = Setup::new();
    setup.check_fetched();
    let hub = setup.hub.seen(Host::Hub);
    assert_eq!(hub.len(), 2);
    assert!(hub.iter().all(|seen| seen.authorization.as_deref() == Some("Bearer hf_secret")));
    let storage = setup.hub.seen(Host::Storage);
    assert_eq!(storage.len(), 1);
    assert!(storage.iter().all(|seen| seen.authorization.is_none()));
}

#[test]
fn refusals_say_what_to_do() {
    const NO_CODE: &[(&str, &str)] = &[];
    const GATED: &[(&str, &str)] = &[("X-Error-Code", "GatedRepo")];
    const NO_REPO: &[(&str, &str)] = &[("X-Error-Code", "RepoNotFound")];
    const NO_REVISION: &[(&str, &str)] = &[("X-Error-Code", "RevisionNotFound")];
    const BAD_TOKEN: &[(&str, &str)] =
        &[("X-Error-Message", "Invalid credentials in Authorization header")];
    let cases = [
        (Host::Hub, 401, GATED, "accept its licence at "),
        (Host::Hub, 403, GATED, "/org/model, then set HF_TOKEN"),
        (Host::Hub, 401, NO_REPO, "no model org/model on the Hub"),
        (Host::Hub, 404, NO_REVISION, "org/model has no revision \"main\""),
        (Host::Hub, 401, BAD_TOKEN, "refused the access token"),
        (Host::Hub, 418, NO_CODE, "answered 418"),
        (Host::Storage, 403, NO_CODE, "answered 403"),
    ];
    for (host, status, headers, expected) in cases {
        let setup = Setup::new();
        setup.hub.fail_next(host, Fault::Status(status, headers));
        let error = setup.resolve().unwrap_err();
        assert!(error.to_string().contains(expected), "{status}: {error}");
        setup.check_nothing_cached();
    }
}

#[test]
fn gated_files_of_a_repository_that_can_be_listed_say_what_to_do() {
    let setup = Setup::new();
    setup.hub.fail_next(Host::Hub, Fault::Pass);
    setup.hub.fail_next(Host::Hub, Fault::Status(401, &[]));
    let error = setup.resolve().unwrap_err();
    assert!(matches!(error, HubError::Gated { .. }), "{error}");
}

#[test]
fn unreachable_hub_is_reported_at_once() {
    let setup = Setup::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let mut options = setup.options();
    options.endpoint = mini_infer_hub::Endpoint::parse(&endpoint).unwrap();
    let mut events = Events::default();
    let error = resolve("org/model", &options, &mut events).unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    assert!(events.0.is_empty(), "{events:?}");
}

#[test]
fn several_at_once_fetch_the_file_once() {
    let setup = Setup::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| setup.check_fetched());
        }
    });
    assert_eq!(setup.ranges(), [None]);
}

#[test]
fn offline_uses_no_network() {
    let setup = Setup::new();
    let mut options = setup.options();
    options.network = Network::Offline;
    let error = resolve("org/model:Q4_0", &options, &mut NoProgress).unwrap_err();
    assert!(error.to_string().starts_with("org/model@main:Q4_0 is not in the cache"), "{error}");
    assert!(setup.hub.seen(Host::Hub).is_empty());
}

#[test]
fn mirror_without_checksums_in_its_list_is_asked_file_by_file() {
    let setup = Setup::new();
    setup.hub.change(|state| state.lists_checksums = false);
    setup.check_fetched();
    let methods: Vec<_> = setup.hub.seen(Host::Hub).into_iter().map(|seen| seen.method).collect();
    assert_eq!(methods, ["GET", "HEAD", "GET"]);
}

#[test]
fn checkpoint_is_fetched_without_the_files_of_other_tools() {
    let index = br#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
    let files: [(&str, &[u8]); 9] = [
        ("config.json", b"{}"),
        ("tokenizer.json", b"{ }"),
        ("tokenizer_config.json", b"{  }"),
        ("chat_template.jinja", b"{{ messages }}"),
        ("model.safetensors.index.json", index),
        ("m-1.safetensors", b"first"),
        ("m-2.safetensors", b"second"),
        ("consolidated.safetensors", b"both"),
        ("pytorch_model.bin", b"both"),
    ];
    let hub = StandIn::start(&files);
    for lists_checksums in [true, false] {
        hub.change(|state| state.lists_checksums = lists_checksums);
        let home = tempfile::tempdir().unwrap();
        let model = resolve("org/model", &hub.options(home.path()), &mut NoProgress).unwrap();
        let ModelFiles::Checkpoint(folder) = &model.files else { panic!("{model:?}") };
        for (path, bytes) in files {
            let is_ours = !["consolidated.safetensors", "pytorch_model.bin"].contains(&path);
            assert_eq!(fs::read(folder.join(path)).ok(), is_ours.then(|| bytes.to_vec()), "{path}");
        }
        let blob = home.path().join("hub/models--org--model/blobs").join(git_blob(b"{}"));
        assert_eq!(fs::read(blob).unwrap(), b"{}");
        let offline = resolve("org/model", &offline_options(home.path()), &mut NoProgress);
        assert_eq!(offline.unwrap(), model);
    }
}

#[test]
fn checkpoint_without_tokenizer_is_refused_before_its_weights_are_fetched() {
    let hub = StandIn::start(&[("config.json", b"{}"), ("model.safetensors", b"weights")]);
    let home = tempfile::tempdir().unwrap();
    let error = resolve("org/model", &hub.options(home.path()), &mut NoProgress).unwrap_err();
    assert_eq!(error.to_string(), "the checkpoint in org/model lacks tokenizer.json");
    assert!(hub.seen(Host::Storage).is_empty());
}

#[test]
fn weights_that_the_caller_cannot_use_are_not_fetched() {
    fn check(config: &[u8]) -> Result<(), String> {
        let is_known = config == br#"{"model_type": "known"}"#;
        is_known.then_some(()).ok_or_else(|| format!("{} bytes of config", config.len()))
    }
    let files = |config: &'static [u8]| -> [(&str, &[u8]); 3] {
        [("config.json", config), ("tokenizer.json", b"{}"), ("model.safetensors", b"weights")]
    };
    let home = tempfile::tempdir().unwrap();
    let hub = StandIn::start(&files(br#"{"model_type": "none"}"#));
    let options = HubOptions { check_config: Some(check), ..hub.options(home.path()) };
    let error = resolve("org/model", &options, &mut NoProgress).unwrap_err();
    let expected = "org/model cannot be used, and its weights were not fetched: 22 bytes of config";
    assert_eq!(error.to_string(), expected);
    assert!(hub.seen(Host::Storage).is_empty());
    assert!(!hub.seen(Host::Hub).iter().any(|seen| seen.path.contains("tokenizer.json")));

    hub.change(|state| {
        let config = br#"{"model_type": "known"}"#.to_vec();
        state.files.insert("config.json".to_owned(), config);
    });
    let model = resolve("org/model", &options, &mut NoProgress).unwrap();
    assert!(matches!(&model.files, ModelFiles::Checkpoint(folder) if folder.is_dir()));
}

#[test]
fn local_folder_is_a_checkpoint_or_holds_a_gguf_file() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("my-model");
    fs::create_dir(&folder).unwrap();
    let resolve_folder =
        || resolve(folder.to_str().unwrap(), &offline_options(home.path()), &mut NoProgress);
    assert!(matches!(resolve_folder(), Err(HubError::NoModel { .. })));
    fs::write(folder.join("config.json"), "{}").unwrap();
    fs::write(folder.join("model.safetensors"), "weights").unwrap();
    let error = resolve_folder().unwrap_err().to_string();
    assert!(error.ends_with("my-model lacks tokenizer.json"), "{error}");
    fs::write(folder.join("model.gguf"), "weights").unwrap();
    let model = resolve_folder().unwrap();
    assert_eq!(model.name, "my-model");
    assert_eq!(model.files, ModelFiles::Gguf(folder.join("model.gguf")));
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    assert_eq!(resolve_folder().unwrap().files, ModelFiles::Checkpoint(folder.clone()));
}

#[test]
fn preferred_quantisation_is_chosen_and_said_and_another_can_be_named() {
    let files: [(&str, &[u8]); 3] =
        [("m-F16.gguf", b"f16"), ("m-Q8_0.gguf", b"q8"), ("m-Q4_K_M.gguf", b"q4")];
    let hub = StandIn::start(&files);
    let check = |model: &str, expected: &[u8]| {
        let home = tempfile::tempdir().unwrap();
        let mut events = Events::default();
        let model = resolve(model, &hub.options(home.path()), &mut events).unwrap();
        assert_eq!(fs::read(model.files.path()).unwrap(), expected);
        assert!(events.0[0].contains("num_candidates: 3"), "{events:?}");
    };
    check("org/model", b"q4");
    check("org/model:q8_0", b"q8");
    check("org/model:m-F16.gguf", b"f16");
    let home = tempfile::tempdir().unwrap();
    let error = resolve("org/model:Q2_K", &hub.options(home.path()), &mut NoProgress).unwrap_err();
    assert!(error.to_string().contains("m-F16.gguf, m-Q4_K_M.gguf"), "{error}");
}

#[test]
fn branch_that_moved_is_noticed_when_the_hub_is_asked() {
    const NEXT: &str = "fedcba9876543210fedcba9876543210fedcba98";
    let setup = Setup::new();
    setup.check_fetched();
    setup.hub.change(|state| {
        state.commit = NEXT;
        state.files.insert(FILE.to_owned(), b"newer".to_vec());
    });
    setup.check_fetched();
    let mut options = setup.options();
    options.lookup = CacheLookup::AskHub;
    let newer = resolve("org/model", &options, &mut NoProgress).unwrap();
    assert_eq!(fs::read(newer.files.path()).unwrap(), b"newer");
    let pinned = resolve(&format!("org/model@{COMMIT}"), &options, &mut NoProgress);
    assert!(pinned.is_ok());
}
