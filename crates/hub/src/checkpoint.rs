//! Which files of a Hugging Face checkpoint folder belong to the model.
//!
//! A checkpoint is `config.json`, `tokenizer.json`, and weights as safetensors: the one file
//! `model.safetensors`, or several named by an index. Weights in other formats, in subfolders, or
//! beside those are duplicates for other tools and are left out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::repo_name::is_safe_relative_path;

/// The file that makes a folder a checkpoint.
pub(crate) const CONFIG: &str = "config.json";
/// The file that says which weights are in which file.
pub(crate) const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// The tokenizer.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// The weights where they are one file.
pub(crate) const SINGLE_WEIGHTS: &str = "model.safetensors";
const TEXT_FILES: [&str; 4] =
    [CONFIG, TOKENIZER, "tokenizer_config.json", "generation_config.json"];

#[derive(Deserialize)]
struct WireIndex {
    weight_map: BTreeMap<String, String>,
}

/// Tells whether the files are those of a checkpoint with safetensors.
pub(crate) fn is_checkpoint(files: &[&str]) -> bool {
    files.contains(&CONFIG) && (files.contains(&SINGLE_WEIGHTS) || files.contains(&WEIGHTS_INDEX))
}

/// Tells whether the weights are several files that the index names.
pub(crate) fn needs_index(files: &[&str]) -> bool {
    !files.contains(&SINGLE_WEIGHTS)
}

/// Returns the files that say what the model is: configuration, tokenizer, chat template.
pub(crate) fn text_files<'a>(files: &[&'a str]) -> Vec<&'a str> {
    let is_text = |file: &&str| {
        TEXT_FILES.contains(file) || (file.starts_with("chat_template") && !file.contains('/'))
    };
    files.iter().copied().filter(is_text).collect()
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

/// Returns what keeps the `files` of a folder from being a whole checkpoint: the files it lacks, by
/// name. `index` is the content of its weights index, where it has one.
pub(crate) fn missing_files(files: &[&str], index: Option<&[u8]>) -> Vec<String> {
    let mut needed = vec![CONFIG.to_owned(), TOKENIZER.to_owned()];
    if needs_index(files) {
        match index.map(indexed_weight_files) {
            Some(Ok(shards)) => needed.extend(shards),
            Some(Err(problem)) => {
                return vec![format!("{WEIGHTS_INDEX}, which is damaged: {problem}")];
            }
            None => needed.push(SINGLE_WEIGHTS.to_owned()),
        }
    }
    needed.retain(|file| !files.contains(&file.as_str()));
    needed
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
        assert!(!needs_index(&files));
    }

    #[test]
    fn missing_shard_and_tokenizer_are_named() {
        let index = br#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
        let mut files = vec![CONFIG, WEIGHTS_INDEX, "m-1.safetensors"];
        assert_eq!(missing_files(&files, Some(index)), ["tokenizer.json", "m-2.safetensors"]);
        files.extend([TOKENIZER, "m-2.safetensors"]);
        assert!(missing_files(&files, Some(index)).is_empty());
        assert_eq!(missing_files(&files, None), ["model.safetensors"]);
    }

    #[test]
    fn index_that_names_files_elsewhere_is_refused() {
        assert!(indexed_weight_files(br#"{"weight_map":{"a":"../x.safetensors"}}"#).is_err());
    }
}
