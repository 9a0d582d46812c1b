//! From the tensors of a checkpoint to the weights of a transformer.

mod tensor_view;

pub use tensor_view::TensorView;
