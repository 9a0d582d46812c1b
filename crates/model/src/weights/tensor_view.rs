//! A tensor as it lies in a checkpoint.

use mini_infer_kernels::reference::dequantize;
use mini_infer_kernels::{Int4Columns, WeightRows, WeightType};

/// How a checkpoint stores the weights of a tensor; equal where the stored bytes are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StoredWeights<'a> {
    /// Row-major: exactly the bytes that shape and type take, which whoever makes one has checked;
    /// they have no particular alignment.
    Rows(&'a [u8]),
    /// In columns, of which the tensor has those from `first_row` on. They become rows of
    /// [`WeightType::Int4`] when they are loaded, matrix by matrix.
    Columns {
        /// The matrix that is stored.
        columns: Int4Columns<'a>,
        /// The output feature that is the tensor's first row.
        first_row: usize,
    },
}

/// A borrowed tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Name in the checkpoint.
    pub name: &'a str,
    /// Number format.
    pub weight_type: WeightType,
    /// Row-major: `[out_features, in_features]` for a matrix, `[width]` for a vector.
    pub shape: &'a [usize],
    /// The weights.
    pub weights: StoredWeights<'a>,
}

impl<'a> TensorView<'a> {
    /// Returns the bytes of the file that hold the weights; for those in columns all of their codes.
    #[must_use]
    pub fn stored_bytes(&self) -> &'a [u8] {
        match self.weights {
            StoredWeights::Rows(bytes) => bytes,
            StoredWeights::Columns { columns, .. } => columns.codes,
        }
    }

    /// Returns how many bytes of the file the weights are; of those in columns the codes count.
    #[must_use]
    pub fn num_stored_bytes(&self) -> usize {
        match self.weights {
            StoredWeights::Rows(bytes) => bytes.len(),
            StoredWeights::Columns { .. } => self.num_weights() / 2,
        }
    }

    /// Returns the tensor `name` of rows `first_row ..` of this matrix.
    ///
    /// # Panics
    /// When there are no such rows.
    pub(crate) fn part(self, name: &'a str, first_row: usize, shape: &'a [usize]) -> Self {
        let weights = match self.weights {
            StoredWeights::Rows(bytes) => {
                let row_bytes = bytes.len() / self.out_features();
                StoredWeights::Rows(&bytes[first_row * row_bytes..][..shape[0] * row_bytes])
            }
            StoredWeights::Columns { columns, first_row: first } => {
                StoredWeights::Columns { columns, first_row: first + first_row }
            }
        };
        Self { name, shape, weights, ..self }
    }

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
    ///
    /// # Panics
    /// When the weights are stored in columns: whoever loads a matrix turns them into rows first.
    #[must_use]
    pub fn rows(&self) -> WeightRows<'a> {
        let StoredWeights::Rows(bytes) = self.weights else {
            panic!("`{}` is stored in columns", self.name)
        };
        WeightRows {
            weight_type: self.weight_type,
            out_features: self.out_features(),
            in_features: self.in_features(),
            bytes,
        }
    }

    /// Returns the bytes that the tensor takes in memory as a matrix of `weight_type`.
    #[must_use]
    pub fn packed_bytes(&self, weight_type: WeightType) -> usize {
        let (out_features, in_features) = (self.out_features(), self.in_features());
        WeightRows { weight_type, out_features, in_features, bytes: &[] }.packed_bytes()
    }

    /// Returns the weights as f32, row-major.
    ///
    /// # Panics
    /// As [`Self::rows`].
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.num_weights()];
        dequantize(self.weight_type, self.rows().bytes, &mut weights);
        weights
    }
}
