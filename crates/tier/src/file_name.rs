//! The name of a block's file.
//!
//! SHA-256 over the identity and the key, in lower-case hexadecimal: `ab/ab…64 digits.kv`. The
//! first two digits name the folder, so that no folder grows large. While it is being written, the
//! file is called `.kv.partial`. Names say nothing about the content and come from nobody's input.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use mini_infer_core::BlockKey;
use sha2::{Digest, Sha256};

use crate::identity::IdentityDigest;

/// Sets these names apart from every other use of SHA-256, and from those of other formats.
const DOMAIN: &[u8] = b"mini-infer block file v1\0";
/// Ends the name of a whole file.
const SUFFIX: &str = ".kv";
/// Ends the name of a file that is being written.
const PARTIAL_SUFFIX: &str = ".kv.partial";
/// Digits of a hash.
const NUM_DIGITS: usize = 64;

/// The name of a block's file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileName([u8; 32]);

/// What a name found in a folder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundName {
    /// A whole file.
    Whole(FileName),
    /// A file that was being written.
    Partial(FileName),
}

impl FileName {
    /// Names the file of the block `key`.
    pub(crate) fn of(identity: IdentityDigest, key: &BlockKey) -> Self {
        let hash = Sha256::new().chain_update(DOMAIN).chain_update(identity.0).chain_update(key.0);
        Self(hash.finalize().into())
    }

    /// Returns the folder of the file.
    pub(crate) fn folder(&self, root: &Path) -> PathBuf {
        root.join(format!("{:02x}", self.0[0]))
    }

    /// Returns the place of the whole file.
    pub(crate) fn path(&self, root: &Path) -> PathBuf {
        self.folder(root).join(format!("{self}{SUFFIX}"))
    }

    /// Returns the place of the file while it is being written.
    pub(crate) fn partial_path(&self, root: &Path) -> PathBuf {
        self.folder(root).join(format!("{self}{PARTIAL_SUFFIX}"))
    }

    /// Reads a name found in the folder `folder`; `None` for whatever this crate does not write.
    pub(crate) fn parse(folder: &OsStr, file: &OsStr) -> Option<FoundName> {
        let file = file.to_str()?;
        let (digits, suffix) = file.split_at_checked(NUM_DIGITS)?;
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().as_chunks::<2>().0) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        if folder.to_str()? != &digits[..2] {
            return None;
        }
        match suffix {
            SUFFIX => Some(FoundName::Whole(Self(hash))),
            PARTIAL_SUFFIX => Some(FoundName::Partial(Self(hash))),
            _ => None,
        }
    }
}

/// Returns the value of a lower-case hexadecimal digit.
fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(folder: &str, file: &str) -> Option<FoundName> {
        FileName::parse(OsStr::new(folder), OsStr::new(file))
    }

    #[test]
    fn names_are_read_back_from_their_paths() {
        let name = FileName::of(IdentityDigest([1; 32]), &BlockKey([2; 32]));
        let read = |path: PathBuf| {
            let folder = path.parent().unwrap().file_name().unwrap();
            FileName::parse(folder, path.file_name().unwrap())
        };
        let root = Path::new("dir");
        assert_eq!(read(name.path(root)), Some(FoundName::Whole(name)));
        assert_eq!(read(name.partial_path(root)), Some(FoundName::Partial(name)));
    }

    #[test]
    fn names_depend_on_the_key_and_the_identity() {
        let name =
            |identity, key| FileName::of(IdentityDigest([identity; 32]), &BlockKey([key; 32]));
        assert_ne!(name(1, 2), name(1, 3));
        assert_ne!(name(1, 2), name(2, 2));
        assert_ne!(name(1, 2), name(2, 1));
    }

    #[test]
    fn whatever_else_lies_in_the_folder_is_not_taken_for_a_block() {
        let digits = "ab".repeat(32);
        assert!(parse("ab", &format!("{digits}.kv")).is_some());
        assert_eq!(parse("ac", &format!("{digits}.kv")), None);
        assert_eq!(parse("AB", &format!("{}.kv", digits.to_uppercase())), None);
        for file in ["", ".kv", "notes.txt", &digits, &format!("{digits}.kv2"), "é.kv"] {
            assert_eq!(parse("ab", file), None, "{file}");
        }
        assert_eq!(parse("ab", &format!("{}\u{e9}.kv", &digits[..63])), None);
        assert_eq!(parse("ab", &format!("{}.kv", &digits[..62])), None);
        assert_eq!(parse("ab", &format!("{}g.kv", &digits[..63])), None);
    }
}
