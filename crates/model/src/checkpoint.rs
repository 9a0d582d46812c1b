//! An opened checkpoint: its configuration and tensors, whatever its format.

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::gguf::{GgufFile, GgufMetadata};
use crate::safetensors::SafetensorsFolder;
use crate::weights::{FileBytes, TensorParts, TensorView};
use mini_infer_kernels::{QuantizeError, QuantizedType};
use std::path::Path;

/// End of the names of the matrices that choose experts: small, and a wrong choice costs more than
/// a rounded product.
const ROUTER: &str = ".ffn_gate_inp.weight";

/// A checkpoint whose head has been read and checked. Weights stay on disk until they are used.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    files: Files,
    config: ModelConfig,
    parts: TensorParts,
    /// What float matrices become when they are loaded.
    quantize_to: Option<QuantizedType>,
}

#[derive(Clone, Debug)]
enum Files {
    Gguf(GgufFile),
    Safetensors(SafetensorsFolder),
}

impl Files {
    /// Returns the canonical names of the stored tensors in alphabetical order.
    fn tensor_names(&self) -> impl Iterator<Item = &str> {
        let (gguf, folder) = match self {
            Self::Gguf(file) => (Some(file.tensor_names()), None),
            Self::Safetensors(folder) => (None, Some(folder.tensor_names())),
        };
        gguf.into_iter().flatten().chain(folder.into_iter().flatten())
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        match self {
            Self::Gguf(file) => file.tensor(name),
            Self::Safetensors(folder) => folder.tensor(name),
        }
    }

    fn stored_name(&self, canonical: &str, config: &ModelConfig) -> String {
        match self {
            Self::Gguf(_) => canonical.to_owned(),
            Self::Safetensors(folder) => folder.stored_name(canonical, config),
        }
    }
}

impl Checkpoint {
    /// Opens a GGUF file, or a folder with `config.json` and safetensors.
    ///
    /// # Errors
    /// When a file cannot be read, is damaged, or holds a model that is not supported; the error
    /// names the file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        if path.is_dir() {
            let (config, folder) = SafetensorsFolder::open(path)?;
            let this = Self::new(Files::Safetensors(folder), config);
            return this.map_err(|error| error.in_file(path));
        }
        Self::from_bytes(FileBytes::map(path)?).map_err(|error| error.in_file(path))
    }

    /// Reads a GGUF file that is in memory.
    ///
    /// # Errors
    /// As [`Self::open`], without a file name.
    pub fn from_bytes(bytes: FileBytes) -> Result<Self, ModelError> {
        let file = GgufFile::parse(bytes)?;
        let config = ModelConfig::from_gguf(file.metadata())?;
        Self::new(Files::Gguf(file), config)
    }

    fn new(files: Files, config: ModelConfig) -> Result<Self, ModelError> {
        let tensors = files.tensor_names().filter_map(|name| files.tensor(name));
        let stored_name = |canonical: &str| files.stored_name(canonical, &config);
        let parts = TensorParts::cut(&config, tensors, &stored_name)?;
        Ok(Self { files, config, parts, quantize_to: None })
    }

    /// Lets matrices of floats be quantised when they are loaded, tensor by tensor; norms, biases
    /// and the small matrices that choose experts stay what they are.
    ///
    /// # Errors
    /// When there is no such matrix, or the rows of one are not whole quantisation groups.
    pub fn quantized_to(self, to: QuantizedType) -> Result<Self, ModelError> {
        let this = Self { quantize_to: Some(to), ..self };
        let tensors = this.tensor_names().filter_map(|name| this.tensor(name));
        let mut quantized =
            tensors.filter(|tensor| this.quantization_of(tensor).is_some()).peekable();
        if quantized.peek().is_none() {
            return Err(ModelError::NothingToQuantize { to });
        }
        let group_size = to.weight_type().group_size();
        if let Some(tensor) = quantized.find(|it| !it.in_features().is_multiple_of(group_size)) {
            let source = QuantizeError::Width { in_features: tensor.in_features(), to };
            let tensor = this.stored_name(tensor.name);
            return Err(ModelError::Quantize { tensor, source });
        }
        drop(quantized);
        Ok(this)
    }

    /// Returns what a tensor is to be quantised to when it is loaded, if it is.
    #[must_use]
    pub fn quantization_of(&self, tensor: &TensorView<'_>) -> Option<QuantizedType> {
        let is_matrix = tensor.shape.len() > 1 && !tensor.name.ends_with(ROUTER);
        self.quantize_to.filter(|_| is_matrix && tensor.weight_type.is_float())
    }

    /// Returns the model's dimensions and kinds.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the keys and values of a GGUF file, the tokenizer's among them; `None` for a folder.
    #[must_use]
    pub fn gguf_metadata(&self) -> Option<&GgufMetadata> {
        match &self.files {
            Files::Gguf(file) => Some(file.metadata()),
            Files::Safetensors(_) => None,
        }
    }

    /// Returns the canonical names of all tensors, which are ggml's, in alphabetical order; those
    /// that are stored as rows of one count by themselves.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.parts.names(self.files.tensor_names())
    }

    /// Returns a tensor by its canonical name, if there is one.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.parts.find(name, |stored| self.files.tensor(stored))
    }

    /// Returns what a tensor is called in the file, also one that is missing.
    pub(crate) fn stored_name(&self, canonical: &str) -> String {
        self.files.stored_name(canonical, &self.config)
    }

    /// Gives the memory of a tensor's stored bytes, or of some of them, back to the system; they
    /// stay in the file.
    pub(crate) fn release(&self, bytes: &[u8]) {
        match &self.files {
            Files::Gguf(file) => file.release(bytes),
            Files::Safetensors(folder) => folder.release(bytes),
        }
    }

    /// Returns the bytes that all tensors take as stored.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.tensor_names()
            .filter_map(|name| self.tensor(name))
            .map(|tensor| tensor.num_stored_bytes() as u64)
            .sum()
    }
}
