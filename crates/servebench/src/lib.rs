//! Measures any OpenAI-compatible server of language models.
//!
//! Sends streaming requests under a given load, notes when each piece of text arrives, and says
//! what that means: latency percentiles, throughput, goodput under an SLO, capacity, what limits
//! the server. Reports compare runs in a terminal, as Markdown, CSV and one HTML page.
//!
//! Reading order: [`results`] (what a run is), [`prompts`] (what is sent), [`client`] (one
//! request), [`load`] (when requests are sent), [`statistics`] (what they mean), [`report`].
#![forbid(unsafe_code)]

pub mod capacity;
pub mod check;
pub mod client;
pub mod commands;
pub mod detect;
pub mod diagnosis;
mod error;
pub mod gpu_sampler;
pub mod load;
pub mod machine;
pub mod mock_server;
pub mod output;
pub mod prompts;
pub mod report;
pub mod results;
pub mod roofline;
pub mod server_metrics;
pub mod statistics;
pub mod top;
pub mod tune;

pub use error::ServebenchError;
pub use load::benchmark;
