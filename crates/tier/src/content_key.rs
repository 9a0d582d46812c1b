//! The cryptographic hash that names the content of a block.
//!
//! SHA-256, so that equal keys mean equal tokens also for tokens that somebody chose: keys outlive
//! the process in file names, where no tokens are left to compare. Under a microsecond for a block
//! of 16 tokens.

use mini_infer_core::{BlockKey, TokenId};
use sha2::{Digest, Sha256};

/// Sets these keys apart from every other use of SHA-256.
const DOMAIN: &[u8] = b"mini-infer block key v1\0";

/// Returns the key of the full block that holds `tokens` and follows the block `parent`; a
/// [`ContentHash`](mini_infer_core::ContentHash).
///
/// Domain and parent have fixed lengths, so no two inputs are hashed as the same bytes.
#[must_use]
pub fn content_key(parent: &BlockKey, tokens: &[TokenId]) -> BlockKey {
    let mut hash = Sha256::new();
    hash.update(DOMAIN);
    hash.update(parent.0);
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    BlockKey(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_core::{ContentHash, Namespace};

    #[test]
    fn the_key_depends_on_the_parent_and_on_every_token_in_order() {
        let hash: ContentHash = content_key;
        let root = BlockKey::root(Namespace::default());
        let other = BlockKey::root(Namespace([1; 32]));
        let keys = [
            hash(&root, &[1, 2]),
            hash(&root, &[2, 1]),
            hash(&root, &[1]),
            hash(&root, &[1, 2, 0]),
            hash(&other, &[1, 2]),
            hash(&hash(&root, &[1]), &[2]),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "key {i} is also an earlier one's");
        }
    }

    #[test]
    fn keys_are_the_same_in_every_build() {
        // SHA-256 of the domain, 32 zero bytes, and 1 and 258 in four little-endian bytes each.
        let key = content_key(&BlockKey::default(), &[1, 258]);
        let hex: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "2edb3ed2e9389314856577cc487c70ac6fcccff29431b7b46308d4cbc407e615");
    }
}
