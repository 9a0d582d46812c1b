//! What the user wrote after `--model`, told apart.
//!
//! In this order: an alias by its exact name (write `./name` for a file of that name), a path that
//! exists, a path by its looks (an error then), and a Hub name as
//! `organisation/name[@revision][:file]`, where `file` is a GGUF file of the repository or just a
//! quantisation such as `Q4_K_M`.

use std::path::{Path, PathBuf};

use crate::alias::Alias;
use crate::error::HubError;
use crate::repo_name::{RepoName, is_safe_relative_path};

/// The revision that is meant when none is given.
const DEFAULT_REVISION: &str = "main";

/// The place a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A file on this disk.
    LocalFile(PathBuf),
    /// A folder on this disk.
    LocalFolder(PathBuf),
    /// A repository of the Hub.
    Hub {
        /// The repository.
        repo: RepoName,
        /// Branch, tag or commit.
        revision: String,
        /// The GGUF file asked for, by its path in the repository or by its quantisation.
        file: Option<String>,
    },
    /// One of the short names.
    Alias(&'static Alias),
}

impl ModelSource {
    /// Tells what `model` means; looks at the disk, never at the network.
    ///
    /// # Errors
    ///
    /// [`HubError::PathNotFound`] for what looks like a path and is none, and
    /// [`HubError::UnknownModel`] for what looks like nothing at all.
    pub fn parse(model: &str) -> Result<Self, HubError> {
        if let Some(alias) = Alias::find(model) {
            return Ok(Self::Alias(alias));
        }
        let path = Path::new(model);
        if path.is_dir() {
            return Ok(Self::LocalFolder(path.to_owned()));
        }
        if path.exists() {
            return Ok(Self::LocalFile(path.to_owned()));
        }
        if looks_like_path(model) {
            return Err(HubError::PathNotFound { path: path.to_owned() });
        }
        parse_hub_name(model).ok_or_else(|| HubError::UnknownModel { model: model.to_owned() })
    }
}

fn looks_like_path(model: &str) -> bool {
    let has_drive = matches!(model.as_bytes(), [drive, b':', ..] if drive.is_ascii_alphabetic());
    let names_gguf = model.to_ascii_lowercase().ends_with(".gguf") && !model.contains(':');
    has_drive
        || names_gguf
        || model.starts_with(['/', '.', '~'])
        || model.contains('\\')
        || model
            .split(':')
            .next()
            .unwrap_or(model)
            .split('@')
            .next()
            .unwrap_or(model)
            .matches('/')
            .count()
            > 1
}

fn parse_hub_name(model: &str) -> Option<ModelSource> {
    let (name, file) = match model.split_once(':') {
        Some((name, file)) => (name, Some(file)),
        None => (model, None),
    };
    let (repo, revision) = name.split_once('@').unwrap_or((name, DEFAULT_REVISION));
    let is_safe = is_safe_relative_path(revision) && file.is_none_or(is_safe_relative_path);
    let repo = RepoName::parse(repo).filter(|_| is_safe)?;
    Some(ModelSource::Hub {
        repo,
        revision: revision.to_owned(),
        file: file.map(ToOwned::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_hub(model: &str, repo: &str, revision: &str, file: Option<&str>) {
        let expected = ModelSource::Hub {
            repo: RepoName::parse(repo).unwrap(),
            revision: revision.to_owned(),
            file: file.map(ToOwned::to_owned),
        };
        assert_eq!(ModelSource::parse(model).unwrap(), expected, "{model}");
    }

    #[test]
    fn hub_names_carry_revision_and_file() {
        check_hub("o/n", "o/n", "main", None);
        check_hub("o/n@v1.0", "o/n", "v1.0", None);
        check_hub("o/n@refs/pr/1", "o/n", "refs/pr/1", None);
        check_hub("o/n:f.gguf", "o/n", "main", Some("f.gguf"));
        check_hub("o/n@dev:sub/f.gguf", "o/n", "dev", Some("sub/f.gguf"));
        check_hub("o/n:Q4_K_M", "o/n", "main", Some("Q4_K_M"));
    }

    #[test]
    fn aliases_are_known_by_their_exact_name() {
        assert!(matches!(ModelSource::parse("smollm2-135m").unwrap(), ModelSource::Alias(_)));
        assert!(matches!(
            ModelSource::parse("smollm2").unwrap_err(),
            HubError::UnknownModel { model } if model == "smollm2"
        ));
    }

    #[test]
    fn what_exists_is_a_path_and_a_folder_is_told_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        std::fs::write(&file, "x").unwrap();
        let parse = |path: &Path| ModelSource::parse(path.to_str().unwrap()).unwrap();
        assert_eq!(parse(folder.path()), ModelSource::LocalFolder(folder.path().to_owned()));
        assert_eq!(parse(&file), ModelSource::LocalFile(file));
    }

    #[test]
    fn what_looks_like_a_path_and_is_none_says_so() {
        for model in [
            "/no/such/model",
            "./smollm2-135m",
            "no-such.gguf",
            "o/n.gguf",
            "a/b/c",
            "C:\\m",
            "~/m",
        ] {
            let error = ModelSource::parse(model).unwrap_err();
            assert!(matches!(error, HubError::PathNotFound { .. }), "{model}: {error}");
        }
    }

    #[test]
    fn names_that_could_leave_the_cache_are_unknown() {
        for model in ["", "one-word", "o/n@../x", "o/n:../f.gguf", "o/n:", "o/n@", "o n/x"] {
            let error = ModelSource::parse(model).unwrap_err();
            assert!(matches!(error, HubError::UnknownModel { .. }), "{model}: {error}");
        }
    }
}
