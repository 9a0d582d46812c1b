//! Models from a stand-in of the Hub, which behaves as the real one does, and from one of pip.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[cfg(unix)]
mod alias;
mod download;
mod places;
#[cfg(unix)]
mod processes;
mod setup;
mod stand_in;
