//! Which files of a Hugging Face checkpoint folder belong to the model.
//!
//! A checkpoint is `config.json`, the tokenizer, and weights as safetensors: one file, or several
//! named by an index. Weights in other formats, in subfolders, or beside those of the index are
//! duplicates for other tools and are left out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::repo_name::is_safe_relative_path;

/// The file that makes a folder a checkpoint.
pub(crate) const CONFIG: &str = "config.json";
/// The file that says which weights are in which file.
pub(crate) const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

const TOKENIZER: &str = "tokenizer.json";
const SINGLE_WEIGHTS: &str = "model.safetensors";
const TEXT_FILES: [&str; 4] =
    [CONFIG, TOKENIZER, "tokenizer_config.json", "generation_config.json"];

#[derive(Deserialize)]
struct WireIndex {
    weight_map: BTreeMap<String, String>,
}

/// Tells whether the files are those of a checkpoint with safetensors.
pub(crate) fn is_checkpoint(files: &[&str]) -> bool {
    files.contains(&CONFIG) && files.iter().any(|file| is_weights(file))
}

/// Returns the files that say what the model is: configuration, tokenizer, chat template.
pub(crate) fn text_files<'a>(files: &[&'a str]) -> Vec<&'a str> {
    let is_text = |file: &&str| {
        TEXT_FILES.contains(file) || (file.starts_with("chat_template") && !file.contains('/'))
    };
    files.iter().copied().filter(is_text).collect()
}

/// Returns the weight files where no index names them.
pub(crate) fn weight_files<'a>(files: &[&'a str]) -> Vec<&'a str> {
    let is_single = |file: &&str| *file == SINGLE_WEIGHTS;
    if let Some(single) = files.iter().copied().find(is_single) {
        return vec![single];
    }
    files.iter().copied().filter(|file| is_weights(file)).collect()
}

/// Reads the weight files an index names.
///
/// # Errors
///
/// What is wrong with the index, as text.
pub(crate) fn indexed_weight_files(index: &[u8]) -> Result<Vec<String>, String> {
    let index: WireIndex = serde_json::from_slice(index).map_err(|error| error.to_string())?;
    let files: BTreeSet<String> = index.weight_map.into_values().collect();
    match files.iter().find(|file| !is_safe_relative_path(file)) {
        Some(file) => Err(format!("names a file outside the folder: {file:?}")),
        None => Ok(files.into_iter().collect()),
    }
}

/// Tells whether everything needed to run the checkpoint is among the `files` of a folder; `index`
/// is the content of its weights index, where it has one.
pub(crate) fn is_complete(files: &[&str], index: Option<&[u8]>) -> bool {
    let has_text = files.contains(&CONFIG) && files.contains(&TOKENIZER);
    let has_weights = match index.map(indexed_weight_files) {
        Some(Ok(shards)) => shards.iter().all(|shard| files.contains(&shard.as_str())),
        Some(Err(_)) => false,
        // Without an index only the single file is known to be all of it.
        None => files.contains(&SINGLE_WEIGHTS),
    };
    has_text && has_weights
}

fn is_weights(file: &str) -> bool {
    file.ends_with(".safetensors") && !file.contains('/') && !file.starts_with("adapter_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_in_other_formats_and_folders_are_left_out() {
        let files = [
            "README.md",
            "config.json",
            "tokenizer.json",
            "chat_template.jinja",
            "model.safetensors",
            "consolidated.safetensors",
            "onnx/model.safetensors",
            "pytorch_model.bin",
        ];
        assert!(is_checkpoint(&files));
        assert_eq!(text_files(&files), ["config.json", "tokenizer.json", "chat_template.jinja"]);
        assert_eq!(weight_files(&files), ["model.safetensors"]);
    }

    #[test]
    fn checkpoint_lacking_one_shard_of_the_index_is_incomplete() {
        let index = br#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
        let mut files = vec![CONFIG, TOKENIZER, WEIGHTS_INDEX, "m-1.safetensors"];
        assert!(!is_complete(&files, Some(index)));
        files.push("m-2.safetensors");
        assert!(is_complete(&files, Some(index)));
    }

    #[test]
    fn index_that_names_files_elsewhere_is_refused() {
        assert!(indexed_weight_files(br#"{"weight_map":{"a":"../x.safetensors"}}"#).is_err());
    }
}
