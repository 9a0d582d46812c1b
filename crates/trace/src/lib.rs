//! Recorded requests of real services: lengths, arrival times and shared prefixes, but no text.
//!
//! Owns the formats in which they are published, Azure's and Mooncake's. What a request is made of
//! is for those who replay it: tokens in a simulation, words in a load test.
#![forbid(unsafe_code)]

mod azure;
mod error;
mod mooncake;
mod trace;

pub use error::TraceError;
pub use trace::{TOKENS_PER_ID, Trace, TraceRequest};
