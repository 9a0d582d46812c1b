//! Links and paths in documents lead somewhere.

use crate::markdown;
use crate::repository::{Repository, SourceFile, Violation};

/// Folders at the root whose mention in a code span is a path.
const ROOT_FOLDERS: [&str; 9] =
    [".ci/", "benches/", "crates/", "docs/", "examples/", "fuzz/", "src/", "testdata/", "tests/"];

/// Reports relative links of `file` whose target, or whose heading in it, is missing.
pub(crate) fn check(file: &SourceFile, repository: &Repository) -> Vec<Violation> {
    let text_of = |path: &str| {
        repository.exists(path).then(|| {
            let found = repository.files().iter().find(|file| file.path == path);
            found.map_or("", |file| file.text.as_str())
        })
    };
    dead_links(file, text_of)
}

/// Reports paths in code spans of `file` that do not exist.
pub(crate) fn check_code_paths(file: &SourceFile, repository: &Repository) -> Vec<Violation> {
    missing_paths(file, |path| repository.exists(path))
}

/// Reports dead links; `text_of` returns the text of what is at a path, `None` if nothing is.
fn dead_links<'a>(file: &SourceFile, text_of: impl Fn(&str) -> Option<&'a str>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (line, text) in markdown::prose(&file.text) {
        for target in markdown::link_targets(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let found = if path.is_empty() {
                Some(file.text.as_str())
            } else {
                text_of(&resolve(&file.path, path))
            };
            let lives = found.is_some_and(|text| {
                anchor.is_empty() || markdown::anchors(text).iter().any(|found| found == anchor)
            });
            if !lives {
                violations.push(Violation::new(file, line, format!("dead link to {target}")));
            }
        }
    }
    violations
}

/// Returns `target`, as linked from the document at `from`, relative to the root.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Reports code spans that are paths from the root and do not exist.
fn missing_paths(file: &SourceFile, exists: impl Fn(&str) -> bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (line, text) in markdown::prose(&file.text) {
        for span in markdown::code_spans(text) {
            let is_path = ROOT_FOLDERS.iter().any(|folder| span.starts_with(folder))
                && !span.contains([' ', '<', '{', '*']);
            if is_path && !exists(span.split(':').next().unwrap_or_default()) {
                violations.push(Violation::new(file, line, format!("{span} does not exist")));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn links_are_followed_from_the_folder_of_their_document() {
        let text_of = |path: &str| (path == "docs/a.md").then_some("# Here");
        let dead = |path: &str, text: &str| dead_links(&file(path, text), text_of).len();
        assert_eq!(dead("README.md", "[x](docs/a.md) [y](docs/a.md#here)"), 0);
        assert_eq!(dead("docs/b.md", "[x](a.md) [y](../docs/./a.md)"), 0);
        assert_eq!(dead("docs/b.md", "[x](docs/a.md)"), 1);
        assert_eq!(dead("README.md", "[x](docs/a.md#there)"), 1);
        assert_eq!(dead("README.md", "# Top\n[x](#top) [y](#bottom)"), 1);
        assert_eq!(dead("README.md", "[x](https://example.org/none)"), 0);
    }

    #[test]
    fn code_spans_that_are_paths_must_exist() {
        let missing = |text: &str| missing_paths(&file("a.md", text), |path| path == "src/main.rs");
        assert_eq!(missing("`src/main.rs` `src/main.rs:12` `text/plain` `crates/*`"), []);
        assert_eq!(missing("a\n`src/gone.rs`").len(), 1);
    }
}
