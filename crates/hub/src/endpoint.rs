//! Addresses of the Hub: building them, joining redirects, and telling one host from another.
//!
//! Two addresses have the same origin when scheme, host and port agree; the access token is sent
//! only to the endpoint's origin. A whole URL library is left out: redirects need four cases.

use std::fmt;

use crate::repo_name::RepoName;

/// The base address of a Hub, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(String);

impl Endpoint {
    /// Takes an address that starts with `https://` or `http://` and names a host.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_end_matches('/');
        let is_clean = text.bytes().all(|byte| byte.is_ascii_graphic());
        let (_, authority) = split_origin(text)?;
        (is_clean && !authority.is_empty()).then(|| Self(text.to_owned()))
    }

    /// Returns the address.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the address of a repository's list of files at a revision.
    pub(crate) fn listing_url(&self, repo: &RepoName, revision: &str) -> String {
        format!("{self}/api/models/{repo}/revision/{}?blobs=true", encode(revision, ""))
    }

    /// Returns the address of one file at a revision.
    pub(crate) fn file_url(&self, repo: &RepoName, revision: &str, file: &str) -> String {
        format!("{self}/{repo}/resolve/{}/{}", encode(revision, ""), encode(file, "/"))
    }

    /// Returns the page of a repository that people read.
    pub(crate) fn page_url(&self, repo: &RepoName) -> String {
        format!("{self}/{repo}")
    }
}

impl Default for Endpoint {
    fn default() -> Self {
        Self("https://huggingface.co".to_owned())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tells whether two addresses have the same scheme, host and port.
pub(crate) fn is_same_origin(left: &str, right: &str) -> bool {
    let normal = |url| {
        let (scheme, authority) = split_origin(url)?;
        let default_port = if scheme == "https" { ":443" } else { ":80" };
        let authority = authority.to_ascii_lowercase();
        let host = authority.strip_suffix(default_port).unwrap_or(&authority);
        Some((scheme, host.to_owned()))
    };
    normal(left).is_some_and(|left| Some(left) == normal(right))
}

/// Tells whether the address is one of this machine's own.
pub(crate) fn is_loopback(url: &str) -> bool {
    let Some((_, authority)) = split_origin(url) else { return false };
    let host = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((ipv6, _)) => ipv6,
        None => authority.split(':').next().unwrap_or(authority),
    };
    let ip = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}

/// Joins a `Location` header to the address that sent it; `None` where it leads nowhere safe,
/// which a step down from `https` to `http` is not.
pub(crate) fn join_redirect(base: &str, location: &str) -> Option<String> {
    let (scheme, authority) = split_origin(base)?;
    let joined = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let path = base.split(['?', '#']).next().unwrap_or(base);
        let folder = path.rfind('/').map_or(path, |end| &path[..end]);
        format!("{folder}/{location}")
    };
    let (joined_scheme, joined_authority) = split_origin(&joined)?;
    let steps_down = scheme == "https" && joined_scheme == "http";
    (!steps_down && !joined_authority.is_empty()).then_some(joined)
}

/// Splits an address into its scheme and its host with port; `None` for anything but HTTP.
fn split_origin(url: &str) -> Option<(&'static str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = ["https", "http"].into_iter().find(|known| scheme.eq_ignore_ascii_case(known))?;
    Some((scheme, rest.split(['/', '?', '#']).next().unwrap_or(rest)))
}

/// Percent-encodes everything but RFC 3986's unreserved characters and those in `kept`.
fn encode(text: &str, kept: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric()
            || b"-_.~".contains(&byte)
            || kept.as_bytes().contains(&byte)
        {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_where_they_are_not_plain() {
        let endpoint = Endpoint::default();
        let repo = RepoName::parse("a/b").unwrap();
        assert_eq!(
            endpoint.file_url(&repo, "refs/pr/1", "Q4 K/m#1.gguf"),
            "https://huggingface.co/a/b/resolve/refs%2Fpr%2F1/Q4%20K/m%231.gguf"
        );
    }

    #[test]
    fn redirects_are_joined_as_the_standard_says() {
        let base = "https://hub.example/a/b/resolve/main/f?x=1";
        for (location, expected) in [
            ("https://cdn.example/f", "https://cdn.example/f"),
            ("//cdn.example/f", "https://cdn.example/f"),
            ("/api/f", "https://hub.example/api/f"),
            ("g", "https://hub.example/a/b/resolve/main/g"),
        ] {
            assert_eq!(join_redirect(base, location).as_deref(), Some(expected), "{location}");
        }
    }

    #[test]
    fn redirects_to_plain_http_or_other_schemes_are_refused() {
        for location in ["http://hub.example/f", "file:///etc/passwd", "https:///f"] {
            assert_eq!(join_redirect("https://hub.example/", location), None, "{location}");
        }
    }

    #[test]
    fn origin_ignores_case_and_the_default_port_and_nothing_else() {
        assert!(is_same_origin("https://hub.example/a", "HTTPS://Hub.Example:443/b"));
        for other in ["http://hub.example", "https://hub.example:8443", "https://hub.example.evil"]
        {
            assert!(!is_same_origin("https://hub.example", other), "{other}");
        }
    }

    #[test]
    fn loopback_addresses_are_recognised() {
        for url in ["http://127.0.0.1:80/x", "http://localhost", "http://[::1]:9/"] {
            assert!(is_loopback(url), "{url}");
        }
        assert!(!is_loopback("http://127.example:80"));
    }
}
