//! CPU kernels: the numbers behind the model's op set.
//!
//! Owns packed weight layouts, quantised matrix products, paged attention over KV storage,
//! element-wise kernels and the compute thread pool. This crate is the project's island of
//! unsafe code.
//!
//! Every kernel keeps the batch-invariance rule: a row's result is a fixed sequence of operations
//! on that row, whatever else is computed, however work is split over threads. Work is split over
//! rows, heads and output features, never over a reduction. Beyond that, every instruction set
//! performs the same operations in the same order, so that results are bit-identical on all.
//!
//! Deliberately absent: model structure, block allocation, checkpoint files.

mod activation_rows;
mod aligned_floats;
mod attention;
mod dispatch;
mod elementwise;
mod exp;
mod float_format;
mod int4_columns;
mod isa;
mod key_offset;
mod kv_element;
mod kv_layout;
mod kv_rotation;
mod kv_storage;
mod lanes;
mod machine_limits;
mod mapped_buffer;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon_bytes;
mod packed_matrix;
mod prefetch;
mod quantize;
pub mod reference;
mod row_view;
mod store_kv;
mod tanh;
mod thread_pool;
mod token_heads;
mod weight_memory;
mod weight_type;

pub use activation_rows::{GROUP, QuantizedRows};
pub use aligned_floats::AlignedFloats;
pub use attention::{AttentionShape, attention};
pub use elementwise::{AddAndNorm, add_and_norm, gelu_tanh_gate, rms_norm, silu_gate};
pub use int4_columns::{Int4Columns, Int4Error, Int4Order};
pub use isa::{Isa, IsaError};
pub use key_offset::{KeyOffset, OffsetPair, PairTurns};
pub use kv_layout::{KvDtype, KvLayout, SlidingPattern};
pub use kv_storage::KvStorage;
pub use machine_limits::{ArithmeticLimits, Limit, MachineLimits};
pub use mapped_buffer::MappedBuffer;
pub use matmul::matmul;
pub use packed_matrix::{PackError, PackedMatrix, ReleaseBytes, WeightRows};
pub use quantize::{QuantizeError, QuantizedType, quantize};
pub use store_kv::store_kv;
pub use tanh::soft_cap;
pub use thread_pool::ThreadPool;
pub use token_heads::{HeadNorms, RotaryPairs, Rotation, TokenHeads, TokenHeadsScratch};
pub use weight_memory::WeightMemory;
pub use weight_type::WeightType;
