//! The `Host` header against DNS rebinding.
//!
//! A web page can give its own name this machine's address; its requests are then of the same
//! origin, and no CORS rule keeps it from reading the answers. But the browser still sends the
//! page's name as `Host`. So a server on a loopback address answers for loopback names only, and
//! one that others reach for the names that it was given, if any were.

use crate::state::AppState;
use crate::wire::error::ApiError;
use crate::wire::refusal::Refusal;
use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;

/// Whom the server answers for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostRule {
    /// Names beside the loopback ones; `None` lets every name pass.
    allowed: Option<Vec<String>>,
}

impl HostRule {
    /// Returns the rule of a server at `address` that has the `allowed` names.
    pub(crate) fn new(address: IpAddr, allowed: &[String]) -> Self {
        let is_checked = address.is_loopback() || !allowed.is_empty();
        let names = || allowed.iter().map(|name| normal(name)).collect();
        Self { allowed: is_checked.then(names) }
    }

    /// Tells whether the server answers for `host`, which may have a port.
    fn allows(&self, host: &str) -> bool {
        let Some(allowed) = &self.allowed else {
            return true;
        };
        let name = normal(without_port(host));
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name == "localhost"
            || address.is_ok_and(|address| address.is_loopback())
            || allowed.iter().any(|allowed| *allowed == name || *allowed == normal(host))
    }
}

/// Lets a request pass that is meant for this server. One without a `Host` is not from a browser.
///
/// # Errors
/// Returns [`Refusal::HostNotAllowed`] otherwise.
pub(crate) async fn check_host(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let rule = state.host_rule();
    let headers = request.headers().get_all(HOST).iter();
    let in_headers = headers.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let in_line = request.uri().authority().map(|authority| authority.as_str().to_owned());
    for host in in_headers.chain(in_line) {
        if !rule.allows(&host) {
            return Err(Refusal::HostNotAllowed { host }.into());
        }
    }
    Ok(next.run(request).await)
}

/// Returns a name as it is compared: lower case, without the dot of the root.
fn normal(name: &str) -> String {
    name.trim().trim_end_matches('.').to_ascii_lowercase()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The last colon of `[::1]` or `::1` is part of the address.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn a_loopback_server_answers_for_loopback_names_and_the_given_ones() {
        let rule = HostRule::new(Ipv4Addr::LOCALHOST.into(), &["Box.Local".to_owned()]);
        for host in [
            "localhost",
            "LOCALHOST:8000",
            "localhost.:8000",
            "127.0.0.1",
            "127.0.0.1:1",
            "127.8.9.1:8000",
            "[::1]:8000",
            "[::1]",
            "::1",
            "box.local:8000",
        ] {
            assert!(rule.allows(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example#localhost",
            "localhost@evil.example",
            "192.168.1.5:8000",
            "0.0.0.0:8000",
            "[::]:8000",
            "x.box.local",
        ] {
            assert!(!rule.allows(host), "{host}");
        }
        assert!(HostRule::new(Ipv6Addr::LOCALHOST.into(), &[]).allows("localhost"));
    }

    #[test]
    fn a_server_for_others_checks_only_when_it_was_given_names() {
        let open: IpAddr = Ipv4Addr::UNSPECIFIED.into();
        assert!(HostRule::new(open, &[]).allows("any.example:8000"));
        let named = HostRule::new(open, &["llm.example".to_owned(), "alt.example:81".to_owned()]);
        assert!(named.allows("llm.example:8000") && named.allows("localhost"));
        assert!(named.allows("alt.example:81") && !named.allows("alt.example:82"));
        assert!(!named.allows("any.example"));
    }
}
