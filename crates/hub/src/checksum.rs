//! Checksums of the Hub: what a file must hash to, and the hash of the bytes received so far.
//!
//! The Hub names a large file by the SHA-256 of its bytes and a small one by the id Git gives its
//! blob: SHA-1 over `blob <length>\0` and the bytes. The same text is the ETag and the file's name
//! in the cache, so a checksum is also a safe file name. Hashing costs about a millisecond per
//! megabyte, half that with the CPU's SHA instructions.

use std::fmt;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// What the bytes of a file must hash to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// SHA-256 of the bytes, in lower-case hexadecimal.
    Sha256(String),
    /// Git's id of the bytes as a blob, in lower-case hexadecimal.
    GitBlob(String),
}

/// The hash of the bytes seen so far.
#[derive(Debug, Clone)]
pub(crate) enum RunningChecksum {
    /// Towards a [`Checksum::Sha256`].
    Sha256(Sha256),
    /// Towards a [`Checksum::GitBlob`].
    GitBlob(Sha1),
}

impl Checksum {
    /// Reads a SHA-256 of 64 hexadecimal digits.
    pub(crate) fn from_sha256_hex(text: &str) -> Option<Self> {
        lower_hex(text, 64).map(Self::Sha256)
    }

    /// Reads a Git blob id of 40 hexadecimal digits.
    pub(crate) fn from_git_blob_hex(text: &str) -> Option<Self> {
        lower_hex(text, 40).map(Self::GitBlob)
    }

    /// Reads an ETag header of the Hub: `"<hex>"`, `W/"<hex>"` or bare.
    pub(crate) fn from_etag(header: &str) -> Option<Self> {
        let text = header.trim().trim_start_matches("W/").trim_matches('"');
        Self::from_sha256_hex(text).or_else(|| Self::from_git_blob_hex(text))
    }

    /// Returns the hexadecimal digits: the file's name among the cache's blobs.
    pub(crate) fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitBlob(hex) => hex,
        }
    }

    /// Starts the hash of a file of `num_bytes` bytes.
    pub(crate) fn start(&self, num_bytes: u64) -> RunningChecksum {
        match self {
            Self::Sha256(_) => RunningChecksum::Sha256(Sha256::new()),
            Self::GitBlob(_) => {
                let mut hash = Sha1::new();
                hash.update(format!("blob {num_bytes}\0").as_bytes());
                RunningChecksum::GitBlob(hash)
            }
        }
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.hex())
    }
}

impl RunningChecksum {
    /// Adds the next bytes of the file.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
        }
    }

    /// Returns the hash of all bytes added.
    pub(crate) fn finish(self) -> Checksum {
        match self {
            Self::Sha256(hash) => Checksum::Sha256(to_hex(&hash.finalize())),
            Self::GitBlob(hash) => Checksum::GitBlob(to_hex(&hash.finalize())),
        }
    }
}

fn lower_hex(text: &str, num_digits: usize) -> Option<String> {
    let is_hex = text.len() == num_digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| text.to_ascii_lowercase())
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|&byte| {
        [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]].map(char::from)
    });
    digits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum_of(kind: &Checksum, bytes: &[u8]) -> String {
        let mut running = kind.start(bytes.len() as u64);
        running.update(bytes);
        running.finish().hex().to_owned()
    }

    #[test]
    fn sha256_equals_the_published_test_vector() {
        let kind = Checksum::Sha256(String::new());
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(checksum_of(&kind, b"abc"), expected);
    }

    #[test]
    fn git_blob_id_equals_what_git_hash_object_prints() {
        let kind = Checksum::GitBlob(String::new());
        let expected = "ce013625030ba8dba906f756967f9e9ca394464a";
        assert_eq!(checksum_of(&kind, b"hello\n"), expected);
    }

    #[test]
    fn etag_is_read_with_and_without_quotes_and_nothing_else_is() {
        let sha1 = "CE013625030ba8dba906f756967f9e9ca394464a";
        let expected = Some(Checksum::GitBlob(sha1.to_ascii_lowercase()));
        assert_eq!(Checksum::from_etag(sha1), expected);
        assert_eq!(Checksum::from_etag(&format!("\"{sha1}\"")), expected);
        assert_eq!(Checksum::from_etag(&format!("W/\"{sha1}\"")), expected);
        assert_eq!(Checksum::from_etag("\"../../../../etc/passwd\""), None);
        assert_eq!(Checksum::from_etag(&sha1[1..]), None);
    }
}
