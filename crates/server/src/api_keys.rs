//! API keys: what they are, and what each of them opens.
//!
//! Only SHA-256 digests are kept. What a client shows is hashed and compared with every digest in
//! constant time, so an answer's timing tells nothing about the keys, not even their lengths.
//! Cost per request: one hash, and 32 bytes compared per key.

use sha2::{Digest, Sha256};
use std::fmt;
use subtle::{Choice, ConstantTimeEq};

/// What a key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// The routes that ask the model something, or about it.
    Inference,
    /// These, and the routes that change or watch the server.
    Management,
}

/// The keys of a server; none lets everybody in.
#[derive(Clone, Default)]
pub struct ApiKeys {
    keys: Vec<ApiKey>,
}

#[derive(Clone)]
struct ApiKey {
    digest: [u8; 32],
    scope: KeyScope,
}

/// What a client's key gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyGrant {
    /// What the client may ask for.
    pub(crate) scope: KeyScope,
    /// SHA-256 of the key: which client this is.
    pub(crate) digest: [u8; 32],
}

/// Why a key or a file of keys is refused; never shows a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiKeyError {
    /// A key that no header can carry.
    NotVisibleAscii,
    /// A line of a file that is not `KEY` or `KEY SCOPE`.
    Line {
        /// Which line, from 1.
        line: usize,
    },
    /// A file without a key, which would let everybody in.
    NoKeys,
}

impl fmt::Display for ApiKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotVisibleAscii => {
                write!(f, "a key must have 1 or more visible ASCII characters and no space")
            }
            Self::Line { line } => write!(
                f,
                "line {line} is not `KEY`, `KEY inference` or `KEY management`, with a key of \
                 visible ASCII characters"
            ),
            Self::NoKeys => write!(f, "there is no key in it"),
        }
    }
}

impl std::error::Error for ApiKeyError {}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKeys").field("num_keys", &self.keys.len()).finish()
    }
}

impl ApiKeys {
    /// Adds a key.
    ///
    /// # Errors
    /// Refuses a key that no header can carry.
    pub fn add(&mut self, key: &str, scope: KeyScope) -> Result<(), ApiKeyError> {
        if !is_key(key) {
            return Err(ApiKeyError::NotVisibleAscii);
        }
        self.keys.push(ApiKey { digest: Sha256::digest(key).into(), scope });
        Ok(())
    }

    /// Adds the keys of a file's text: one per line, with `management` behind it where it opens
    /// more than the model; `#` begins a comment.
    ///
    /// # Errors
    /// Refuses a line that is something else, and a text without a key.
    pub fn add_lines(&mut self, text: &str) -> Result<(), ApiKeyError> {
        let mut num_keys = 0;
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = ApiKeyError::Line { line: i + 1 };
            let line = line.split_once(" #").map_or(line, |(line, _)| line);
            let mut words = line.split_whitespace();
            let (key, scope) = (words.next().unwrap_or_default(), words.next());
            let scope = match (scope, words.next()) {
                (None | Some("inference"), None) => KeyScope::Inference,
                (Some("management"), None) => KeyScope::Management,
                _ => return Err(wrong),
            };
            self.add(key, scope).map_err(|_| wrong)?;
            num_keys += 1;
        }
        if num_keys == 0 { Err(ApiKeyError::NoKeys) } else { Ok(()) }
    }

    /// Tells whether everybody may come in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns what `key` gives, `None` when it is none of the keys. Until one of them is a
    /// management key, each opens everything.
    pub(crate) fn grant(&self, key: &str) -> Option<KeyGrant> {
        let digest: [u8; 32] = Sha256::digest(key).into();
        let mut is_known = Choice::from(0);
        let mut is_management = Choice::from(0);
        let mut has_management = false;
        for known in &self.keys {
            let matches = known.digest.ct_eq(&digest);
            is_known |= matches;
            let manages = known.scope == KeyScope::Management;
            is_management |= matches & Choice::from(u8::from(manages));
            has_management |= manages;
        }
        let scope = if bool::from(is_management) || !has_management {
            KeyScope::Management
        } else {
            KeyScope::Inference
        };
        bool::from(is_known).then_some(KeyGrant { scope, digest })
    }
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(keys: &ApiKeys, key: &str) -> Option<KeyScope> {
        keys.grant(key).map(|grant| grant.scope)
    }

    #[test]
    fn a_file_has_a_key_per_line_with_a_scope_behind_it() {
        let mut keys = ApiKeys::default();
        let text =
            "# clients\n\n one \ntwo inference # for the office\r\n#three\n#\nroot\tmanagement";
        keys.add_lines(text).unwrap();
        assert_eq!(scope(&keys, "one"), Some(KeyScope::Inference));
        assert_eq!(scope(&keys, "two"), Some(KeyScope::Inference));
        assert_eq!(scope(&keys, "root"), Some(KeyScope::Management));
        for key in ["", "three", "#three", "on", "onee", "two inference", "ROOT"] {
            assert_eq!(scope(&keys, key), None, "{key}");
        }
    }

    #[test]
    fn files_that_would_open_the_server_by_mistake_are_refused() {
        let check = |text: &str, expected: ApiKeyError| {
            assert_eq!(ApiKeys::default().add_lines(text), Err(expected), "{text:?}");
        };
        check("", ApiKeyError::NoKeys);
        check("# nothing\n\n", ApiKeyError::NoKeys);
        check("one\ntwo admin", ApiKeyError::Line { line: 2 });
        check("one management please", ApiKeyError::Line { line: 1 });
        check("schlüssel", ApiKeyError::Line { line: 1 });
        for key in ["", "a b", "a\n", "é"] {
            let result = ApiKeys::default().add(key, KeyScope::Inference);
            assert_eq!(result, Err(ApiKeyError::NotVisibleAscii), "{key:?}");
        }
    }

    #[test]
    fn until_there_is_a_management_key_each_key_opens_everything() {
        let mut keys = ApiKeys::default();
        keys.add("one", KeyScope::Inference).unwrap();
        assert_eq!(scope(&keys, "one"), Some(KeyScope::Management));
        keys.add("root", KeyScope::Management).unwrap();
        assert_eq!(scope(&keys, "one"), Some(KeyScope::Inference));
        keys.add("one", KeyScope::Management).unwrap();
        assert_eq!(scope(&keys, "one"), Some(KeyScope::Management));
    }

    #[test]
    fn what_is_printed_for_debugging_shows_no_key() {
        let mut keys = ApiKeys::default();
        keys.add("secret", KeyScope::Inference).unwrap();
        assert_eq!(format!("{keys:?}"), "ApiKeys { num_keys: 1 }");
    }
}
