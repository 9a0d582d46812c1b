//! Checkpoint formats, weights and the forward pass.
#![deny(unsafe_code)]

mod checkpoint;
pub mod config;
pub mod error;
mod executor;
mod expert_routing;
mod feed_forward;
pub mod gguf;
mod lora;
pub mod ops;
pub mod rope;
mod safetensors;
mod transformer;
mod unique_map;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use config::ModelConfig;
pub use error::ModelError;
pub use executor::ModelExecutor;
pub use lora::LoraFolder;
pub use transformer::Transformer;
