//! With whom a request shares KV: its namespace, and whether it takes part at all.
//!
//! A namespace is a digest of everything besides the tokens that separates requests: the
//! `cache_salt`, and the adapter that changes the model. Each kind of key is hashed behind a tag of
//! its own, so that a salt can never equal a key of another kind.

use crate::adapters::LoadedAdapter;
use crate::wire::error::ApiError;
use mini_infer_core::{Namespace, PrefixCaching};
use sha2::{Digest, Sha256};

/// Most bytes of a `cache_salt`: four times a 256-bit secret in hexadecimal.
pub(crate) const MAX_SALT_BYTES: usize = 256;

/// Comes before a salt in what is hashed; no other kind of key may use it.
const SALT_TAG: &[u8] = b"mini-infer namespace: cache_salt\0";

/// Comes before an adapter's digest and the namespace that its users would share without it.
const ADAPTER_TAG: &[u8] = b"mini-infer namespace: adapter\0";

/// With whom a request shares KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixSharing {
    /// Only requests of one namespace share.
    pub(crate) namespace: Namespace,
    /// Whether the request uses and feeds the prefix cache.
    pub(crate) prefix_caching: PrefixCaching,
}

impl PrefixSharing {
    /// Reads `cache_salt` and `cache_prompt`.
    ///
    /// # Errors
    /// Refuses empty and overlong salts.
    pub(crate) fn new(
        cache_salt: Option<&str>,
        cache_prompt: Option<bool>,
    ) -> Result<Self, ApiError> {
        let prefix_caching = match cache_prompt {
            None | Some(true) => PrefixCaching::On,
            Some(false) => PrefixCaching::Off,
        };
        let namespace = cache_salt.map(salted).transpose()?.unwrap_or_default();
        Ok(Self { namespace, prefix_caching })
    }

    /// Returns the sharing among those that also run on this adapter.
    pub(crate) fn on(self, adapter: Option<&LoadedAdapter>) -> Self {
        let Some(adapter) = adapter else { return self };
        let digest = Sha256::new()
            .chain_update(ADAPTER_TAG)
            .chain_update(adapter.digest)
            .chain_update(self.namespace.0)
            .finalize();
        Self { namespace: Namespace(digest.into()), ..self }
    }
}

/// Returns the namespace of all requests with this salt.
fn salted(salt: &str) -> Result<Namespace, ApiError> {
    if !(1..=MAX_SALT_BYTES).contains(&salt.len()) {
        let message = format!("must have 1 to {MAX_SALT_BYTES} bytes, got {}", salt.len());
        return Err(ApiError::invalid("cache_salt", message));
    }
    let digest = Sha256::new().chain_update(SALT_TAG).chain_update(salt).finalize();
    Ok(Namespace(digest.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_core::Adapter;

    fn namespace(salt: &str) -> Namespace {
        PrefixSharing::new(Some(salt), None).unwrap().namespace
    }

    #[test]
    fn adapters_share_with_nobody_else_and_keep_salts_apart() {
        let on = |digest: u8, salt: Option<&str>| {
            let adapter = LoadedAdapter { adapter: Adapter::new(()), digest: [digest; 32] };
            PrefixSharing::new(salt, None).unwrap().on(Some(&adapter)).namespace
        };
        assert_eq!(on(1, None), on(1, None));
        let distinct =
            [on(1, None), on(2, None), on(1, Some("a")), on(1, Some("b")), namespace("a")];
        for (i, a) in distinct.iter().enumerate() {
            assert!(distinct[i + 1..].iter().all(|b| a != b) && *a != Namespace::default());
        }
        let common = PrefixSharing::new(None, None).unwrap();
        assert_eq!(common.on(None), common);
    }

    #[test]
    fn each_salt_has_its_namespace_and_none_is_the_common_one() {
        let common = PrefixSharing::new(None, None).unwrap();
        assert_eq!(common, PrefixSharing::default());
        assert_eq!(namespace("a"), namespace("a"));
        let distinct = [namespace("a"), namespace("b"), namespace("A"), common.namespace];
        assert!((1..distinct.len()).all(|i| !distinct[..i].contains(&distinct[i])));
    }

    #[test]
    fn a_salt_cannot_pose_as_a_key_of_another_kind() {
        let untagged = Namespace(Sha256::digest("org/model").into());
        assert_ne!(namespace("org/model"), untagged);
    }

    #[test]
    fn salts_have_1_to_256_bytes() {
        let longest = "é".repeat(128);
        assert!(PrefixSharing::new(Some(&longest), None).is_ok());
        for salt in ["", &(longest + "x")] {
            let error = PrefixSharing::new(Some(salt), None).unwrap_err();
            let ApiError::InvalidField { param, .. } = error else { panic!("{error:?}") };
            assert_eq!(param, "cache_salt");
        }
    }

    #[test]
    fn a_prompt_is_cached_unless_the_client_says_no() {
        let caching = |field| PrefixSharing::new(None, field).unwrap().prefix_caching;
        assert_eq!(caching(None), PrefixCaching::On);
        assert_eq!(caching(Some(true)), PrefixCaching::On);
        assert_eq!(caching(Some(false)), PrefixCaching::Off);
    }
}
