//! Why a grammar cannot be used.

use std::fmt;

/// A grammar that cannot be compiled: the caller's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarError {
    /// Where in a JSON schema the fault is, from its root, such as `properties.name.pattern`; empty
    /// for the whole and for other grammars.
    pub path: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl GrammarError {
    /// Blames the grammar as a whole.
    pub(crate) fn whole(message: impl Into<String>) -> Self {
        Self { path: String::new(), message: message.into() }
    }

    /// Blames what is at `path`.
    pub(crate) fn at(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{}", self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

impl std::error::Error for GrammarError {}
