//! Refusals that have nothing to do with what is asked, but with who asks, from where, and how.

use axum::http::StatusCode;
use std::time::Duration;

/// Why a request is refused whatever its body says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refusal {
    /// The key opens the model, not the server.
    ManagementKeyNeeded,
    /// The `Host` header names none of this server's names.
    HostNotAllowed { host: String },
    /// A page of this origin may not call the server.
    OriginNotAllowed { origin: String },
    /// The body did not arrive in time.
    BodyTooSlow { limit: Duration },
    /// As many requests of this client run as may.
    TooManyRequests { limit: u32 },
    /// The request took longer than it may.
    DeadlineExceeded { limit: Duration },
    /// As many connections are open as there may be.
    TooManyConnections { limit: usize },
}

impl Refusal {
    /// Returns the status code that answers with this refusal.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::ManagementKeyNeeded
            | Self::HostNotAllowed { .. }
            | Self::OriginNotAllowed { .. } => StatusCode::FORBIDDEN,
            Self::TooManyRequests { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::DeadlineExceeded { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::BodyTooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::TooManyConnections { .. } => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns what went wrong and what to do.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::ManagementKeyNeeded => {
                "this route needs a management key; the key that was sent opens the model only"
                    .to_owned()
            }
            Self::HostNotAllowed { host } => format!(
                "this server does not answer for the host `{host}`; start it with \
                 --allowed-host {host} if it should"
            ),
            Self::OriginNotAllowed { origin } => {
                format!("pages of the origin `{origin}` may not call this server")
            }
            Self::TooManyRequests { limit } => format!(
                "{limit} requests of this client run already, as many as may; try again when one \
                 has ended"
            ),
            Self::DeadlineExceeded { limit } => {
                format!("the request was ended since it took longer than {limit:?}")
            }
            Self::BodyTooSlow { limit } => {
                format!("the body did not arrive within {limit:?}")
            }
            Self::TooManyConnections { limit } => {
                format!("{limit} connections are open, as many as there may be; try again later")
            }
        }
    }

    /// Returns the error's `type`.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::ManagementKeyNeeded
            | Self::HostNotAllowed { .. }
            | Self::OriginNotAllowed { .. } => "permission_error",
            Self::TooManyRequests { .. } => "rate_limit_error",
            Self::DeadlineExceeded { .. } => "timeout_error",
            Self::BodyTooSlow { .. } => "invalid_request_error",
            Self::TooManyConnections { .. } => "service_unavailable_error",
        }
    }

    /// Returns the error's `code`.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::ManagementKeyNeeded => "management_key_needed",
            Self::HostNotAllowed { .. } => "host_not_allowed",
            Self::OriginNotAllowed { .. } => "origin_not_allowed",
            Self::TooManyRequests { .. } => "too_many_requests",
            Self::DeadlineExceeded { .. } => "request_timeout",
            Self::BodyTooSlow { .. } => "body_too_slow",
            Self::TooManyConnections { .. } => "too_many_connections",
        }
    }
}
