//! What KV bytes depend on besides the tokens.

use std::fmt;

use sha2::{Digest, Sha256};

/// Sets these digests apart from every other use of SHA-256.
const DOMAIN: &[u8] = b"mini-infer tier identity v1\0";

/// Whatever decides what a block's bytes mean besides its key. Bytes saved under one identity are
/// never restored under another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierIdentity {
    /// The weights and their configuration: a digest of the checkpoint, or a name that changes
    /// whenever they do.
    pub model: String,
    /// The stored form of KV, such as `f16` or `int8`.
    pub kv_dtype: String,
    /// The numbers of the layout, in an order of the caller's: block size, layers, heads, head
    /// dimension, bytes of a block and the like.
    pub layout: Vec<u64>,
    /// The build and the instruction set, where they change the bits that are computed.
    pub build: String,
}

impl TierIdentity {
    /// Returns a digest over all fields; no two identities are hashed as the same bytes.
    pub(crate) fn digest(&self) -> IdentityDigest {
        let mut hash = Sha256::new();
        hash.update(DOMAIN);
        for field in [&self.model, &self.kv_dtype, &self.build] {
            hash.update((field.len() as u64).to_le_bytes());
            hash.update(field);
        }
        hash.update((self.layout.len() as u64).to_le_bytes());
        for number in &self.layout {
            hash.update(number.to_le_bytes());
        }
        IdentityDigest(hash.finalize().into())
    }
}

/// SHA-256 over a [`TierIdentity`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdentityDigest(pub(crate) [u8; 32]);

impl fmt::Debug for IdentityDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_and_every_border_between_fields_counts() {
        let identity = TierIdentity {
            model: "ab".to_owned(),
            kv_dtype: "f16".to_owned(),
            layout: vec![16, 30],
            build: "1".to_owned(),
        };
        let changes: [fn(&mut TierIdentity); 6] = [
            |identity| identity.model.push('c'),
            |identity| identity.kv_dtype.push('c'),
            |identity| identity.layout.push(0),
            |identity| identity.layout.swap(0, 1),
            |identity| identity.build.push('c'),
            |identity| {
                identity.model.pop();
                identity.kv_dtype.insert(0, 'b');
            },
        ];
        let mut digests = vec![identity.digest()];
        for change in changes {
            let mut changed = identity.clone();
            change(&mut changed);
            assert!(!digests.contains(&changed.digest()), "{changed:?} has an earlier digest");
            digests.push(changed.digest());
        }
    }
}
