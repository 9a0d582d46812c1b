//! Names of Hub repositories, revisions and files, checked so that they are safe in URLs and paths.

use std::fmt;

/// The name of a model repository on the Hub: `organisation/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoName(String);

impl RepoName {
    /// Checks the text and returns the name, or `None` where the Hub could not have such a name.
    pub fn parse(text: &str) -> Option<Self> {
        let (organisation, name) = text.split_once('/')?;
        let is_valid = |part: &str| {
            let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !part.is_empty()
                && part.len() <= 96
                && part.bytes().all(inner)
                && !part.starts_with(['.', '-'])
                && !part.ends_with(['.', '-'])
                && !part.contains("..")
                && !part.contains("--")
        };
        (is_valid(organisation) && is_valid(name)).then(|| Self(text.to_owned()))
    }

    /// Returns the name as `organisation/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of its folder in the Hub cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tells whether a relative path with `/` between its parts stays inside the folder it is joined to.
pub(crate) fn is_safe_relative_path(path: &str) -> bool {
    !path.contains(['\\', ':', '\0'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Tells whether the text is a full commit id: 40 hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_accepted() {
        for name in ["Qwen/Qwen2.5-0.5B-Instruct", "a/b", "google/gemma-3-270m_it"] {
            assert_eq!(RepoName::parse(name).as_ref().map(RepoName::as_str), Some(name));
        }
    }

    #[test]
    fn names_that_would_leave_the_cache_are_refused() {
        for name in ["", "a", "a/", "/a", "../a", "a/..", "a/b/c", "a/b c", "a--b/c", "a/b?x"] {
            assert_eq!(RepoName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn paths_that_leave_their_folder_are_unsafe() {
        assert!(is_safe_relative_path("config.json"));
        assert!(is_safe_relative_path("Q4_K_M/model.gguf"));
        for path in ["", "/etc/passwd", "a//b", "../x", "a/../b", "a\\b", "C:x", "."] {
            assert!(!is_safe_relative_path(path), "{path}");
        }
    }
}
