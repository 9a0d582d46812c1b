//! Who sends a request, as far as limits tell clients apart.

use std::net::{IpAddr, SocketAddr};

/// The other end of a request's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

/// A client: the key that it shows, or where it connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// SHA-256 of an API key.
    Key([u8; 32]),
    /// An address, where no keys are set.
    Address(IpAddr),
}
