//! KV outside the pool: in swap space and in files, across restarts and crashes. What comes back
//! changes no answer, and what cannot be trusted does not come back.

use crate::binary::MODEL;
use crate::patience::wait_for;
use crate::prefix_cache::{cached_tokens, short_answer};
use crate::prompts;
use crate::server_process::{ServerProcess, StopSignal};
use crate::shared_server::PLAIN;
use crate::sliding_windows;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = trials![
        kv_that_was_written_survives_a_kill_and_a_restart,
        damaged_cut_and_foreign_files_are_refused_counted_and_computed_again,
        nothing_is_restored_for_another_kv_type_block_size_window_or_model,
        a_full_folder_evicts_and_never_passes_its_size,
        swap_space_gives_back_what_the_pool_had_no_room_for,
    ];
    if cfg!(unix) {
        trials.extend(trials![
            what_is_cached_when_a_server_is_asked_to_stop_is_there_after_a_restart,
            a_folder_that_is_gone_costs_only_the_tier,
        ]);
    }
    trials
}

/// A folder for one check, empty at first and removed at the end.
struct TierFolder(PathBuf);

impl TierFolder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kv-tier-{name}"));
        let folder = Self(path);
        folder.remove();
        folder
    }

    /// Removes the folder, or whatever a check put in its place, if it is there.
    fn remove(&self) {
        let _ = fs::remove_dir_all(&self.0);
        let _ = fs::remove_file(&self.0);
    }

    fn flags(&self, size: &str) -> Vec<String> {
        let dir = self.0.to_str().unwrap();
        ["--kv-tier-dir", dir, "--kv-tier-size", size].map(str::to_owned).to_vec()
    }

    /// Returns all files of any size, wherever they lie in the folder.
    fn files(&self) -> BTreeSet<PathBuf> {
        let mut files = BTreeSet::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if fs::metadata(&path).unwrap().len() > 0 {
                    files.insert(path);
                }
            }
        }
        files
    }
}

impl Drop for TierFolder {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A small pool.
const POOL: [&str; 4] = ["--num-blocks", "32", "--max-model-len", "512"];
/// Makes a pool forget everything, to the tier, as soon as nobody asks.
const FORGETFUL: [&str; 2] = ["--kv-idle-release", "50ms"];

/// Starts a server with a tier in `folder`.
fn start(model: &str, folder: &TierFolder, flags: &[&str]) -> ServerProcess {
    let tier = folder.flags("1GiB");
    let tier: Vec<&str> = tier.iter().map(String::as_str).collect();
    ServerProcess::start_with_model(model, &[&tier, flags].concat())
}

fn files_tier(server: &ServerProcess) -> Value {
    let map = server.kv_map();
    let tiers = map["tiers"].as_array().unwrap();
    tiers.iter().find(|tier| tier["name"] == "files").unwrap().clone()
}

/// Waits until the pool has forgotten all and the tier has written what it took.
fn wait_until_written(server: &ServerProcess) {
    server.wait_for_metric("kv_blocks{state=\"active\"}", 0);
    server.wait_for_metric("kv_blocks{state=\"cached\"}", 0);
    wait_for("all KV in files", || (files_tier(server)["queued_blocks"] == 0).then_some(()));
}

/// Returns how many files were refused for a cause.
fn refused(server: &ServerProcess, cause: &str) -> u64 {
    files_tier(server)["refused_blocks"][cause].as_u64().unwrap()
}

/// Tokens in the prompts here, and how many of them a tier of full blocks of 16 can give back.
const LENGTH: u64 = 200;
const RESTORABLE: u64 = 192;

fn kv_that_was_written_survives_a_kill_and_a_restart() {
    let folder = TierFolder::new("kill");
    // So large that a part of it would stay cached through idle times if there were no tier.
    let flags = [&["--num-blocks", "512", "--max-model-len", "512"], &FORGETFUL[..]].concat();
    let prompt = prompts::tokens(700, LENGTH);
    let expected = short_answer(&PLAIN.get(), &prompt);
    let server = start(MODEL, &folder, &flags);
    let first = short_answer(&server, &prompt);
    assert_eq!((cached_tokens(&first), &first["choices"]), (0, &expected["choices"]));
    wait_until_written(&server);
    server.kill();
    let server = start(MODEL, &folder, &flags);
    let second = short_answer(&server, &prompt);
    assert_eq!((cached_tokens(&second), &second["choices"]), (RESTORABLE, &expected["choices"]));
    assert_eq!(server.metric("kv_restored_tokens_total"), RESTORABLE);
    assert_eq!(files_tier(&server)["restored_blocks"], RESTORABLE / 16);
}

fn what_is_cached_when_a_server_is_asked_to_stop_is_there_after_a_restart() {
    let folder = TierFolder::new("stop");
    let prompt = prompts::tokens(701, LENGTH);
    let mut server = start(MODEL, &folder, &POOL);
    assert_eq!(cached_tokens(&short_answer(&server, &prompt)), 0);
    server.signal(StopSignal::Terminate);
    assert_eq!(server.wait().code(), Some(0));
    let server = start(MODEL, &folder, &POOL);
    let longer = prompts::continued(&prompt, 702, 30);
    let found = short_answer(&server, &longer);
    assert_eq!(cached_tokens(&found), RESTORABLE);
    assert_eq!(found["choices"], short_answer(&PLAIN.get(), &longer)["choices"]);
}

/// A way to spoil the file at the first path, and the cause under which it is counted. At the
/// second is a right file of another server, whose KV is stored in another way.
type Damage = (&'static str, fn(&Path, &Path));

const DAMAGES: [Damage; 5] = [
    ("foreign", |path, other| _ = fs::copy(other, path).unwrap()),
    ("damaged", |path, _| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    }),
    ("damaged", |path, _| fs::write(path, vec![b'x'; fs::read(path).unwrap().len()]).unwrap()),
    ("length", |path, _| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    }),
    ("missing", |path, _| fs::remove_file(path).unwrap()),
];

fn damaged_cut_and_foreign_files_are_refused_counted_and_computed_again() {
    let folder = TierFolder::new("damage");
    let flags = [&POOL[..], &FORGETFUL].concat();
    let other = start(MODEL, &folder, &[&flags[..], &["--kv-cache-dtype", "bf16"]].concat());
    let no_files = folder.files();
    short_answer(&other, &prompts::tokens(710, 32));
    wait_until_written(&other);
    drop(other);
    let other = folder.files().difference(&no_files).next().unwrap().clone();
    let server = start(MODEL, &folder, &flags);
    for (seed, (cause, damage)) in (711..).zip(DAMAGES) {
        let prompt = prompts::tokens(seed, 100);
        let before = folder.files();
        let expected = short_answer(&server, &prompt);
        wait_until_written(&server);
        let written: Vec<PathBuf> = folder.files().difference(&before).cloned().collect();
        assert_eq!(written.len(), 100 / 16, "{written:?}");
        written.iter().for_each(|path| damage(path, &other));
        let num_refused = refused(&server, cause);
        let again = short_answer(&server, &prompt);
        assert_eq!(cached_tokens(&again), 0, "{cause}");
        assert_eq!(again["choices"], expected["choices"], "{cause}");
        assert!(refused(&server, cause) > num_refused, "{cause}: {}", files_tier(&server));
        // The file that was refused is written again; the others wait for their turn to be found.
        wait_until_written(&server);
        let next = short_answer(&server, &prompt);
        assert!(cached_tokens(&next) >= 16, "{cause}: {next}");
        assert_eq!(next["choices"], expected["choices"], "{cause}");
        wait_until_written(&server);
    }
}

fn nothing_is_restored_for_another_kv_type_block_size_window_or_model() {
    let folder = TierFolder::new("identity");
    // Short enough for every flag below.
    let request = sliding_windows::request(&sliding_windows::tokens(720, 20), 4);
    let other_model = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("other-model.gguf");
    let mut bytes = fs::read(sliding_windows::MODEL).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&other_model, bytes).unwrap();
    let same = sliding_windows::MODEL;
    let length = ["--max-model-len", "256"];
    let start = |model: &str, flags: &[&str]| {
        start(model, &folder, &[&["--num-blocks", "40"], &FORGETFUL[..], flags].concat())
    };
    let servers: [(&str, Vec<&str>); 6] = [
        (same, length.to_vec()),
        (same, [&length[..], &["--kv-cache-dtype", "bf16"]].concat()),
        (same, [&length[..], &["--kv-cache-dtype", "int8"]].concat()),
        (same, [&length[..], &["--block-size", "8"]].concat()),
        // The window holds the longest sequence, so that no layer slides.
        (same, vec!["--max-model-len", "24"]),
        (other_model.to_str().unwrap(), length.to_vec()),
    ];
    let mut answers = Vec::new();
    for (model, flags) in &servers {
        let server = start(model, flags);
        let response = server.complete(&request);
        assert_eq!(cached_tokens(&response), 0, "{flags:?}");
        assert_eq!(server.metric("kv_restored_tokens_total"), 0, "{flags:?}");
        answers.push(response["choices"].clone());
        wait_until_written(&server);
    }
    // All of them are still there for the servers that wrote them.
    for ((model, flags), expected) in servers.iter().zip(answers) {
        let response = start(model, flags).complete(&request);
        assert_eq!(cached_tokens(&response), 16, "{flags:?}");
        assert_eq!(response["choices"], expected, "{flags:?}");
    }
    fs::remove_file(other_model).unwrap();
}

fn a_full_folder_evicts_and_never_passes_its_size() {
    let folder = TierFolder::new("full");
    // Three blocks of 16 x 22.5 KiB.
    let tier = folder.flags("1100KiB");
    let tier: Vec<&str> = tier.iter().map(String::as_str).collect();
    let server = ServerProcess::start(&[&POOL, &FORGETFUL[..], &tier].concat());
    let bytes_on_disk =
        || folder.files().iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>();
    for seed in 730..732 {
        let prompt = prompts::tokens(seed, LENGTH);
        let expected = short_answer(&PLAIN.get(), &prompt);
        for _ in 0..2 {
            assert_eq!(short_answer(&server, &prompt)["choices"], expected["choices"]);
            wait_until_written(&server);
            assert!(bytes_on_disk() <= 1100 << 10, "{}", bytes_on_disk());
        }
    }
    assert!(files_tier(&server)["evicted_blocks"].as_u64() > Some(0), "{}", files_tier(&server));
}

fn a_folder_that_is_gone_costs_only_the_tier() {
    let folder = TierFolder::new("gone");
    let server = start(MODEL, &folder, &[&POOL[..], &FORGETFUL].concat());
    // Somebody puts a file where the folder was.
    fs::remove_dir_all(&folder.0).unwrap();
    fs::write(&folder.0, "in the way").unwrap();
    for seed in 733..735 {
        let prompt = prompts::tokens(seed, LENGTH);
        let expected = short_answer(&PLAIN.get(), &prompt);
        for _ in 0..2 {
            assert_eq!(short_answer(&server, &prompt)["choices"], expected["choices"]);
            server.wait_for_metric("kv_blocks{state=\"cached\"}", 0);
        }
    }
    let has_failed = || files_tier(&server)["errors"]["write"].as_u64() > Some(0);
    wait_for("a failure that is counted", || has_failed().then_some(()));
    assert_eq!(server.get("/health").status, 200);
}

fn swap_space_gives_back_what_the_pool_had_no_room_for() {
    let flags = ["--num-blocks", "24", "--max-model-len", "384", "--swap-space", "32MiB"];
    let server = ServerProcess::start(&flags);
    let judge = PLAIN.get();
    let prompts: Vec<_> = (740..744).map(|seed| prompts::tokens(seed, LENGTH)).collect();
    let expected: Vec<_> = prompts.iter().map(|prompt| short_answer(&judge, prompt)).collect();
    for (prompt, expected) in prompts.iter().zip(&expected) {
        let found = short_answer(&server, prompt);
        assert_eq!((cached_tokens(&found), &found["choices"]), (0, &expected["choices"]));
    }
    // Four prompts are twice what the pool holds, so the first are no longer in it.
    let mut cached = 0;
    for (prompt, expected) in prompts.iter().zip(&expected) {
        let found = short_answer(&server, prompt);
        assert_eq!(found["choices"], expected["choices"]);
        cached += cached_tokens(&found);
    }
    assert!(cached > RESTORABLE, "{cached}");
    assert!(server.metric("kv_restored_tokens_total") > 0);
    let requests: Vec<Value> = (0..8)
        .map(|i| {
            json!({
                "prompt": prompts::tokens(750 + i, 40), "seed": i, "max_tokens": 60,
                "ignore_eos": true, "logprobs": 1,
            })
        })
        .collect();
    let found = server.complete_together(&requests);
    for (found, expected) in found.iter().zip(judge.complete_together(&requests)) {
        assert_eq!(found["choices"], expected["choices"], "preempted, with swap space");
    }
    assert!(server.metric("preemptions_total") > 0, "the pool must run out");
    server.wait_until_idle();
}
