//! An opened checkpoint: its configuration, metadata and tensors.

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::gguf::{GgufFile, GgufMetadata};
use crate::weights::{FileBytes, TensorParts, TensorView};
use std::path::Path;

/// A checkpoint whose head has been read and checked. Weights stay on disk until they are used.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    file: GgufFile,
    config: ModelConfig,
    parts: TensorParts,
}

impl Checkpoint {
    /// Opens a GGUF file.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or holds a model that is not supported; the error
    /// names the file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::from_bytes(FileBytes::map(path)?).map_err(|error| error.in_file(path))
    }

    /// Reads a GGUF file that is in memory.
    ///
    /// # Errors
    /// As [`Self::open`], without a file name.
    pub fn from_bytes(bytes: FileBytes) -> Result<Self, ModelError> {
        let file = GgufFile::parse(bytes)?;
        let config = ModelConfig::from_gguf(file.metadata())?;
        let tensors = file.tensor_names().filter_map(|name| file.tensor(name));
        let parts = TensorParts::cut(&config, tensors)?;
        Ok(Self { file, config, parts })
    }

    /// Returns the model's dimensions and kinds.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the keys and values of the file, the tokenizer's among them.
    #[must_use]
    pub fn metadata(&self) -> &GgufMetadata {
        self.file.metadata()
    }

    /// Returns the names of all tensors in alphabetical order; those that are stored as rows of one
    /// count by themselves.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.parts.names(self.file.tensor_names())
    }

    /// Returns a tensor, if there is one of that name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.parts.find(name, |stored| self.file.tensor(stored))
    }

    /// Gives the memory of a tensor's bytes back to the system; they stay in the file.
    pub(crate) fn release(&self, tensor: &TensorView<'_>) {
        self.file.release(tensor.bytes);
    }

    /// Returns the bytes that all tensors take as stored.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.tensor_names()
            .filter_map(|name| self.tensor(name))
            .map(|tensor| tensor.bytes.len() as u64)
            .sum()
    }
}
