//! Checkpoint formats, weights and the forward pass.
#![deny(unsafe_code)]

mod checkpoint;
pub mod config;
pub mod error;
pub mod gguf;
pub mod ops;
pub mod rope;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use config::ModelConfig;
pub use error::ModelError;
