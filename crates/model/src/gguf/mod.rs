//! Reading GGUF, the single-file checkpoint format of ggml (versions 2 and 3, little-endian).
//!
//! Layout: `GGUF`, version, number of tensors, number of metadata pairs, the pairs, the tensor
//! table, padding to `general.alignment`, the tensors' bytes (docs/gguf.md of ggml). Files come
//! from strangers: every length, count and offset is checked against the bytes that are there
//! before it is used, so memory stays within a small multiple of the file's head and time is
//! linear in it. Nothing is copied: values and tensors are decoded or borrowed when asked for.

#[cfg(test)]
pub(crate) mod builder;
mod cursor;
mod metadata;
mod tensor_table;
#[cfg(test)]
mod tests;
mod value;

pub use metadata::{FromMetadata, GgufMetadata};
pub use value::{MetadataArray, MetadataValue, ValueType};

use crate::error::ModelError;
use crate::weights::{FileBytes, StoredWeights, TensorView};
use cursor::Cursor;
use std::collections::BTreeMap;
use tensor_table::TensorEntry;

/// Bytes that the smallest metadata pair takes: an empty key, a type and a one-byte value.
const LEAST_PAIR_BYTES: u64 = 8 + 4 + 1;
/// Bytes that the smallest tensor entry takes: an empty name, one dimension, type and offset.
const LEAST_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;
/// Far above real files (tens of metadata pairs, thousands of tensors), and few enough that a
/// hostile file cannot make the tables large.
const MAX_ENTRIES: u64 = 1 << 17;
/// The alignment of files that do not state one.
const DEFAULT_ALIGNMENT: u32 = 32;
/// Larger alignments than this (2 MiB, a huge page) help nobody.
const MAX_ALIGNMENT: u32 = 1 << 21;

/// An opened GGUF file.
#[derive(Clone, Debug)]
pub struct GgufFile {
    bytes: FileBytes,
    metadata: GgufMetadata,
    tensors: BTreeMap<String, TensorEntry>,
}

impl GgufFile {
    /// Reads the head of the file and checks it against the file's length.
    ///
    /// # Errors
    /// When the bytes are not a complete GGUF file.
    pub fn parse(bytes: FileBytes) -> Result<Self, ModelError> {
        let mut cursor = Cursor::new(&bytes, 0);
        let magic = &bytes[..bytes.len().min(4)];
        if magic != b"GGUF" {
            return Err(ModelError::NotGguf { got: magic.to_vec() });
        }
        cursor.take("the magic number", 4)?;
        let version = cursor.u32("the version")?;
        if !(2..=3).contains(&version) {
            return Err(ModelError::GgufVersion { got: version });
        }
        let num_tensors = cursor.count("tensors", LEAST_TENSOR_BYTES, MAX_ENTRIES)?;
        let num_pairs = cursor.count("metadata pairs", LEAST_PAIR_BYTES, MAX_ENTRIES)?;
        let metadata = GgufMetadata::read(&bytes, &mut cursor, num_pairs)?;
        let alignment = alignment(&metadata)?;
        let tensors = tensor_table::read(&mut cursor, num_tensors, alignment, bytes.len())?;
        Ok(Self { metadata, tensors, bytes })
    }

    /// Returns the keys and values of the file.
    #[must_use]
    pub fn metadata(&self) -> &GgufMetadata {
        &self.metadata
    }

    /// Returns the names of all tensors in alphabetical order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns a tensor, if there is one of that name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, entry) = self.tensors.get_key_value(name)?;
        Some(TensorView {
            name,
            weight_type: entry.weight_type,
            shape: &entry.shape,
            weights: StoredWeights::Rows(&self.bytes[entry.range.clone()]),
        })
    }

    /// Gives the memory of some of the file's bytes back to the system.
    pub(crate) fn release(&self, bytes: &[u8]) {
        self.bytes.release(bytes);
    }
}

fn alignment(metadata: &GgufMetadata) -> Result<usize, ModelError> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.get::<u32>(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        return Ok(alignment as usize);
    }
    Err(ModelError::MetadataValue {
        key: KEY.to_owned(),
        got: alignment.to_string(),
        expected: format!("a power of two up to {MAX_ALIGNMENT}"),
    })
}
