//! From the bytes of a checkpoint to the weights of a transformer.

mod mmap;
mod model_tensors;
mod model_weights;
mod tensor_parts;
mod tensor_view;

pub use mmap::FileBytes;
pub use model_tensors::{FeedForwardTensors, GatedTensors, LayerTensors, ModelTensors};
pub(crate) use model_weights::{LoadProgress, ModelWeights};
pub(crate) use tensor_parts::TensorParts;
pub use tensor_view::{StoredWeights, TensorView};
