//! The files of the repository, read once.
//!
//! Walks the checkout from the root package; skips what is not ours to keep tidy: build output,
//! version control, virtual environments. Paths are relative to the root, with `/`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold no source.
const SKIPPED_FOLDERS: [&str; 5] = ["target", ".git", ".venv", "node_modules", "__pycache__"];

/// A text file of the repository.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Path relative to the root, with `/`.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
}

/// One broken rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Path relative to the root.
    pub(crate) path: String,
    /// Line, counted from 1.
    pub(crate) line: usize,
    /// What is wrong and what to do.
    pub(crate) message: String,
}

impl Violation {
    /// Returns a violation in `file` at `line`, counted from 1.
    pub(crate) fn new(file: &SourceFile, line: usize, message: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// All text files of the checkout, ordered by path.
pub(crate) struct Repository {
    root: PathBuf,
    files: Vec<SourceFile>,
}

impl Repository {
    /// Reads the checkout that this test was built from; files that are not UTF-8 are left out.
    pub(crate) fn open() -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let mut paths = Vec::new();
        walk(&root, &mut paths);
        paths.sort();
        let files = paths
            .into_iter()
            .filter_map(|path| {
                let text = String::from_utf8(fs::read(&path).ok()?).ok()?;
                let relative = path.strip_prefix(&root).expect("walk starts at the root");
                let path = relative.to_str()?.replace('\\', "/");
                Some(SourceFile { path, text })
            })
            .collect();
        Self { root, files }
    }

    /// Returns all text files.
    pub(crate) fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Returns the files whose name ends in `.extension`.
    pub(crate) fn with_extension(&self, extension: &str) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(move |file| {
            Path::new(&file.path).extension().is_some_and(|found| found == extension)
        })
    }

    /// Returns the files called `name`, in whatever folder.
    pub(crate) fn named(&self, name: &str) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(move |file| file.path.rsplit('/').next() == Some(name))
    }

    /// Returns the text of the file at `path`.
    pub(crate) fn text(&self, path: &str) -> &str {
        let found = self.files.iter().find(|file| file.path == path);
        &found.unwrap_or_else(|| panic!("{path} is missing from the repository")).text
    }

    /// Tells whether `path`, relative to the root, is a file or a folder.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }
}

/// Collects the files below `folder`.
fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).expect("the checkout is readable");
    for entry in entries {
        let path = entry.expect("the checkout is readable").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !SKIPPED_FOLDERS.contains(&name) {
                walk(&path, into);
            }
        } else {
            into.push(path);
        }
    }
}
