//! Unsafe code stays on its islands, and the compiler is told so.

use crate::dependencies::{CrateRule, UnsafeCode};
use crate::repository::{SourceFile, Violation};
use crate::rust_source::RustSource;

/// Reports `unsafe` outside the files that the rules allow.
pub(crate) fn check_use(
    file: &SourceFile,
    source: &RustSource,
    rules: &[CrateRule],
) -> Vec<Violation> {
    let Some((at, _)) = source.words().find(|&(_, word)| word == "unsafe") else {
        return Vec::new();
    };
    let allowed = match rule_of(file, rules).map(|rule| &rule.unsafe_code) {
        Some(UnsafeCode::Island) => true,
        Some(UnsafeCode::Files(files)) => files.contains(&file.path),
        Some(UnsafeCode::Forbidden) | None => false,
    };
    if allowed {
        return Vec::new();
    }
    let message = "unsafe code belongs on the islands that ARCHITECTURE.md names";
    vec![Violation::new(file, source.line_of(at), message)]
}

/// Reports crate roots without the attribute that their rule asks for.
pub(crate) fn check_attribute(
    file: &SourceFile,
    source: &RustSource,
    rules: &[CrateRule],
) -> Vec<Violation> {
    let Some(rule) = rule_of(file, rules) else { return Vec::new() };
    let roots = [rule.path("src/lib.rs"), rule.path("src/main.rs")];
    if !roots.contains(&file.path) {
        return Vec::new();
    }
    let attribute = match rule.unsafe_code {
        UnsafeCode::Forbidden => "#![forbid(unsafe_code)]",
        UnsafeCode::Files(_) => "#![deny(unsafe_code)]",
        UnsafeCode::Island => return Vec::new(),
    };
    if source.code.lines().any(|line| line.trim() == attribute) {
        return Vec::new();
    }
    vec![Violation::new(file, 1, format!("the crate must say {attribute}"))]
}

/// Returns the rule of the crate that `file` belongs to.
fn rule_of<'a>(file: &SourceFile, rules: &'a [CrateRule]) -> Option<&'a CrateRule> {
    let mut parts = file.path.split('/');
    let folder = match (parts.next(), parts.next()) {
        (Some("crates"), Some(name)) => format!("crates/{name}"),
        _ => String::new(),
    };
    rules.iter().find(|rule| rule.folder == folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dependencies::crate_rules;

    const TABLE: &str = "## Crates and what they may use\n| a | b | c | d |\n|---|---|---|---|\n\
        | `mini-infer` | | any | forbidden |\n| `kernels` | | any | island |\n\
        | `model` | | any | `crates/model/src/mmap.rs` |\n";

    fn count(path: &str, text: &str, check: Check) -> usize {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        check(&file, &RustSource::new(text), &crate_rules(TABLE)).len()
    }

    type Check = fn(&SourceFile, &RustSource, &[CrateRule]) -> Vec<Violation>;

    #[test]
    fn unsafe_code_is_reported_off_the_islands() {
        let text = "fn f() { unsafe { g() } }";
        assert_eq!(count("crates/kernels/src/x.rs", text, check_use), 0);
        assert_eq!(count("crates/model/src/mmap.rs", text, check_use), 0);
        assert_eq!(count("crates/model/src/x.rs", text, check_use), 1);
        assert_eq!(count("src/main.rs", text, check_use), 1);
        assert_eq!(count("tests/x.rs", text, check_use), 1);
        assert_eq!(count("crates/unknown/src/x.rs", text, check_use), 1);
        assert_eq!(count("src/main.rs", "// unsafe\n#![forbid(unsafe_code)]", check_use), 0);
    }

    #[test]
    fn roots_must_carry_the_attribute_of_their_rule() {
        let forbid = "#![forbid(unsafe_code)]";
        assert_eq!(count("src/main.rs", forbid, check_attribute), 0);
        assert_eq!(count("src/main.rs", "fn main() {}", check_attribute), 1);
        assert_eq!(count("src/other.rs", "fn f() {}", check_attribute), 0);
        assert_eq!(count("crates/model/src/lib.rs", forbid, check_attribute), 1);
        assert_eq!(count("crates/model/src/lib.rs", "#![deny(unsafe_code)]", check_attribute), 0);
        assert_eq!(count("crates/kernels/src/lib.rs", "", check_attribute), 0);
    }
}
