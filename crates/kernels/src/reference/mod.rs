//! Plain implementations that define what the fast kernels must compute.

mod codebook_groups;
mod codebooks;
mod dequantize;
mod half;

pub(crate) use codebook_groups::{SignedGroup, read_signed};
pub use dequantize::dequantize;
pub use half::{bf16_to_f32, f16_to_f32};
