//! The connections to a server: one pool for each level, so that no level inherits another's.

use super::http::{http_client, root_cause};
use super::request_body::RequestSpec;
use crate::error::ServebenchError;
use reqwest::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Url};
use std::net::IpAddr;
use std::time::Duration;

/// Longest wait for a connection, however long a request may take.
const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether a connection serves one request or many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepAlive {
    /// Many, as browsers and client libraries do.
    #[default]
    Reuse,
    /// One, for servers that break on a second request.
    ClosePerRequest,
}

/// Connections to one route of one server.
#[derive(Clone, Debug)]
pub struct Connections {
    client: Client,
    url: Url,
    read_timeout: Duration,
}

impl Connections {
    /// Prepares connections; none is made yet. `timeout` is the longest wait for the next bytes,
    /// and for a connection at most 30 s of it.
    ///
    /// # Errors
    /// When the URL or the key cannot be used.
    pub fn new(
        spec: &RequestSpec,
        timeout: Duration,
        keep_alive: KeepAlive,
    ) -> Result<Self, ServebenchError> {
        let url = parse_url(spec)?;
        let mut builder = http_client()
            .http1_only()
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(timeout.min(MAX_CONNECT_TIMEOUT))
            .default_headers(headers(spec, keep_alive)?);
        if is_local(&url) {
            builder = builder.no_proxy();
        }
        if keep_alive == KeepAlive::ClosePerRequest {
            builder = builder.pool_max_idle_per_host(0);
        }
        let client = builder.build().map_err(|error| ServebenchError::Server {
            url: spec.url.clone(),
            message: format!("no client can be made for it: {}", root_cause(&error)),
        })?;
        Ok(Self { client, url, read_timeout: timeout })
    }

    /// Returns a request with this body.
    pub(super) fn post(&self, body: Vec<u8>) -> reqwest::RequestBuilder {
        self.client.post(self.url.clone()).body(body)
    }

    /// Returns the longest wait for the next bytes.
    pub(super) fn read_timeout(&self) -> Duration {
        self.read_timeout
    }
}

fn parse_url(spec: &RequestSpec) -> Result<Url, ServebenchError> {
    let usage = |message: String| ServebenchError::Usage { flag: "--url".to_owned(), message };
    let url = Url::parse(&spec.full_url()).map_err(|error| {
        usage(format!("{:?} is no URL ({error}); try http://127.0.0.1:8000/v1", spec.url))
    })?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(usage(format!("{:?} begins with neither http:// nor https://", spec.url)));
    }
    Ok(url)
}

fn headers(spec: &RequestSpec, keep_alive: KeepAlive) -> Result<HeaderMap, ServebenchError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(key) = &spec.api_key {
        let mut value =
            HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| ServebenchError::Usage {
                flag: "--api-key".to_owned(),
                message: "has characters that no HTTP header may have; look for a line break"
                    .to_owned(),
            })?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    if keep_alive == KeepAlive::ClosePerRequest {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(headers)
}

/// Tells whether the server is on this machine, where no proxy can lead.
fn is_local(url: &Url) -> bool {
    url.host_str().is_some_and(is_local_host)
}

/// Tells whether a host name is this machine's.
pub(crate) fn is_local_host(host: &str) -> bool {
    let address: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
    host == "localhost" || address.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::RunConfig;

    fn connect(url: &str, api_key: Option<&str>) -> Result<Connections, String> {
        let config = RunConfig { url: url.to_owned(), ..RunConfig::default() };
        let spec = RequestSpec::new(&config, api_key.map(str::to_owned));
        Connections::new(&spec, Duration::from_secs(1), KeepAlive::Reuse)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn bad_addresses_and_keys_are_refused_by_flag() {
        assert!(connect("http://127.0.0.1:8000/v1/", Some("k")).is_ok());
        assert!(connect("https://example.com/v1", None).is_ok());
        for (url, key, flag) in [
            ("127.0.0.1:8000", None, "--url: "),
            ("ftp://127.0.0.1/v1", None, "--url: "),
            ("", None, "--url: "),
            ("http://127.0.0.1/v1", Some("a\nb"), "--api-key: "),
        ] {
            let message = connect(url, key).unwrap_err();
            assert!(message.starts_with(flag), "{message}");
        }
    }

    #[test]
    fn local_hosts_are_known() {
        for (host, local) in [
            ("localhost", true),
            ("127.0.0.1", true),
            ("127.5.0.1", true),
            ("[::1]", true),
            ("0.0.0.0", true),
            ("192.168.1.2", false),
            ("example.com", false),
        ] {
            assert_eq!(is_local_host(host), local, "{host}");
        }
    }
}
