//! Small GET requests with a time limit, for what is not part of a measurement.
//!
//! A probe reads at most [`MAX_BODY_BYTES`] and keeps no connection, so that it leaves nothing
//! behind on the server that is measured.

use crate::client::{http_client, root_cause};
use reqwest::{Client, Url};
use serde_json::Value;
use std::time::Duration;

/// Longest body that is read: more than the model lists of the largest gateways, and the block
/// map of a full KV pool.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Makes small GET requests.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    client: Client,
    api_key: Option<String>,
}

/// Why there is no usable answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeError {
    /// The address is none.
    Url,
    /// There was no answer in time, or none at all.
    Unreachable(String),
    /// The answer has this status.
    Status(u16),
    /// The body is not what was asked for.
    Unexpected,
}

impl Probe {
    /// Creates a probe for the server at `url`; each request takes at most `timeout`.
    pub(crate) fn new(url: &str, timeout: Duration, api_key: Option<&str>) -> Self {
        let mut builder = http_client().timeout(timeout).pool_max_idle_per_host(0);
        if is_loopback(url) {
            // A proxy that the environment names cannot reach this machine's own ports.
            builder = builder.no_proxy();
        }
        let client = builder.build().expect("no option is invalid");
        Self { client, api_key: api_key.map(str::to_owned) }
    }

    /// Returns the body of a successful answer.
    pub(crate) async fn bytes(&self, url: &str) -> Result<Vec<u8>, ProbeError> {
        let url: Url = url.parse().map_err(|_| ProbeError::Url)?;
        let mut request = self.client.get(url);
        if let Some(api_key) = &self.api_key {
            request = request.bearer_auth(api_key);
        }
        let mut answer = request.send().await.map_err(|error| unreachable(&error))?;
        if !answer.status().is_success() {
            return Err(ProbeError::Status(answer.status().as_u16()));
        }
        let mut body = Vec::new();
        while let Some(bytes) = answer.chunk().await.map_err(|error| unreachable(&error))? {
            if body.len() + bytes.len() > MAX_BODY_BYTES {
                return Err(ProbeError::Unexpected);
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body)
    }

    /// Returns a successful answer as JSON.
    pub(crate) async fn json(&self, url: &str) -> Result<Value, ProbeError> {
        let body = self.bytes(url).await?;
        serde_json::from_slice(&body).map_err(|_| ProbeError::Unexpected)
    }
}

fn unreachable(error: &reqwest::Error) -> ProbeError {
    if error.is_timeout() {
        return ProbeError::Unreachable("no answer in time".to_owned());
    }
    ProbeError::Unreachable(root_cause(error))
}

/// Returns whether a URL names this machine by its loopback address.
pub(crate) fn is_loopback(url: &str) -> bool {
    let Ok(url) = url.parse::<Url>() else {
        return false;
    };
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address: Option<std::net::IpAddr> = host.parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

/// Returns whether the path of a base URL ends in the version of an API, such as `/v1`.
pub(super) fn ends_in_version(url: &str) -> bool {
    let last = url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    last.strip_prefix('v').is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Returns the base URL without the version of the API: where routes that are not OpenAI's lie.
pub(crate) fn api_root(base_url: &str) -> String {
    let url = base_url.trim_end_matches('/');
    if ends_in_version(url) {
        let end = url.rfind('/').unwrap_or(url.len());
        return url[..end].trim_end_matches('/').to_owned();
    }
    url.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_an_api_keeps_a_gateway_s_path() {
        for (base, root) in [
            ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
            ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("https://gateway.example/ollama/v1", "https://gateway.example/ollama"),
            ("https://api.example/v", "https://api.example/v"),
        ] {
            assert_eq!(api_root(base), root);
        }
    }

    #[test]
    fn only_this_machine_is_reached_without_a_proxy() {
        for url in ["http://127.0.0.1:8000/v1", "http://localhost/v1", "http://[::1]:80/v1"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["http://localhost.example/v1", "https://10.0.0.1/v1", "127.0.0.1"] {
            assert!(!is_loopback(url), "{url}");
        }
    }
}
