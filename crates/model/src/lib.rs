//! Checkpoint formats, weights and the forward pass.
#![deny(unsafe_code)]

pub mod error;
pub mod ops;
pub mod rope;
pub mod weights;

pub use error::ModelError;
