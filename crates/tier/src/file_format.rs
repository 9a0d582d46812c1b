//! The bytes of a block's file: a header, then the block.
//!
//! ```text
//!   0..8     magic
//!   8..12    version of the format, little-endian as all numbers
//!  12..16    length of the header
//!  16..48    digest of the identity
//!  48..80    key of the block
//!  80..88    length of the block in bytes
//!  88..104   XXH3-128 of the block
//! ```
//!
//! A reader knows what every byte of the header must be, the checksum once it has the block, so
//! verifying is comparing: no field is trusted before it is checked, and no byte goes unchecked.
//! XXH3 is no cryptographic hash. It is against damage, where 128 bits are as good as any; whoever
//! may write into the folder could forge any checksum that has no secret key.

use mini_infer_core::BlockKey;
use twox_hash::XxHash3_128;

use crate::identity::IdentityDigest;

/// Length of a header in bytes.
pub(crate) const HEADER_BYTES: usize = HEADER_LENGTH as usize;
/// Length of a header, as the header says it.
const HEADER_LENGTH: u32 = 104;
/// Version of this format.
const VERSION: u32 = 1;
/// Opens every file; with a byte that is no text, so that no editor takes it for some.
const MAGIC: [u8; 8] = *b"\x89MIKVBLK";

/// The header of a file.
pub(crate) type Header = [u8; HEADER_BYTES];

/// Why a file is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Bytes are missing or too many.
    Length,
    /// Bytes are not those that were written.
    Damaged,
    /// Another identity or another version of the format wrote it.
    Foreign,
}

/// Makes the header of the file that holds `block`.
pub(crate) fn header(identity: IdentityDigest, key: &BlockKey, block: &[u8]) -> Header {
    let mut header = [0; HEADER_BYTES];
    header[0..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&HEADER_LENGTH.to_le_bytes());
    header[16..48].copy_from_slice(&identity.0);
    header[48..80].copy_from_slice(&key.0);
    header[80..88].copy_from_slice(&(block.len() as u64).to_le_bytes());
    header[88..104].copy_from_slice(&XxHash3_128::oneshot(block).to_le_bytes());
    header
}

/// Checks that a file with this header and block is the one that was written for `key`.
pub(crate) fn verify(
    found: &Header,
    identity: IdentityDigest,
    key: &BlockKey,
    block: &[u8],
) -> Result<(), Refusal> {
    let expected = header(identity, key, block);
    if *found == expected {
        return Ok(());
    }
    if found[0..8] != expected[0..8] {
        return Err(Refusal::Damaged);
    }
    if found[8..48] != expected[8..48] {
        return Err(Refusal::Foreign);
    }
    if found[80..88] != expected[80..88] { Err(Refusal::Length) } else { Err(Refusal::Damaged) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: IdentityDigest = IdentityDigest([7; 32]);
    const KEY: BlockKey = BlockKey([9; 32]);

    #[test]
    fn every_change_of_any_one_byte_is_refused() {
        let block: Vec<u8> = (0..=255).collect();
        let header = header(IDENTITY, &KEY, &block);
        assert_eq!(verify(&header, IDENTITY, &KEY, &block), Ok(()));
        for change in 1..=255 {
            for i in 0..HEADER_BYTES {
                let mut header = header;
                header[i] ^= change;
                assert!(verify(&header, IDENTITY, &KEY, &block).is_err(), "header byte {i}");
            }
            for i in 0..block.len() {
                let mut block = block.clone();
                block[i] ^= change;
                let refused = verify(&header, IDENTITY, &KEY, &block);
                assert_eq!(refused, Err(Refusal::Damaged), "block byte {i}");
            }
        }
    }

    #[test]
    fn what_another_identity_wrote_is_foreign() {
        let header = header(IdentityDigest([8; 32]), &KEY, &[1, 2, 3]);
        assert_eq!(verify(&header, IDENTITY, &KEY, &[1, 2, 3]), Err(Refusal::Foreign));
    }

    #[test]
    fn another_blocks_file_is_refused() {
        let header = header(IDENTITY, &BlockKey([1; 32]), &[1, 2, 3]);
        assert_eq!(verify(&header, IDENTITY, &KEY, &[1, 2, 3]), Err(Refusal::Damaged));
    }
}
