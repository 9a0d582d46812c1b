//! What is known of a model besides its texts, for clients that show it to people.

use std::time::SystemTime;

/// Facts about the file or folder of a model.
#[derive(Clone, Debug, Default)]
pub struct ModelDetails {
    /// `gguf` or `safetensors`.
    pub format: String,
    /// The architecture, by its name in GGUF files.
    pub architecture: String,
    /// How many weights there are.
    pub num_parameters: u64,
    /// How most of them are stored, such as `Q4_1`.
    pub weight_type: String,
    /// Bytes of the stored weights.
    pub size_bytes: u64,
    /// When the file was last changed, where that is known.
    pub modified_at: Option<SystemTime>,
}
