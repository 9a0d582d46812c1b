//! Checked reading of little-endian fields.
//!
//! Every read says what it reads, so that a damaged file is reported in the file's own terms. A
//! length is compared with the bytes left before anything is sized by it.

use crate::error::ModelError;

/// A position in the bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at `offset`, which is at most the length of `bytes`.
    pub(super) fn new(bytes: &'a [u8], offset: usize) -> Self {
        debug_assert!(offset <= bytes.len());
        Self { bytes, offset }
    }

    /// Returns the position in bytes from the start of the file.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of bytes left.
    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// Reads the next `len` bytes.
    pub(super) fn take(&mut self, what: &'static str, len: u64) -> Result<&'a [u8], ModelError> {
        let available = self.remaining();
        match usize::try_from(len) {
            Ok(len) if len <= available => {
                let taken = &self.bytes[self.offset..][..len];
                self.offset += len;
                Ok(taken)
            }
            _ => Err(ModelError::Truncated { what, offset: self.offset, needed: len, available }),
        }
    }

    /// Reads the next `N` bytes.
    pub(super) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], ModelError> {
        let taken = self.take(what, N as u64)?;
        Ok(taken.try_into().expect("`take` returns as many bytes as it is asked for"))
    }

    /// Reads an unsigned 32-bit number.
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, ModelError> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// Reads an unsigned 64-bit number.
    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, ModelError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads the number of things that follow, each of at least `least_bytes`.
    pub(super) fn count(
        &mut self,
        what: &'static str,
        least_bytes: u64,
        limit: u64,
    ) -> Result<usize, ModelError> {
        let got = self.u64(what)?;
        let fitting = self.remaining() as u64 / least_bytes;
        let limit = limit.min(fitting);
        match usize::try_from(got) {
            Ok(count) if got <= limit => Ok(count),
            _ => Err(ModelError::TooMany { what, got, limit }),
        }
    }

    /// Reads a string: its length in bytes, then the bytes.
    pub(super) fn string_bytes(&mut self, what: &'static str) -> Result<&'a [u8], ModelError> {
        let len = self.u64(what)?;
        self.take(what, len)
    }

    /// Reads a string that names something, which must be UTF-8.
    pub(super) fn name(&mut self, what: &'static str) -> Result<&'a str, ModelError> {
        let bytes = self.string_bytes(what)?;
        std::str::from_utf8(bytes).map_err(|_| ModelError::Malformed {
            what: what.to_owned(),
            got: format!("\"{}\"", bytes[..bytes.len().min(64)].escape_ascii()),
            expected: "UTF-8 text",
        })
    }
}
