//! A model on a stand-in of the Hub, and where its parts lie in the cache.

use crate::stand_in::{COMMIT, Host, StandIn, content, offline_options, sha256};
use mini_infer_hub::{HubError, HubOptions, ModelFiles, NoProgress, resolve};
use std::fs;
use std::path::PathBuf;

pub(crate) const FILE: &str = "model-Q4_0.gguf";
/// Enough for several reads of the client.
pub(crate) const NUM_BYTES: usize = 700_000;

/// A stand-in with one GGUF file, and an empty cache.
pub(crate) struct Setup {
    pub(crate) hub: StandIn,
    pub(crate) home: tempfile::TempDir,
    pub(crate) bytes: Vec<u8>,
}

impl Setup {
    pub(crate) fn new() -> Self {
        let bytes = content(NUM_BYTES);
        let hub = StandIn::start(&[(FILE, &bytes), ("README.md", b"# Model")]);
        Self { hub, home: tempfile::tempdir().unwrap(), bytes }
    }

    pub(crate) fn options(&self) -> HubOptions {
        self.hub.options(self.home.path())
    }

    pub(crate) fn resolve(&self) -> Result<ModelFiles, HubError> {
        resolve("org/model", &self.options(), &mut NoProgress).map(|model| model.files)
    }

    pub(crate) fn repo_folder(&self) -> PathBuf {
        self.home.path().join("hub/models--org--model")
    }

    pub(crate) fn incomplete(&self) -> PathBuf {
        self.repo_folder().join(format!("blobs/{}.incomplete", sha256(&self.bytes)))
    }

    pub(crate) fn leave_incomplete(&self, bytes: &[u8]) {
        fs::create_dir_all(self.incomplete().parent().unwrap()).unwrap();
        fs::write(self.incomplete(), bytes).unwrap();
    }

    /// Checks that the model resolves to the right bytes.
    pub(crate) fn check_fetched(&self) {
        let files = self.resolve().unwrap();
        let path = self.repo_folder().join("snapshots").join(COMMIT).join(FILE);
        assert_eq!(files, ModelFiles::Gguf(path.clone()));
        assert!(fs::read(path).unwrap() == self.bytes, "other bytes");
        assert!(!self.incomplete().exists());
    }

    /// Checks that nothing in the cache could be taken for a model.
    pub(crate) fn check_nothing_cached(&self) {
        assert!(!self.repo_folder().join("snapshots").exists());
        let offline = resolve("org/model", &offline_options(self.home.path()), &mut NoProgress);
        assert!(matches!(offline, Err(HubError::Offline { .. })), "{offline:?}");
    }

    pub(crate) fn ranges(&self) -> Vec<Option<String>> {
        self.hub.seen(Host::Storage).into_iter().map(|seen| seen.range).collect()
    }
}
