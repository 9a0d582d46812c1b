//! Who may reach the server: its settings, and what is risky about them.

use crate::api_keys::ApiKeys;
use crate::cors::CorsOrigin;
use std::net::IpAddr;

/// Who may reach the server.
#[derive(Clone, Debug, Default)]
pub struct AccessConfig {
    /// Keys of which clients must show one; none lets everybody in.
    pub keys: ApiKeys,
    /// Names that the server answers for, beside those of this machine's loopback addresses.
    pub allowed_hosts: Vec<String>,
    /// Origins whose web pages may call the server.
    pub cors_origins: Vec<CorsOrigin>,
}

impl AccessConfig {
    /// Returns what an administrator of a server at `address` should know, a sentence each.
    pub(crate) fn warnings(&self, address: IpAddr, transport: Transport) -> Vec<&'static str> {
        let mut warnings = Vec::new();
        let is_open = self.keys.is_empty();
        if !address.is_loopback() && is_open {
            warnings.push(
                "other machines can reach this server and no key is asked for; set --api-key or \
                 --api-key-file",
            );
        }
        if !address.is_loopback() && transport == Transport::Plain {
            warnings.push(
                "other machines reach this server without encryption, keys and prompts included; \
                 set --tls-cert and --tls-key, or put a proxy in front",
            );
        }
        if is_open && self.cors_origins.contains(&CorsOrigin::Any) {
            warnings.push(
                "--cors-origin * without a key lets every web page that is opened here use this \
                 server",
            );
        }
        warnings
    }
}

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// As they are.
    Plain,
    /// Encrypted.
    Tls,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_keys::KeyScope;
    use std::net::Ipv4Addr;

    #[test]
    fn what_is_exposed_without_key_or_encryption_is_warned_about() {
        let (inside, outside) = (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::UNSPECIFIED.into());
        let open = AccessConfig::default();
        assert!(open.warnings(inside, Transport::Plain).is_empty());
        assert_eq!(open.warnings(outside, Transport::Plain).len(), 2);
        assert_eq!(open.warnings(outside, Transport::Tls).len(), 1);
        let mut keyed = AccessConfig::default();
        keyed.keys.add("key", KeyScope::Inference).unwrap();
        assert_eq!(keyed.warnings(outside, Transport::Plain).len(), 1);
        assert!(keyed.warnings(outside, Transport::Tls).is_empty());
        keyed.cors_origins.push(CorsOrigin::Any);
        assert!(keyed.warnings(inside, Transport::Plain).is_empty());
        let shared = AccessConfig { cors_origins: vec![CorsOrigin::Any], ..open };
        assert_eq!(shared.warnings(inside, Transport::Plain).len(), 1);
    }
}
