//! CPU kernels of mini-infer.

mod weight_type;

pub mod reference;

pub use weight_type::WeightType;
