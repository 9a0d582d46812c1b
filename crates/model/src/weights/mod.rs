//! From the tensors of a checkpoint to the weights of a transformer.

mod mmap;
mod tensor_view;

pub use mmap::FileBytes;
pub use tensor_view::TensorView;
