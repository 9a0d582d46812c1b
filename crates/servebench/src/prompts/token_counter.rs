//! Counts and cuts text in a model's own tokens.

use super::gguf_vocabulary;
use crate::error::ServebenchError;
use mini_infer_text::{Tokenizer, TokenizerConfig};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Counts and cuts text in a model's own tokens. Clones share the vocabulary.
#[derive(Clone, Debug)]
pub struct TokenCounter {
    tokenizer: Arc<Tokenizer>,
    /// Tokens that the model puts in front of every text, such as BOS.
    num_prefix_tokens: usize,
}

impl TokenCounter {
    /// Reads a tokenizer: a `tokenizer.json`, a folder with one, a GGUF file, or the name of a
    /// repository that the Hub cache of this machine has. Downloads nothing.
    ///
    /// # Errors
    /// When there is none, or when it cannot be read or used.
    pub fn load(name: &str) -> Result<Self, ServebenchError> {
        let given = Path::new(name);
        let path = if given.exists() {
            if given.is_dir() { given.join("tokenizer.json") } else { given.to_owned() }
        } else {
            cached(&hub_cache(|name| std::env::var_os(name)), name).ok_or_else(|| {
                ServebenchError::Usage {
                    flag: "--tokenizer".to_owned(),
                    message: format!(
                        "{name:?} is neither a tokenizer.json, a folder with one, a GGUF file, \
                         nor a repository with a tokenizer.json in the Hub cache; download one of \
                         these first"
                    ),
                }
            })?
        };
        let is_gguf = path.extension().is_some_and(|extension| extension == "gguf");
        let tokenizer = if is_gguf { read_gguf(&path)? } else { read_json(&path)? };
        // An empty text always has an encoding: the prefix.
        let num_prefix_tokens = tokenizer.encode_text("").map_or(0, |ids| ids.len());
        Ok(Self { tokenizer: Arc::new(tokenizer), num_prefix_tokens })
    }

    /// Returns the number of tokens of a text, without any that a model puts in front.
    #[must_use]
    pub fn count(&self, text: &str) -> usize {
        match self.tokenizer.encode_text(text) {
            Ok(ids) => ids.len() - self.num_prefix_tokens,
            // A pre-tokenizer has a limit of steps. Halves stay below it, at the price of a token
            // that lies across the middle.
            Err(_) => halves(text).map_or(0, |(left, right)| self.count(left) + self.count(right)),
        }
    }

    /// Returns the longest start of a text, cut between tokens, that has at most `num_tokens`
    /// tokens by itself.
    #[must_use]
    pub fn cut(&self, text: &str, num_tokens: usize) -> String {
        let Ok(ids) = self.tokenizer.encode_text(text) else {
            return halves(text).map_or_else(String::new, |(left, _)| self.cut(left, num_tokens));
        };
        let ids = &ids[self.num_prefix_tokens..];
        if ids.len() <= num_tokens {
            return text.to_owned();
        }
        // Text that ends elsewhere may have other tokens at its end, and half a character becomes a
        // replacement, so the start is counted again.
        (1..=num_tokens)
            .rev()
            .map(|end| self.tokenizer.detokenize(&ids[..end]))
            .find(|start| text.starts_with(start.as_str()) && self.count(start) <= num_tokens)
            .unwrap_or_default()
    }
}

/// Returns a text in two halves, neither empty; `None` for a single character.
fn halves(text: &str) -> Option<(&str, &str)> {
    let boundaries = text.char_indices().map(|(at, _)| at).skip(1);
    let middle = boundaries.clone().find(|at| at * 2 >= text.len()).or_else(|| boundaries.last());
    middle.map(|middle| text.split_at(middle))
}

fn read_gguf(path: &Path) -> Result<Tokenizer, ServebenchError> {
    let vocabulary = gguf_vocabulary::read(path).map_err(|source| unreadable(path, source))?;
    Tokenizer::from_gguf(vocabulary).map_err(|source| unusable(path, source))
}

fn read_json(path: &Path) -> Result<Tokenizer, ServebenchError> {
    let json = fs::read(path).map_err(|source| unreadable(path, source))?;
    let config_path = path.with_file_name("tokenizer_config.json");
    let config = match fs::read(&config_path) {
        Ok(bytes) => Some(
            TokenizerConfig::from_json(&bytes).map_err(|source| unusable(&config_path, source))?,
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(source) => return Err(unreadable(&config_path, source)),
    };
    Tokenizer::from_tokenizer_json(&json, config.as_ref()).map_err(|source| unusable(path, source))
}

fn unreadable(path: &Path, source: std::io::Error) -> ServebenchError {
    ServebenchError::File { action: "read", path: path.to_owned(), source }
}

fn unusable(path: &Path, source: mini_infer_text::TokenizerError) -> ServebenchError {
    ServebenchError::Tokenizer { path: path.to_owned(), source }
}

/// Returns where the Hub's own programs keep repositories, by the variables that they read.
fn hub_cache(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || folder("HOME").unwrap_or_default();
    folder("HF_HUB_CACHE").unwrap_or_else(|| {
        let hub_home = folder("HF_HOME").unwrap_or_else(|| {
            let cache = folder("XDG_CACHE_HOME").unwrap_or_else(|| home().join(".cache"));
            cache.join("huggingface")
        });
        hub_home.join("hub")
    })
}

/// Returns the `tokenizer.json` of a repository in the Hub cache: the main branch's, else any.
fn cached(hub_cache: &Path, repository: &str) -> Option<PathBuf> {
    let folder = hub_cache.join(format!("models--{}", repository.replace('/', "--")));
    let snapshots = folder.join("snapshots");
    let main = fs::read_to_string(folder.join("refs/main")).ok();
    let main = main.map(|commit| snapshots.join(commit.trim()));
    let mut others: Vec<PathBuf> = fs::read_dir(&snapshots)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    others.sort();
    let mut files = main.into_iter().chain(others).map(|folder| folder.join("tokenizer.json"));
    files.find(|file| file.is_file())
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::gguf_vocabulary::tests::small_file;
    use super::*;

    /// A counter whose tokens are bytes, but for the merges given.
    pub(in crate::prompts) fn counter(merges: &[&str]) -> TokenCounter {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, small_file(merges)).unwrap();
        TokenCounter::load(path.to_str().unwrap()).unwrap()
    }

    #[test]
    fn the_prefix_of_the_model_is_not_counted() {
        let counter = counter(&["o n", "on e"]);
        assert_eq!((counter.count(""), counter.count("one"), counter.count("on no")), (0, 1, 4));
    }

    #[test]
    fn a_cut_text_is_a_start_with_at_most_that_many_tokens() {
        let counter = counter(&["o n", "on e"]);
        assert_eq!(counter.cut("one one", 2), "one ");
        assert_eq!(counter.cut("one", 5), "one");
        assert_eq!(counter.cut("one", 0), "");
        // The Greek letter is two tokens, one of which is half a letter.
        assert_eq!(counter.cut("aλb", 2), "a");
        assert_eq!(counter.cut("aλb", 3), "aλ");
    }

    #[test]
    fn halves_are_never_empty_and_never_split_a_character() {
        assert_eq!(halves("ab"), Some(("a", "b")));
        assert_eq!(halves("aλ"), Some(("a", "λ")));
        assert_eq!(halves("λa"), Some(("λ", "a")));
        assert_eq!((halves("λ"), halves("a"), halves("")), (None, None, None));
    }

    #[test]
    fn a_repository_in_the_hub_cache_is_found_by_its_name() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models--org--model");
        for commit in ["aaa", "bbb"] {
            fs::create_dir_all(folder.join("snapshots").join(commit)).unwrap();
            fs::write(folder.join("snapshots").join(commit).join("tokenizer.json"), "{}").unwrap();
        }
        let snapshot = |commit| Some(folder.join("snapshots").join(commit).join("tokenizer.json"));
        assert_eq!(cached(cache.path(), "org/model"), snapshot("aaa"));
        fs::create_dir_all(folder.join("refs")).unwrap();
        fs::write(folder.join("refs/main"), "bbb\n").unwrap();
        assert_eq!(cached(cache.path(), "org/model"), snapshot("bbb"));
        assert_eq!(cached(cache.path(), "org/other"), None);
    }

    #[test]
    fn the_hub_cache_is_where_its_variables_say() {
        let at = |pairs: &[(&str, &str)]| {
            let value = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1);
            hub_cache(|name| value(name).map(OsString::from))
        };
        assert_eq!(at(&[("HOME", "/h")]), Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(at(&[("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(at(&[("HF_HOME", "/f"), ("HOME", "/h")]), Path::new("/f/hub"));
        assert_eq!(at(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/f")]), Path::new("/c"));
    }

    #[test]
    fn what_is_no_tokenizer_is_told_apart() {
        let message = |name: &str| TokenCounter::load(name).unwrap_err().to_string();
        assert!(message("nobody/nothing").contains("--tokenizer: \"nobody/nothing\" is neither"));
        let folder = tempfile::tempdir().unwrap();
        assert!(message(folder.path().to_str().unwrap()).contains("tokenizer.json"));
        fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
        assert!(message(folder.path().to_str().unwrap()).contains("cannot be used"));
    }
}
