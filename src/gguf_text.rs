//! The texts in a GGUF file's metadata: vocabulary and chat template.
//!
//! Joins two crates that do not know each other: `model` opens files, `text` takes plain data.

use mini_infer_core::TokenId;
use mini_infer_model::ModelError;
use mini_infer_model::gguf::GgufMetadata;
use mini_infer_text::{GgufVocabulary, NamedInfillTokens};

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
    // llama.cpp renamed these keys; files with either are around.
    let mark = |name: &str, older: &str| -> Result<Option<TokenId>, ModelError> {
        match metadata.get(&key(name))? {
            Some(id) => Ok(Some(id)),
            None => metadata.get(&key(older)),
        }
    };
    let infill = NamedInfillTokens {
        prefix: mark("fim_pre_token_id", "prefix_token_id")?,
        suffix: mark("fim_suf_token_id", "suffix_token_id")?,
        middle: mark("fim_mid_token_id", "middle_token_id")?,
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
        infill,
    })
}

/// Reads the chat template, if there is one.
///
/// # Errors
/// When it is no text.
pub(crate) fn chat_template(metadata: &GgufMetadata) -> Result<Option<&str>, ModelError> {
    metadata.get(CHAT_TEMPLATE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_model::Checkpoint;

    /// Bytes that the weights of a GGUF file are aligned to.
    const ALIGNMENT: usize = 32;
    /// GGUF's type of a 32-bit number, and of a text.
    const UINT32: u32 = 4;
    const STRING: u32 = 8;

    /// Returns a file with these keys before its own.
    fn file_with(keys: &[(&str, u32)]) -> Vec<u8> {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let mut added = Vec::new();
        for &(key, id) in keys {
            added.extend(text(key));
            added.extend([UINT32.to_le_bytes(), id.to_le_bytes()].concat());
        }
        // One more key fills up, so that everything behind it stays aligned.
        added.extend([text("test.padding"), STRING.to_le_bytes().to_vec()].concat());
        let missing = (added.len() + size_of::<u64>()).next_multiple_of(ALIGNMENT) - added.len();
        added.extend(text(&"x".repeat(missing - size_of::<u64>())));
        let mut file = include_bytes!("../testdata/tiny-gemma3/q8_0.gguf").to_vec();
        let count = u64::from_le_bytes(file[16..24].try_into().unwrap());
        file[16..24].copy_from_slice(&(count + keys.len() as u64 + 1).to_le_bytes());
        file.splice(24..24, added);
        file
    }

    #[test]
    fn marks_of_gaps_are_read_under_both_of_their_names() {
        let read = |keys: &[(&str, u32)]| {
            let checkpoint = Checkpoint::from_bytes(file_with(keys).into()).unwrap();
            vocabulary(checkpoint.gguf_metadata().unwrap()).unwrap().infill
        };
        let marks = NamedInfillTokens { prefix: Some(5), suffix: Some(6), middle: Some(7) };
        let newer = [
            ("tokenizer.ggml.fim_pre_token_id", 5),
            ("tokenizer.ggml.fim_suf_token_id", 6),
            ("tokenizer.ggml.fim_mid_token_id", 7),
        ];
        let older = [
            ("tokenizer.ggml.prefix_token_id", 5),
            ("tokenizer.ggml.suffix_token_id", 6),
            ("tokenizer.ggml.middle_token_id", 7),
        ];
        assert_eq!(read(&newer), marks);
        assert_eq!(read(&older), marks);
        let both = [newer[0], ("tokenizer.ggml.prefix_token_id", 9), older[1], newer[2]];
        assert_eq!(read(&both), marks);
        assert_eq!(read(&[]), NamedInfillTokens::default());
    }
}
