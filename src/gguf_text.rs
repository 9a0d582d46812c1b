//! The texts in a GGUF file's metadata: vocabulary and chat template.
//!
//! Joins two crates that do not know each other: `model` opens files, `text` takes plain data.

use mini_infer_model::ModelError;
use mini_infer_model::gguf::GgufMetadata;
use mini_infer_text::GgufVocabulary;

/// Key of the chat template that is used for plain conversations.
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// Reads the tokenizer's part of the metadata.
///
/// # Errors
/// When a key is missing or of a wrong type; the error names it.
pub(crate) fn vocabulary(metadata: &GgufMetadata) -> Result<GgufVocabulary, ModelError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let texts = |name: &str| -> Result<Vec<String>, ModelError> {
        let texts = metadata.get::<Vec<&str>>(&key(name))?.unwrap_or_default();
        Ok(texts.into_iter().map(str::to_owned).collect())
    };
    Ok(GgufVocabulary {
        model: metadata.require::<&str>(&key("model"))?.to_owned(),
        pre: metadata.get::<&str>(&key("pre"))?.map(str::to_owned),
        tokens: texts("tokens")?,
        scores: metadata.get(&key("scores"))?.unwrap_or_default(),
        token_types: metadata.get(&key("token_type"))?.unwrap_or_default(),
        merges: texts("merges")?,
        bos: metadata.get(&key("bos_token_id"))?,
        eos: metadata.get(&key("eos_token_id"))?,
        eot: metadata.get(&key("eot_token_id"))?,
        unk: metadata.get(&key("unknown_token_id"))?,
        pad: metadata.get(&key("padding_token_id"))?,
        add_bos: metadata.get(&key("add_bos_token"))?,
        add_space_prefix: metadata.get(&key("add_space_prefix"))?,
    })
}

/// Reads the chat template, if there is one.
///
/// # Errors
/// When it is no text.
pub(crate) fn chat_template(metadata: &GgufMetadata) -> Result<Option<&str>, ModelError> {
    metadata.get(CHAT_TEMPLATE)
}
