//! What a repository holds at a revision: the commit, and each file with length and checksum.
//!
//! Source: the Hub's `GET /api/models/{repo}/revision/{revision}?blobs=true`. A mirror may leave
//! lengths and checksums out; they are then asked for file by file.

use serde::Deserialize;

use crate::checksum::Checksum;
use crate::repo_name::{is_commit, is_safe_relative_path};

/// The files of a repository at one commit.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    /// Full id of the commit.
    pub(crate) commit: String,
    /// Files whose paths are safe to create in the cache.
    pub(crate) files: Vec<ListedFile>,
}

/// One file of a [`Listing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedFile {
    /// Path in the repository, parts separated by `/`.
    pub(crate) path: String,
    /// Checksum and length, where the server gives both.
    pub(crate) content: Option<FileContent>,
}

/// What identifies the bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileContent {
    /// What the bytes hash to.
    pub(crate) checksum: Checksum,
    /// How many there are.
    pub(crate) num_bytes: u64,
}

#[derive(Deserialize)]
struct WireListing {
    sha: String,
    #[serde(default)]
    siblings: Vec<WireFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireFile {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<WireLfs>,
}

#[derive(Deserialize)]
struct WireLfs {
    #[serde(alias = "oid")]
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    /// Reads the server's JSON.
    ///
    /// # Errors
    ///
    /// What is wrong with it, as text for [`crate::HubError::BadAnswer`].
    pub(crate) fn parse(json: &[u8]) -> Result<Self, String> {
        let wire: WireListing =
            serde_json::from_slice(json).map_err(|error| format!("no list of files: {error}"))?;
        if !is_commit(&wire.sha) {
            return Err(format!("{:?} is no commit id", wire.sha));
        }
        let is_safe = |file: &WireFile| is_safe_relative_path(&file.rfilename);
        let files = wire.siblings.into_iter().filter(is_safe).map(ListedFile::from).collect();
        Ok(Self { commit: wire.sha.to_ascii_lowercase(), files })
    }

    /// Returns the paths of all files.
    pub(crate) fn paths(&self) -> Vec<&str> {
        self.files.iter().map(|file| file.path.as_str()).collect()
    }

    /// Finds a file by its path.
    pub(crate) fn find(&self, path: &str) -> Option<&ListedFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl From<WireFile> for ListedFile {
    fn from(wire: WireFile) -> Self {
        let content = match wire.lfs {
            Some(lfs) => {
                let checksum = lfs.sha256.as_deref().and_then(Checksum::from_sha256_hex);
                checksum.zip(lfs.size.or(wire.size))
            }
            None => {
                let checksum = wire.blob_id.as_deref().and_then(Checksum::from_git_blob_hex);
                checksum.zip(wire.size)
            }
        };
        let content = content.map(|(checksum, num_bytes)| FileContent { checksum, num_bytes });
        Self { path: wire.rfilename, content }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn checksums_of_large_and_small_files_are_read() {
        let sha256 = "ab".repeat(32);
        let json = format!(
            r#"{{"sha":"{COMMIT}","siblings":[
                {{"rfilename":"m.gguf","size":7,"blobId":"{COMMIT}","lfs":{{"sha256":"{sha256}","size":7}}}},
                {{"rfilename":"config.json","size":3,"blobId":"{COMMIT}"}},
                {{"rfilename":"bare.txt"}}]}}"#
        );
        let listing = Listing::parse(json.as_bytes()).unwrap();
        let content_of = |path| listing.find(path).unwrap().content.clone();
        let large = FileContent { checksum: Checksum::Sha256(sha256), num_bytes: 7 };
        let small = FileContent { checksum: Checksum::GitBlob(COMMIT.to_owned()), num_bytes: 3 };
        assert_eq!(content_of("m.gguf"), Some(large));
        assert_eq!(content_of("config.json"), Some(small));
        assert_eq!(content_of("bare.txt"), None);
    }

    #[test]
    fn files_that_would_leave_the_cache_are_dropped() {
        let json = format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"../../x"}}]}}"#);
        assert!(Listing::parse(json.as_bytes()).unwrap().files.is_empty());
    }

    #[test]
    fn answers_that_are_no_listing_are_refused() {
        for json in ["<html>sign in</html>", "{}", r#"{"sha":"../../x"}"#] {
            assert!(Listing::parse(json.as_bytes()).is_err(), "{json}");
        }
    }
}
