//! Requests under load against a small server whose every byte a test decides.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod answers;
mod loops;
mod scripted_server;
mod stops;
