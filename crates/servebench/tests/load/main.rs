//! Requests under load against a small server whose every byte a test decides.

mod answers;
mod loops;
mod scripted_server;
mod stops;
