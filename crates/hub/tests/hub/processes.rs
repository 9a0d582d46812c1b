//! Processes that die, meet, or run out of space while they fetch a model.
//!
//! Each child is this test binary again, told by environment variables what to fetch and where to.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::setup::{NUM_BYTES, Setup};
use crate::stand_in::{Fault, Host, offline_options};
use mini_infer_hub::{Endpoint, NoProgress, resolve};

const SIGKILL: i32 = 9;

/// Starts a process that fetches the model of `setup`, through `wrapper` if there is one.
fn start(setup: &Setup, wrapper: &[&str]) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().map(ToString::to_string).collect::<Vec<_>>();
    words.push(program.to_str().unwrap().to_owned());
    Command::new(&words[0])
        .args(&words[1..])
        .args(["--exact", "processes::a_process_fetches_the_model_it_is_told", "--nocapture"])
        .env("HUB_TEST_ENDPOINT", &setup.hub.endpoint)
        .env("HUB_TEST_HOME", setup.home.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn check_succeeded(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// Waits until a file has that many bytes.
fn wait_for_bytes(path: &Path, num_bytes: u64) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while fs::metadata(path).map_or(0, |metadata| metadata.len()) < num_bytes {
        assert!(Instant::now() < deadline, "{} does not grow", path.display());
        std::thread::yield_now();
    }
}

/// What a child does; run by itself, it fetches from a stand-in of its own.
#[test]
fn a_process_fetches_the_model_it_is_told() {
    let setup = Setup::new();
    let told = |name: &str| std::env::var(name).ok();
    let home = told("HUB_TEST_HOME").map_or(setup.home.path().to_owned(), PathBuf::from);
    let endpoint = told("HUB_TEST_ENDPOINT").unwrap_or_else(|| setup.hub.endpoint.clone());
    let mut options = offline_options(&home);
    options.network = mini_infer_hub::Network::Online;
    options.endpoint = Endpoint::parse(&endpoint).unwrap();
    match resolve("org/model", &options, &mut NoProgress) {
        Ok(model) => assert!(fs::read(model.files.path()).unwrap() == setup.bytes, "other bytes"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_killed_process_leaves_what_the_next_one_goes_on_with() {
    let setup = Setup::new();
    setup.hub.fail_next(Host::Storage, Fault::StallAfter(300_000));
    let mut child = start(&setup, &[]);
    wait_for_bytes(&setup.incomplete(), 300_000);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(SIGKILL));
    assert!(!setup.home.path().join("hub/models--org--model/snapshots").exists());
    check_succeeded(&start(&setup, &[]).wait_with_output().unwrap());
    assert_eq!(setup.ranges(), [None, Some("bytes=300000-".to_owned())]);
    assert!(!setup.incomplete().exists());
}

#[test]
fn two_processes_at_once_fetch_the_file_once() {
    let setup = Setup::new();
    let children = [start(&setup, &[]), start(&setup, &[])];
    for child in children {
        check_succeeded(&child.wait_with_output().unwrap());
    }
    assert_eq!(setup.ranges(), [None]);
}

#[test]
fn a_process_that_may_write_no_more_says_so_and_the_next_one_goes_on() {
    let setup = Setup::new();
    // Blocks of 512 bytes in some shells, of 1024 in others: both end within the file.
    let limited = ["sh", "-c", "trap '' XFSZ; ulimit -f 400; exec \"$0\" \"$@\""];
    let output = start(&setup, &limited).wait_with_output().unwrap();
    assert!(!output.status.success());
    let said = said(&output);
    assert!(said.contains("cannot write") && said.contains(".incomplete"), "{said}");
    let num_written = fs::metadata(setup.incomplete()).unwrap().len();
    assert!((1..NUM_BYTES as u64).contains(&num_written), "{num_written}");
    check_succeeded(&start(&setup, &[]).wait_with_output().unwrap());
    assert_eq!(setup.ranges(), [None, Some(format!("bytes={num_written}-"))]);
}
