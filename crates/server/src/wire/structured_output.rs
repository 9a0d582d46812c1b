//! The fields that constrain the output, on the wire.

use serde_json::Value;

/// What a body says about its output, unread: each has forms of its own, and `output_rule` names the
/// place that is wrong.
#[derive(Debug, Default)]
pub(crate) struct OutputFields {
    /// OpenAI's: text, any object, or a schema.
    pub(crate) response_format: Option<Value>,
    /// vLLM's older names, one field for each kind.
    pub(crate) guided_json: Option<Value>,
    pub(crate) guided_regex: Option<Value>,
    pub(crate) guided_choice: Option<Value>,
    pub(crate) guided_grammar: Option<Value>,
    /// vLLM's newer name, an object with one member for each kind.
    pub(crate) structured_outputs: Option<Value>,
    /// llama.cpp's.
    pub(crate) grammar: Option<Value>,
}
