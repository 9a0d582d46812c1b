//! A tensor as it lies in a checkpoint.

use mini_infer_kernels::reference::dequantize;
use mini_infer_kernels::{WeightRows, WeightType};

/// A borrowed tensor. Its bytes are exactly what its shape and type take, which whoever makes one
/// has checked; they have no particular alignment.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Name in the checkpoint.
    pub name: &'a str,
    /// Number format.
    pub weight_type: WeightType,
    /// Row-major: `[out_features, in_features]` for a matrix, `[width]` for a vector.
    pub shape: &'a [usize],
    /// The stored weights.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// Returns the number of weights.
    #[must_use]
    pub fn num_weights(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the width of a row: a matrix's input features, or a vector's length.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Returns the number of rows: a matrix's output features, 1 for a vector.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.num_weights() / self.in_features()
    }

    /// Returns the tensor as rows, which is how kernels know it.
    #[must_use]
    pub fn rows(&self) -> WeightRows<'_> {
        WeightRows {
            weight_type: self.weight_type,
            out_features: self.out_features(),
            in_features: self.in_features(),
            bytes: self.bytes,
        }
    }

    /// Returns the weights as f32, row-major.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.num_weights()];
        dequantize(self.weight_type, self.bytes, &mut weights);
        weights
    }
}
