//! Reading safetensors, the checkpoint format of Hugging Face.
//!
//! A file is the length of its header (8 bytes, little-endian), the header, and the tensors' bytes.
//! The header is a JSON object: for each tensor its type, shape, and place in the bytes. What is
//! checked is what the reference implementation checks (safetensors 0.8, `Metadata::validate`), and
//! that no name appears twice. Files come from strangers: memory stays within a small multiple of
//! the header, and nothing of the tensors is copied or even read.
//!
//! A checkpoint is a folder: one such file, or several that an index names.

#[cfg(test)]
pub(crate) mod builder;
mod dtype;
mod folder;
mod header;
mod int4;
mod tensor_names;
#[cfg(test)]
mod tests;

pub(crate) use folder::{SafetensorsFolder, read_bounded};
pub(crate) use tensor_names::BODIES;

use crate::error::ModelError;
use crate::weights::{FileBytes, StoredWeights, TensorView};
use dtype::{Dtype, WEIGHT_TYPES};
use mini_infer_kernels::WeightType;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes before the header: its length.
const LENGTH_BYTES: usize = 8;
/// Longest header in bytes, the limit of the reference implementation.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// An opened safetensors file.
#[derive(Clone, Debug)]
pub(crate) struct SafetensorsFile {
    bytes: FileBytes,
    tensors: BTreeMap<String, TensorEntry>,
}

/// Where a tensor lies and what it is.
#[derive(Clone, Debug)]
struct TensorEntry {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Bytes from the start of the file.
    range: Range<usize>,
}

impl SafetensorsFile {
    /// Reads the header and checks it against the file's length.
    ///
    /// # Errors
    /// When the bytes are not a complete safetensors file.
    pub(crate) fn parse(bytes: FileBytes) -> Result<Self, ModelError> {
        let truncated = |what, offset, needed| {
            let available = bytes.len().saturating_sub(offset);
            ModelError::Truncated { what, offset, needed, available }
        };
        let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() else {
            return Err(truncated("the length of the header", 0, LENGTH_BYTES as u64));
        };
        let length = u64::from_le_bytes(*length);
        if length > MAX_HEADER_BYTES {
            return Err(ModelError::TooMany {
                what: "bytes of header",
                got: length,
                limit: MAX_HEADER_BYTES,
            });
        }
        let header =
            usize::try_from(length).ok().and_then(|length| bytes[LENGTH_BYTES..].get(..length));
        let header = header.ok_or_else(|| truncated("the header", LENGTH_BYTES, length))?;
        let data_start = LENGTH_BYTES + header.len();
        let tensors = header::read(header, data_start, bytes.len())?;
        Ok(Self { bytes, tensors })
    }

    /// Returns all tensors in the order of their names.
    ///
    /// # Errors
    /// For a tensor of a type that weights cannot have.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = Result<TensorView<'_>, ModelError>> {
        self.tensors.iter().map(|(name, entry)| {
            Ok(TensorView {
                name,
                weight_type: entry.weight_type(name)?,
                shape: &entry.shape,
                weights: StoredWeights::Rows(&self.bytes[entry.range.clone()]),
            })
        })
    }
}

impl TensorEntry {
    /// Returns the format of the weights of tensor `name`.
    fn weight_type(&self, name: &str) -> Result<WeightType, ModelError> {
        self.dtype.weight_type().ok_or_else(|| ModelError::Unsupported {
            what: format!("the type of tensor `{name}`"),
            got: self.dtype.name().to_owned(),
            supported: WEIGHT_TYPES.map(WeightType::name).join(", "),
        })
    }
}
