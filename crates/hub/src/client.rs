//! Talking to the Hub: requests, redirects, and what its answers mean.
//!
//! Redirects are followed here rather than by the HTTP library, for two reasons: the access token
//! goes to the endpoint's own origin and to no other host, and the headers that describe a file
//! (`X-Linked-Etag`, `X-Linked-Size`) come with the first answer, before the redirect to storage.
//! Deliberately absent: repeating a failed request, which is the caller's.

use std::io::Read;
use std::time::Duration;

use ureq::http::{HeaderMap, Response, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::checksum::Checksum;
use crate::endpoint::{is_loopback, is_same_origin, join_redirect};
use crate::error::HubError;
use crate::listing::{FileContent, Listing};
use crate::options::{HubOptions, Timeouts};
use crate::repo_name::RepoName;

/// Redirects followed for one request; the Hub uses one or two.
const MAX_REDIRECTS: usize = 8;
/// Longest list of files accepted; that of the largest repositories is a few megabytes.
const MAX_LISTING_BYTES: u64 = 64 << 20;

/// A connection to one Hub on behalf of one user.
#[derive(Debug)]
pub(crate) struct Client<'a> {
    options: &'a HubOptions,
    agent: Agent,
}

/// A file of the Hub being read.
pub(crate) struct Download {
    /// Position in the file of the first byte of the body.
    pub(crate) start: u64,
    /// Checksum the server announces for the whole file, where it does.
    pub(crate) checksum: Option<Checksum>,
    /// Address the bytes come from.
    pub(crate) url: String,
    body: ureq::BodyReader<'static>,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// The whole answer.
    Get,
    /// The answer's bytes from this position on.
    GetFrom(u64),
    /// The headers alone, of the first answer that does not stay on the Hub.
    Head,
}

/// The last answer of a chain of redirects.
struct Answer {
    url: String,
    response: Response<Body>,
    /// Headers of the first answer that described the file.
    linked: LinkedFile,
}

/// What the Hub says about a file in its headers.
#[derive(Debug, Default)]
struct LinkedFile {
    checksum: Option<Checksum>,
    num_bytes: Option<u64>,
}

impl<'a> Client<'a> {
    /// Prepares a client; connects to nothing yet.
    pub(crate) fn new(options: &'a HubOptions, timeouts: Timeouts) -> Self {
        let tls = TlsConfig::builder().root_certs(root_certificates()).build();
        let config = Agent::config_builder()
            .user_agent(concat!("mini-infer/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(timeouts.connect))
            .timeout_connect(Some(timeouts.connect))
            .timeout_recv_response(Some(timeouts.stall))
            .timeout_per_read(Some(timeouts.stall))
            .timeout_per_write(Some(timeouts.stall))
            .build();
        Self { options, agent: config.into() }
    }

    /// Asks what a repository holds at a revision.
    ///
    /// # Errors
    ///
    /// Everything a server can answer instead.
    pub(crate) fn listing(&self, repo: &RepoName, revision: &str) -> Result<Listing, HubError> {
        let url = self.options.endpoint.listing_url(repo, revision);
        let answer = self.ask(Ask::Get, &url)?;
        if !answer.response.status().is_success() {
            return Err(self.refusal(&answer, repo, Wanted::Revision(revision)));
        }
        let mut json = Vec::new();
        let mut body = answer.response.into_body().into_reader().take(MAX_LISTING_BYTES);
        body.read_to_end(&mut json).map_err(|error| HubError::Interrupted {
            url: url.clone(),
            reason: error.to_string(),
        })?;
        Listing::parse(&json).map_err(|problem| HubError::BadAnswer { url, problem })
    }

    /// Asks for the checksum and length of one file.
    ///
    /// # Errors
    ///
    /// [`HubError::Unverifiable`] where the server does not say, and everything it can answer
    /// instead.
    pub(crate) fn file_content(
        &self,
        repo: &RepoName,
        commit: &str,
        file: &str,
    ) -> Result<FileContent, HubError> {
        let url = self.options.endpoint.file_url(repo, commit, file);
        let answer = self.ask(Ask::Head, &url)?;
        let status = answer.response.status();
        if !status.is_success() && !status.is_redirection() {
            return Err(self.refusal(&answer, repo, Wanted::File(file)));
        }
        let LinkedFile { checksum, num_bytes } = answer.linked;
        let content = checksum.zip(num_bytes);
        content
            .map(|(checksum, num_bytes)| FileContent { checksum, num_bytes })
            .ok_or_else(|| HubError::Unverifiable { file: file.to_owned() })
    }

    /// Begins to read a file from byte `start` on, or from its beginning where the server does not
    /// do otherwise: see [`Download::start`].
    ///
    /// # Errors
    ///
    /// Everything a server can answer instead.
    pub(crate) fn download(
        &self,
        repo: &RepoName,
        commit: &str,
        file: &str,
        start: u64,
    ) -> Result<Download, HubError> {
        let url = self.options.endpoint.file_url(repo, commit, file);
        let ask = if start == 0 { Ask::Get } else { Ask::GetFrom(start) };
        let answer = self.ask(ask, &url)?;
        let start = match answer.response.status().as_u16() {
            200 => 0,
            206 => range_start(answer.response.headers()).ok_or_else(|| HubError::BadAnswer {
                url: answer.url.clone(),
                problem: "a part of a file without Content-Range".to_owned(),
            })?,
            // What is here already is not a beginning of what the server has.
            416 if start > 0 => return self.download(repo, commit, file, 0),
            _ => return Err(self.refusal(&answer, repo, Wanted::File(file))),
        };
        let Answer { url, response, linked } = answer;
        let body = response.into_body().into_reader();
        Ok(Download { start, checksum: linked.checksum, url, body })
    }

    /// Sends a request and follows its redirects.
    fn ask(&self, ask: Ask, url: &str) -> Result<Answer, HubError> {
        let mut url = url.to_owned();
        let mut linked = LinkedFile::default();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(ask, &url)?;
            let headers = response.headers();
            let location = text(headers, header::LOCATION.as_str());
            let next = location.filter(|_| response.status().is_redirection());
            let target = next.map(|location| {
                join_redirect(&url, location).ok_or_else(|| HubError::BadAnswer {
                    url: url.clone(),
                    problem: format!("redirects to {location:?}"),
                })
            });
            let target = target.transpose()?;
            let leaves = target.as_ref().is_some_and(|target| !self.is_hub(target));
            if self.is_hub(&url) {
                linked.add(headers, target.is_none());
            }
            match target {
                Some(target) if !(ask == Ask::Head && leaves) => url = target,
                _ => return Ok(Answer { url, response, linked }),
            }
        }
        Err(HubError::BadAnswer { url, problem: "redirects without end".to_owned() })
    }

    /// Sends one request, with the token if and only if it goes to the Hub.
    fn send(&self, ask: Ask, url: &str) -> Result<Response<Body>, HubError> {
        let mut request = match ask {
            Ask::Head => self.agent.head(url),
            Ask::Get | Ask::GetFrom(_) => self.agent.get(url),
        };
        // Compressed, the bytes would be neither of the announced length nor resumable.
        request = request.header(header::ACCEPT_ENCODING, "identity");
        if let Ask::GetFrom(start) = ask {
            request = request.header(header::RANGE, format!("bytes={start}-"));
        }
        if let Some(token) = self.options.token.as_ref().filter(|_| self.is_hub(url)) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        let sent = if is_loopback(url) {
            request.config().proxy(None).build().call()
        } else {
            request.call()
        };
        sent.map_err(|error| connection_error(url, &error))
    }

    fn is_hub(&self, url: &str) -> bool {
        is_same_origin(self.options.endpoint.as_str(), url)
    }

    /// Says what an answer that is no success means.
    fn refusal(&self, answer: &Answer, repo: &RepoName, wanted: Wanted<'_>) -> HubError {
        let status = answer.response.status().as_u16();
        let headers = answer.response.headers();
        let url = answer.url.clone();
        if matches!(status, 408 | 429 | 500..=599) {
            let retry_after = text(headers, header::RETRY_AFTER.as_str());
            let retry_after = retry_after.and_then(|seconds| seconds.trim().parse().ok());
            let retry_after = retry_after.map(Duration::from_secs);
            return HubError::Overloaded { url, status, retry_after };
        }
        if !self.is_hub(&url) {
            // Storage, not the Hub: its 403 means a stale link, which says nothing about licences.
            return HubError::UnexpectedStatus { url: without_query(&url), status };
        }
        let message = text(headers, "x-error-message").unwrap_or_default();
        let code = text(headers, "x-error-code").unwrap_or_default();
        let name = repo.as_str().to_owned();
        match (status, code, wanted) {
            (401, _, _) if message.starts_with("Invalid credentials") => {
                HubError::TokenRefused { endpoint: self.options.endpoint.to_string() }
            }
            (_, "GatedRepo", _) | (403, _, _) | (401, "", Wanted::File(_)) => {
                HubError::Gated { page: self.options.endpoint.page_url(repo) }
            }
            (404, "RevisionNotFound", Wanted::Revision(revision)) => {
                HubError::RevisionNotFound { repo: name, revision: revision.to_owned() }
            }
            (404, "EntryNotFound" | "", Wanted::File(file)) => {
                HubError::FileNotFound { place: name, file: file.to_owned(), available: vec![] }
            }
            (401 | 404, _, _) => HubError::RepoNotFound { repo: name },
            _ => HubError::UnexpectedStatus { url, status },
        }
    }
}

/// What a refused request was for.
#[derive(Debug, Clone, Copy)]
enum Wanted<'a> {
    Revision(&'a str),
    File(&'a str),
}

impl Read for Download {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.body.read(buffer)
    }
}

impl LinkedFile {
    /// Adds what an answer of the Hub says; plain `ETag` and `Content-Length` describe the file
    /// only in the answer that carries it.
    fn add(&mut self, headers: &HeaderMap, carries_file: bool) {
        let plain =
            |name: header::HeaderName| text(headers, name.as_str()).filter(|_| carries_file);
        let etag = text(headers, "x-linked-etag").or_else(|| plain(header::ETAG));
        let length = text(headers, "x-linked-size").or_else(|| plain(header::CONTENT_LENGTH));
        let checksum = etag.and_then(Checksum::from_etag);
        let num_bytes = length.and_then(|length| length.trim().parse().ok());
        self.checksum = self.checksum.take().or(checksum);
        self.num_bytes = self.num_bytes.or(num_bytes);
    }
}

/// Returns the system's certificates, so that a company's own are honoured, else Mozilla's.
fn root_certificates() -> RootCerts {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        return RootCerts::WebPki;
    }
    found.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).into()
}

/// Tells a server that cannot be reached from a connection that broke.
#[expect(clippy::wildcard_enum_match_arm, reason = "the library's errors may grow in number")]
fn connection_error(url: &str, error: &ureq::Error) -> HubError {
    use ureq::Error as E;
    let url = without_query(url);
    let reason = error.to_string();
    let is_broken = match error {
        E::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => false,
        E::Io(error) => {
            use std::io::ErrorKind as K;
            let kinds = [K::ConnectionReset, K::ConnectionAborted, K::UnexpectedEof, K::BrokenPipe];
            kinds.contains(&error.kind())
        }
        other => matches!(other, E::Timeout(_) | E::Protocol(_) | E::BodyStalled),
    };
    if is_broken {
        HubError::Interrupted { url, reason }
    } else {
        HubError::Unreachable { url, reason }
    }
}

/// Drops the query, which in a link to storage is a signature and no reading matter.
fn without_query(url: &str) -> String {
    url.split('?').next().unwrap_or(url).to_owned()
}

/// Reads `Content-Range: bytes <start>-…`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let range = text(headers, header::CONTENT_RANGE.as_str())?;
    range.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}
