//! Plain implementations that define what the fast kernels must compute.

mod dequantize;
mod half;

pub use dequantize::dequantize;
pub use half::{bf16_to_f32, f16_to_f32};
