//! The texts in a checkpoint folder: tokenizer, chat template, and the tokens that end an answer.
//!
//! Joins two crates that do not know each other, as `gguf_text` does for GGUF. Files come from
//! strangers, so none is read beyond a limit.

use crate::error::CommandError;
use mini_infer_core::TokenId;
use mini_infer_text::{Tokenizer, TokenizerConfig};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The tokenizer.
const TOKENIZER: &str = "tokenizer.json";
/// Special tokens, and in older folders the chat template.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The chat template, which counts before the one in `tokenizer_config.json`.
const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// What transformers generates with; of it, only the tokens that end an answer are used, since
/// requests decide the rest.
const GENERATION_CONFIG: &str = "generation_config.json";
/// The configuration, which counts for those tokens where the former has none.
const CONFIG: &str = "config.json";
/// Far above real files: the largest tokenizers take 35 MB.
const MAX_BYTES: u64 = 256 << 20;

/// Tokens are written as one id or as a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(TokenId),
    Several(Vec<TokenId>),
}

#[derive(Default, Deserialize)]
struct GenerationConfig {
    eos_token_id: Option<TokenIds>,
}

/// Builds the tokenizer of a folder.
///
/// # Errors
/// When a file cannot be read, or holds a tokenizer that is not supported.
pub(crate) fn tokenizer(folder: &Path) -> Result<Tokenizer, CommandError> {
    let path = folder.join(TOKENIZER);
    let json = read_if_present(&path)?
        .ok_or_else(|| CommandError::system(format!("read {}", path.display()))(missing()))?;
    let config = tokenizer_config(folder)?;
    Tokenizer::from_tokenizer_json(&json, config.as_ref()).map_err(CommandError::Tokenizer)
}

/// Reads the chat template of a folder, if it has one.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn chat_template(folder: &Path) -> Result<Option<String>, CommandError> {
    let path = folder.join(CHAT_TEMPLATE);
    match read_if_present(&path)? {
        Some(template) => {
            let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            let template = String::from_utf8(template).map_err(invalid);
            template.map(Some).map_err(CommandError::system(format!("read {}", path.display())))
        }
        None => Ok(tokenizer_config(folder)?.and_then(|config| config.chat_template)),
    }
}

/// Returns the tokens that end an answer, in ascending order: the tokenizer's and those of the
/// folder, as far as the model has them.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn stop_token_ids(
    folder: &Path,
    tokenizer: &Tokenizer,
    vocab_size: usize,
) -> Result<Vec<TokenId>, CommandError> {
    let mut ids: BTreeSet<_> = tokenizer.stop_token_ids().iter().copied().collect();
    for file in [GENERATION_CONFIG, CONFIG] {
        let path = folder.join(file);
        let Some(json) = read_if_present(&path)? else { continue };
        let config: GenerationConfig = serde_json::from_slice(&json)
            .map_err(io::Error::from)
            .map_err(CommandError::system(format!("read {}", path.display())))?;
        match config.eos_token_id {
            Some(TokenIds::One(id)) => ids.extend([id]),
            Some(TokenIds::Several(several)) => ids.extend(several),
            None => continue,
        }
        break;
    }
    ids.retain(|id| (*id as usize) < vocab_size);
    Ok(ids.into_iter().collect())
}

fn tokenizer_config(folder: &Path) -> Result<Option<TokenizerConfig>, CommandError> {
    let json = read_if_present(&folder.join(TOKENIZER_CONFIG))?;
    let config = json.map(|json| TokenizerConfig::from_json(&json));
    config.transpose().map_err(CommandError::Tokenizer)
}

/// Reads a file whole; `None` where there is none.
fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, CommandError> {
    let read = || {
        let mut bytes = Vec::new();
        let num_read = File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        if num_read as u64 > MAX_BYTES {
            let problem = format!("larger than the {MAX_BYTES} bytes that are accepted");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CommandError::system(format!("read {}", path.display()))(error)),
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// A folder of its own that goes away with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("mini-infer-texts-{name}-{}", std::process::id());
            let folder = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(&folder.0).unwrap();
            folder
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.join(name), text).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _best_effort = fs::remove_dir_all(&self.0);
        }
    }

    const TOKENIZER_JSON: &str = r#"{
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        "added_tokens": [{"id": 2, "content": "</s>", "special": true}],
        "decoder": {"type": "ByteLevel"}
    }"#;

    #[test]
    fn the_folder_says_which_tokens_end_an_answer() {
        let folder = Folder::new("stop");
        let error = tokenizer(&folder.0).map(drop).unwrap_err().to_string();
        assert!(error.ends_with("tokenizer.json"), "{error}");
        folder.write(TOKENIZER, TOKENIZER_JSON);
        folder.write(TOKENIZER_CONFIG, r#"{"eos_token": "</s>"}"#);
        let tokenizer = tokenizer(&folder.0).unwrap();
        let ids = || stop_token_ids(&folder.0, &tokenizer, 9);
        assert_eq!(ids().unwrap(), [2]);
        folder.write(CONFIG, r#"{"eos_token_id": 4}"#);
        assert_eq!(ids().unwrap(), [2, 4]);
        folder.write(GENERATION_CONFIG, r#"{"temperature": 0.6}"#);
        assert_eq!(ids().unwrap(), [2, 4]);
        folder.write(GENERATION_CONFIG, r#"{"eos_token_id": [8, 1, 9], "temperature": 0.6}"#);
        assert_eq!(ids().unwrap(), [1, 2, 8]);
        folder.write(GENERATION_CONFIG, r#"{"eos_token_id": "</s>"}"#);
        let error = ids().unwrap_err().to_string();
        assert!(error.ends_with("generation_config.json"), "{error}");
    }

    #[test]
    fn the_template_file_counts_before_the_tokenizers() {
        let folder = Folder::new("template");
        assert_eq!(chat_template(&folder.0).unwrap(), None);
        folder.write(TOKENIZER_CONFIG, r#"{"chat_template": "of the configuration"}"#);
        assert_eq!(chat_template(&folder.0).unwrap().as_deref(), Some("of the configuration"));
        folder.write(CHAT_TEMPLATE, "of the file");
        assert_eq!(chat_template(&folder.0).unwrap().as_deref(), Some("of the file"));
    }
}
