//! What every HTTP client of this program begins with.

use reqwest::{Client, ClientBuilder};
use std::error::Error;

/// Returns a builder of clients, with cryptography for HTTPS.
pub(crate) fn http_client() -> ClientBuilder {
    // A program that uses this library may have chosen another provider; then that one stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
}

/// Returns the last cause of an error: it says what happened, those before it only who noticed.
pub(crate) fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
