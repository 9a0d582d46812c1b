//! Rules that look at one file and need no table.

use crate::repository::{SourceFile, Violation};
use crate::rust_source::RustSource;

/// File names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 7] =
    ["common.rs", "helper.rs", "helpers.rs", "manager.rs", "misc.rs", "util.rs", "utils.rs"];

/// Reports a file of more than `max_lines` lines.
pub(crate) fn file_length(file: &SourceFile, max_lines: usize) -> Vec<Violation> {
    let num_lines = file.text.lines().count();
    if num_lines <= max_lines {
        return Vec::new();
    }
    vec![Violation::new(file, num_lines, format!("{num_lines} lines, at most {max_lines}"))]
}

/// Reports a file that does not open with a `//!` header.
pub(crate) fn module_header(file: &SourceFile) -> Vec<Violation> {
    if file.text.trim_start().starts_with("//!") {
        return Vec::new();
    }
    vec![Violation::new(file, 1, "the file must open with a `//!` header")]
}

/// Reports a file whose name is not a noun of the field.
pub(crate) fn file_name(file: &SourceFile) -> Vec<Violation> {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    if EMPTY_NAMES.contains(&name) {
        return vec![Violation::new(file, 1, "name the file after what it owns")];
    }
    Vec::new()
}

/// Reports marks of unfinished work in comments, unless they name an issue: `TODO(#12)`.
pub(crate) fn todo_without_issue(file: &SourceFile, source: &RustSource) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (i, line) in source.comments.lines().enumerate() {
        for mark in ["TODO", "FIXME", "XXX", "HACK"] {
            for (at, _) in line.match_indices(mark) {
                let names_issue = mark == "TODO" && names_issue(&line[at + mark.len()..]);
                if !names_issue {
                    let message = format!("{mark} must be finished, or be TODO(#issue)");
                    violations.push(Violation::new(file, i + 1, message));
                }
            }
        }
    }
    violations
}

/// Tells whether `rest`, what follows a mark, is `(#12)`.
fn names_issue(rest: &str) -> bool {
    let Some((number, _)) = rest.strip_prefix("(#").and_then(|rest| rest.split_once(')')) else {
        return false;
    };
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reports tests that are switched off.
pub(crate) fn ignored_test(file: &SourceFile, source: &RustSource) -> Vec<Violation> {
    let switched_off = |line: &str| {
        let line: String = line.split_whitespace().collect();
        line.contains("#[ignore") || (line.contains("#[cfg_attr") && line.contains(",ignore"))
    };
    let lines = source.code.lines().enumerate().filter(|(_, line)| switched_off(line));
    lines.map(|(i, _)| Violation::new(file, i + 1, "run the test or remove it")).collect()
}

/// Reports paths of one person's machine; `user` stands for anybody.
pub(crate) fn home_folder(file: &SourceFile) -> Vec<Violation> {
    // Split so that this file does not report itself.
    let roots = [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
    let mut violations = Vec::new();
    for (i, line) in file.text.lines().enumerate() {
        for root in roots {
            for (at, _) in line.match_indices(root) {
                let starts_path = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '.');
                let is_anybody = line[at + root.len()..].starts_with("user");
                if starts_path && !is_anybody {
                    let message = format!("a path below {root} exists on one machine only");
                    violations.push(Violation::new(file, i + 1, message));
                }
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

    fn lines(violations: &[Violation]) -> Vec<usize> {
        violations.iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn the_line_after_the_last_allowed_one_is_too_many() {
        assert_eq!(file_length(&file("a.rs", "1\n2\n"), 2), []);
        assert_eq!(lines(&file_length(&file("a.rs", "1\n2\n3\n"), 2)), [3]);
    }

    #[test]
    fn a_header_comes_before_everything_else() {
        assert_eq!(module_header(&file("a.rs", "//! Owns a.\nfn a() {}")), []);
        assert_eq!(lines(&module_header(&file("a.rs", "fn a() {}\n//! Late."))), [1]);
        assert_eq!(lines(&module_header(&file("a.rs", "// Not a header."))), [1]);
    }

    #[test]
    fn names_without_a_noun_are_reported() {
        assert_eq!(file_name(&file("src/block_pool.rs", "")), []);
        assert_eq!(lines(&file_name(&file("src/utils.rs", ""))), [1]);
    }

    #[test]
    fn only_marks_with_an_issue_pass() {
        let check = |text: &str| {
            let source = RustSource::new(text);
            lines(&todo_without_issue(&file("a.rs", text), &source))
        };
        assert_eq!(check("// TODO(#12): later\nlet x = \"TODO\";"), []);
        assert_eq!(check("a;\n// TODO: later"), [2]);
        assert_eq!(check("// TODO(#): later"), [1]);
        assert_eq!(check("// FIXME(#12)"), [1]);
    }

    #[test]
    fn ignored_tests_are_reported_wherever_the_attribute_hides() {
        let check = |text: &str| {
            let source = RustSource::new(text);
            lines(&ignored_test(&file("a.rs", text), &source))
        };
        assert_eq!(check("#[test]\n#[ignore]\nfn t() {}"), [2]);
        assert_eq!(check("# [ ignore = \"slow\" ]"), [1]);
        assert_eq!(check("#[cfg_attr(debug_assertions, ignore)]"), [1]);
        assert_eq!(check("// #[ignore]\nlet s = \"#[ignore]\";"), []);
    }

    #[test]
    fn home_folders_are_reported_and_urls_and_placeholders_are_not() {
        let root = concat!("/ho", "me/");
        assert_eq!(lines(&home_folder(&file("a.md", &format!("run {root}ada/x")))), [1]);
        assert_eq!(home_folder(&file("a.md", &format!("https://example.org{root}x"))), []);
        assert_eq!(home_folder(&file("a.md", &format!("{root}user/.cache"))), []);
    }
}
