//! What can be wrong with a checkpoint.
//!
//! Every variant names the key or tensor, what was found and what was expected. Parsers know no
//! file name; [`ModelError::in_file`] adds it where the file is opened. Messages are complete by
//! themselves: inner errors are part of the text, so nothing is lost by who prints only the top.

use mini_infer_kernels::{Int4Error, QuantizeError, QuantizedType};
use std::fmt;
use std::path::{Path, PathBuf};

/// A checkpoint that cannot be used, and why.
#[derive(Debug)]
pub enum ModelError {
    /// The file could not be opened or mapped.
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file was read, but its content is wrong.
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        source: Box<ModelError>,
    },
    /// The file does not start with `GGUF`.
    NotGguf {
        /// The first bytes, fewer than four when the file is shorter.
        got: Vec<u8>,
    },
    /// A GGUF version other than 2 and 3.
    GgufVersion {
        /// The version field.
        got: u32,
    },
    /// The file ends before something that it announces.
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where it starts, in bytes from the start of the file.
        offset: usize,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that are left.
        available: usize,
    },
    /// A count or depth beyond what any real file has.
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The count in the file.
        got: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A field of the file format with a value that it cannot have.
    Malformed {
        /// The field.
        what: String,
        /// Its value.
        got: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Two metadata keys or tensors with one name.
    DuplicateName {
        /// `metadata key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Two tensors whose bytes overlap.
    OverlappingTensors {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },
    /// A file, or a part of one, that is not the JSON it should be.
    Json {
        /// What was being read.
        what: &'static str,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// A metadata key that the model needs is absent.
    MissingMetadata {
        /// The key.
        key: String,
    },
    /// A metadata value of the wrong type.
    MetadataType {
        /// The key.
        key: String,
        /// The type in the file.
        got: String,
        /// The type that is needed.
        expected: &'static str,
    },
    /// A metadata value that contradicts another one, or makes no model.
    MetadataValue {
        /// The key.
        key: String,
        /// The value in the file.
        got: String,
        /// What it may be.
        expected: String,
    },
    /// Something that this build does not implement.
    Unsupported {
        /// The feature, such as `architecture`.
        what: String,
        /// The kind that the file asks for.
        got: String,
        /// The kinds that are implemented.
        supported: String,
    },
    /// Tensors that the architecture needs and the file lacks.
    MissingTensors {
        /// Their names.
        names: Vec<String>,
    },
    /// Tensors in the file that the architecture has no use for: computing without them would give
    /// wrong numbers.
    UnusedTensors {
        /// Their names.
        names: Vec<String>,
    },
    /// Tensors in a file that its index does not list.
    UnlistedTensors {
        /// Their names.
        names: Vec<String>,
    },
    /// Four-bit weights whose fields do not fit each other.
    Int4 {
        /// The matrix, without the end of its tensors' names.
        tensor: String,
        /// What is wrong.
        source: Int4Error,
    },
    /// A tensor of the wrong shape.
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Its shape, row-major.
        got: Vec<usize>,
        /// The shape that the configuration asks for.
        expected: Vec<usize>,
    },
    /// A tensor that cannot be quantised.
    Quantize {
        /// The tensor.
        tensor: String,
        /// Why it cannot.
        source: QuantizeError,
    },
    /// A checkpoint in which there is nothing to quantise.
    NothingToQuantize {
        /// The format that was asked for.
        to: QuantizedType,
    },
    /// Memory for the weights that could not be had.
    Memory {
        /// The tensors.
        what: String,
        /// Bytes that were asked for.
        num_bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A context longer than the model was made for.
    ContextLength {
        /// Tokens that were asked for.
        got: usize,
        /// The model's limit in tokens.
        limit: usize,
    },
}

impl ModelError {
    /// Adds the file that the error is about.
    #[must_use]
    pub fn in_file(self, path: &Path) -> Self {
        Self::InFile { path: path.to_owned(), source: Box::new(self) }
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Self::InFile { path, source } => write!(f, "{}: {source}", path.display()),
            Self::NotGguf { got } => {
                write!(f, "not a GGUF file: starts with \"{}\"", got.escape_ascii())
            }
            Self::GgufVersion { got } => {
                write!(f, "GGUF version {got} is not supported, only 2 and 3 (little-endian)")
            }
            Self::Truncated { what, offset, needed, available } => write!(
                f,
                "{what} at byte {offset} takes {needed} bytes, but only {available} are left: \
                 the file is incomplete or damaged"
            ),
            Self::TooMany { what, got, limit } => {
                write!(f, "{got} {what} are more than the {limit} that a file can have")
            }
            Self::Malformed { what, got, expected } => {
                write!(f, "{what} is {got}, expected {expected}")
            }
            Self::DuplicateName { what, name } => write!(f, "{what} `{name}` appears twice"),
            Self::OverlappingTensors { first, second } => {
                write!(f, "the bytes of tensors `{first}` and `{second}` overlap")
            }
            Self::Json { what, source } => write!(f, "{what} cannot be read: {source}"),
            Self::MissingMetadata { key } => write!(f, "metadata key `{key}` is missing"),
            Self::MetadataType { key, got, expected } => {
                write!(f, "metadata key `{key}` is of type {got}, expected {expected}")
            }
            Self::MetadataValue { key, got, expected } => {
                write!(f, "metadata key `{key}` is {got}, expected {expected}")
            }
            Self::Unsupported { what, got, supported } => {
                write!(f, "{what} `{got}` is not supported; supported: {supported}")
            }
            Self::MissingTensors { names } => list(f, "missing tensors", names),
            Self::UnusedTensors { names } => {
                list(f, "tensors without a use in this architecture", names)
            }
            Self::UnlistedTensors { names } => {
                list(f, "tensors that the index does not list for this file", names)
            }
            Self::Int4 { tensor, source } => write!(f, "matrix `{tensor}` has {source}"),
            Self::TensorShape { tensor, got, expected } => {
                write!(f, "tensor `{tensor}` has shape {got:?}, expected {expected:?}")
            }
            Self::Quantize { tensor, source } => {
                write!(f, "tensor `{tensor}` cannot be quantised: {source}")
            }
            Self::NothingToQuantize { to } => write!(
                f,
                "there is nothing to quantise to {}: no matrix of the checkpoint is of floats",
                to.weight_type()
            ),
            Self::Memory { what, num_bytes, source } => {
                write!(f, "cannot reserve {num_bytes} bytes for the weights of {what}: {source}")
            }
            Self::ContextLength { got, limit } => write!(
                f,
                "a context of {got} tokens is beyond the {limit} that the model was made for"
            ),
        }
    }
}

impl std::error::Error for ModelError {}

/// Writes how many names there are, and a few of them; a file that is wrong altogether would list
/// hundreds.
fn list(f: &mut fmt::Formatter<'_>, what: &str, names: &[String]) -> fmt::Result {
    const SHOWN: usize = 8;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    let rest = if names.len() > SHOWN { ", …" } else { "" };
    write!(f, "{what} ({}): {shown}{rest}", names.len())
}
