//! The folder of one repository in the standard Hub cache.
//!
//! ```text
//! <cache>/models--organisation--name/
//!   refs/<revision>            text file: the commit the branch or tag was last seen at
//!   blobs/<checksum>           the bytes, named by what they hash to
//!   blobs/<checksum>.incomplete   bytes received so far
//!   snapshots/<commit>/<path>  link to the blob
//! <cache>/.locks/models--organisation--name/<checksum>.lock
//! ```
//!
//! Same layout as `huggingface_hub`, so each finds what the other fetched. Invariant: a blob under
//! its final name is complete and was verified. Links are relative symbolic ones; where the system
//! has none, hard links, and copies where it has neither.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::checksum::Checksum;
use crate::error::HubError;
use crate::repo_name::{RepoName, is_commit};

/// Levels of folders searched for a model: repositories keep GGUF files one level deep, and a
/// user's whole disk is not to be walked for a mistyped path.
const MAX_DEPTH: usize = 3;

/// The folder of one repository.
#[derive(Debug, Clone)]
pub(crate) struct RepoCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    /// Names the folder; creates nothing.
    pub(crate) fn new(cache: &Path, repo: &RepoName) -> Self {
        let name = repo.folder();
        Self { locks: cache.join(".locks").join(&name), folder: cache.join(name) }
    }

    /// Returns the commit a revision was last seen at; a full commit id is its own.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_ascii_lowercase());
        }
        let text = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        let commit = text.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// Remembers the commit of a branch or tag.
    pub(crate) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        create_parent(&path)?;
        fs::write(&path, commit).map_err(|error| HubError::io("write", &path, error))
    }

    /// Returns the folder of a commit's files.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Returns the place of the bytes with this checksum.
    pub(crate) fn blob(&self, checksum: &Checksum) -> PathBuf {
        self.folder.join("blobs").join(checksum.hex())
    }

    /// Returns the place of those bytes while they are being received.
    pub(crate) fn incomplete(&self, checksum: &Checksum) -> PathBuf {
        self.folder.join("blobs").join(format!("{checksum}.incomplete"))
    }

    /// Returns the lock file of those bytes.
    pub(crate) fn lock(&self, checksum: &Checksum) -> PathBuf {
        self.locks.join(format!("{checksum}.lock"))
    }

    /// Finds a file with this checksum under its name in any snapshot.
    pub(crate) fn find_file(&self, file: &str, checksum: &Checksum) -> Option<PathBuf> {
        let snapshots = fs::read_dir(self.folder.join("snapshots")).ok()?;
        let mut paths = snapshots.flatten().map(|snapshot| snapshot.path().join(file));
        paths.find(|path| self.is_link_to(path, checksum))
    }

    /// Tells whether `link` is one that [`Self::link`] made to the blob with this checksum.
    fn is_link_to(&self, link: &Path, checksum: &Checksum) -> bool {
        if link.is_symlink() {
            let target = fs::canonicalize(link);
            return target
                .is_ok_and(|path| path.file_name().is_some_and(|name| name == checksum.hex()));
        }
        // A hard link or copy does not name its blob; the blob stays beside it.
        let length = fs::metadata(self.blob(checksum)).map(|metadata| metadata.len());
        length.is_ok_and(|num_bytes| has_length(link, num_bytes))
    }

    /// Makes the blob with this checksum appear as `file` of a commit, and returns that path.
    pub(crate) fn link(
        &self,
        commit: &str,
        file: &str,
        checksum: &Checksum,
    ) -> Result<PathBuf, HubError> {
        let link = self.snapshot(commit).join(file);
        if self.is_link_to(&link, checksum) {
            return Ok(link);
        }
        create_parent(&link)?;
        let blob = self.blob(checksum);
        // From the link's folder up to the repository's: `snapshots`, the commit, and subfolders.
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{checksum}"));
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(HubError::io("replace", &link, error));
            }
            _ => {}
        }
        let made = symlink(&target, &link)
            .or_else(|error| ignore_existing(error, || fs::hard_link(&blob, &link)))
            .or_else(|error| ignore_existing(error, || fs::copy(&blob, &link).map(drop)));
        made.map_err(|error| HubError::io("link", &link, error))?;
        Ok(link)
    }
}

/// Creates the folder a path lies in.
pub(crate) fn create_parent(path: &Path) -> Result<(), HubError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|error| HubError::io("create", folder, error))
}

/// Tells whether a file of exactly this length is there, following links.
pub(crate) fn has_length(path: &Path, num_bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == num_bytes)
}

/// Lists the files below a folder, three levels deep, as paths relative to it with `/` between parts.
pub(crate) fn files_below(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = format!("{prefix}{name}");
            // A link to nothing is no file, and a link to a folder is not followed.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if path.matches('/').count() + 1 == MAX_DEPTH {
                    continue;
                }
                folders.push((entry.path(), format!("{path}/")));
            } else if entry.path().is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Takes a link another process made meanwhile as made; else tries the next way.
fn ignore_existing(error: io::Error, next: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { next() }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    let target: PathBuf = target.components().collect();
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn cache_with_blob(folder: &Path) -> (RepoCache, Checksum) {
        let cache = RepoCache::new(folder, &RepoName::parse("o/n").unwrap());
        let checksum = Checksum::GitBlob(COMMIT.to_owned());
        create_parent(&cache.blob(&checksum)).unwrap();
        fs::write(cache.blob(&checksum), "bytes").unwrap();
        (cache, checksum)
    }

    #[test]
    fn linked_file_is_found_by_its_checksum_also_in_a_subfolder() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, checksum) = cache_with_blob(folder.path());
        for file in ["f.gguf", "sub/f.gguf"] {
            let link = cache.link(COMMIT, file, &checksum).unwrap();
            assert_eq!(fs::read_to_string(&link).unwrap(), "bytes");
            assert_eq!(cache.find_file(file, &checksum), Some(link));
        }
        let other = Checksum::GitBlob("f".repeat(40));
        assert_eq!(cache.find_file("f.gguf", &other), None);
    }

    #[test]
    fn link_to_nothing_is_replaced_and_never_listed() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, checksum) = cache_with_blob(folder.path());
        let missing = Checksum::GitBlob("f".repeat(40));
        cache.link(COMMIT, "f.gguf", &missing).unwrap();
        assert!(files_below(&cache.snapshot(COMMIT)).is_empty());
        cache.link(COMMIT, "f.gguf", &checksum).unwrap();
        assert_eq!(files_below(&cache.snapshot(COMMIT)), ["f.gguf"]);
    }

    #[test]
    fn revision_is_remembered_also_when_it_has_slashes() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, _) = cache_with_blob(folder.path());
        cache.set_commit("refs/pr/1", COMMIT).unwrap();
        assert_eq!(cache.commit_of("refs/pr/1").as_deref(), Some(COMMIT));
        assert_eq!(cache.commit_of(COMMIT).as_deref(), Some(COMMIT));
        assert_eq!(cache.commit_of("main"), None);
    }
}
