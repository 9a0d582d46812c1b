//! Crates depend only as `ARCHITECTURE.md` allows.
//!
//! Its table names, for each crate: which crates of ours it may use, whether it may use others'
//! crates outside tests, and where it may hold unsafe code (see [`crate::unsafe_code`]).

use crate::markdown;
use crate::repository::{SourceFile, Violation};

/// Prefix of the names of our crates.
const OURS: &str = "mini-infer-";

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CrateRule {
    /// Folder, relative to the root; empty for the root package.
    pub(crate) folder: String,
    /// Short names of our crates that it may use.
    pub(crate) may_use: Vec<String>,
    /// Which of others' crates it may use outside tests.
    pub(crate) others: Others,
    /// Where unsafe code may be.
    pub(crate) unsafe_code: UnsafeCode,
}

/// Which of others' crates may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// Any that the commit argues for.
    Any,
    /// None: the standard library only.
    None,
}

/// Where unsafe code may be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UnsafeCode {
    /// Nowhere.
    Forbidden,
    /// In the whole crate: an island.
    Island,
    /// In these files, relative to the root.
    Files(Vec<String>),
}

impl CrateRule {
    /// Returns the path of the crate's manifest.
    fn manifest(&self) -> String {
        self.path("Cargo.toml")
    }

    /// Returns the path of a file of the crate, relative to the root.
    pub(crate) fn path(&self, file: &str) -> String {
        if self.folder.is_empty() { file.to_owned() } else { format!("{}/{file}", self.folder) }
    }
}

/// Reads the table of crates.
pub(crate) fn crate_rules(architecture: &str) -> Vec<CrateRule> {
    let rows = markdown::table_under(architecture, "## Crates and what they may use");
    rows.iter().map(|row| crate_rule(row)).collect()
}

/// Reads one row: crate, ours, others', unsafe code.
fn crate_rule(row: &[String]) -> CrateRule {
    let [name, ours, others, unsafe_code] = row else { panic!("row {row:?} needs four fields") };
    let name = markdown::code_spans(name).next().expect("the first field names the crate");
    let folder = if name == "mini-infer" { String::new() } else { format!("crates/{name}") };
    let spans = |field: &str| markdown::code_spans(field).map(str::to_owned).collect();
    CrateRule {
        folder,
        may_use: spans(ours),
        others: match others.as_str() {
            "any" => Others::Any,
            "none" => Others::None,
            other => panic!("{name}: others' crates are `any` or `none`, not {other}"),
        },
        unsafe_code: match unsafe_code.as_str() {
            "forbidden" => UnsafeCode::Forbidden,
            "island" => UnsafeCode::Island,
            files => UnsafeCode::Files(spans(files)),
        },
    }
}

/// Reports dependencies that no rule allows, and crates without a rule.
pub(crate) fn check(manifests: &[&SourceFile], rules: &[CrateRule]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for manifest in manifests {
        let Some(rule) = rules.iter().find(|rule| rule.manifest() == manifest.path) else {
            if manifest.path.starts_with("crates/") {
                let message = "the crate is missing from the table in ARCHITECTURE.md";
                violations.push(Violation::new(manifest, 1, message));
            }
            continue;
        };
        for dependency in dependencies(&manifest.text) {
            if let Some(message) = objection(&dependency, rule) {
                violations.push(Violation::new(manifest, dependency.line, message));
            }
        }
    }
    for rule in rules {
        if !manifests.iter().any(|manifest| manifest.path == rule.manifest()) {
            let (path, message) = (rule.manifest(), "ARCHITECTURE.md names a missing crate");
            violations.push(Violation { path, line: 1, message: message.to_owned() });
        }
    }
    violations
}

/// Returns what is wrong with a dependency.
fn objection(dependency: &Dependency<'_>, rule: &CrateRule) -> Option<String> {
    let name = dependency.name;
    match name.strip_prefix(OURS) {
        Some(ours) if rule.may_use.iter().any(|allowed| allowed == ours) => None,
        Some(_) => Some(format!("ARCHITECTURE.md does not let this crate use {name}")),
        None if rule.others == Others::Any || dependency.kind == Kind::Test => None,
        None => Some(format!("{name}: this crate uses the standard library only")),
    }
}

/// What a dependency is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Build,
    Test,
}

/// One dependency of a manifest.
struct Dependency<'a> {
    name: &'a str,
    line: usize,
    kind: Kind,
}

/// Returns the dependencies of a manifest: `name = …`, `name.workspace = …` and
/// `[dependencies.name]`, also per platform; renamed ones under their real name.
fn dependencies(manifest: &str) -> Vec<Dependency<'_>> {
    let mut found = Vec::new();
    let mut section = None;
    for (i, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let (kind, name) = section_of(header.trim_end_matches(']'));
            section = kind.filter(|_| name.is_none());
            if let (Some(kind), Some(name)) = (kind, name) {
                found.push(Dependency { name, line: i + 1, kind });
            }
        } else if let (Some(kind), Some((key, value))) = (section, line.split_once('='))
            && !line.starts_with('#')
        {
            let renamed =
                value.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
            let key = key.split('.').next().unwrap_or_default().trim();
            found.push(Dependency { name: renamed.unwrap_or(key), line: i + 1, kind });
        }
    }
    found
}

/// Returns what the dependencies of a section are for, and the name in a section of one.
fn section_of(header: &str) -> (Option<Kind>, Option<&str>) {
    let kinds = [("dev-dependencies", Kind::Test), ("build-dependencies", Kind::Build)];
    for (title, kind) in kinds.into_iter().chain([("dependencies", Kind::Build)]) {
        // `[workspace.dependencies]` only lists versions; nobody depends on them by that.
        if header.starts_with("workspace.") {
            break;
        }
        if header == title || header.ends_with(&format!(".{title}")) {
            return (Some(kind), None);
        }
        if let Some(name) = header.strip_prefix(&format!("{title}.")) {
            return (Some(kind), Some(name));
        }
    }
    (None, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "## Crates and what they may use\n| a | b | c | d |\n|---|---|---|---|\n\
        | `core` | | none | forbidden |\n| `model` | `core` | any | `src/mmap.rs` |\n";

    fn objections(folder: &str, manifest: &str) -> Vec<usize> {
        let path = format!("crates/{folder}/Cargo.toml");
        let manifest = SourceFile { path, text: manifest.to_owned() };
        let violations = check(&[&manifest], &crate_rules(TABLE));
        let here = violations.iter().filter(|violation| violation.path == manifest.path);
        here.map(|violation| violation.line).collect()
    }

    #[test]
    fn edges_outside_the_table_are_reported() {
        assert_eq!(objections("model", "[dependencies]\nmini-infer-core.workspace = true"), []);
        assert_eq!(objections("model", "[dependencies]\nmini-infer-kv.workspace = true"), [2]);
        assert_eq!(objections("core", "[dependencies]\nmini-infer-model = \"1\""), [2]);
        assert_eq!(objections("core", "[dev-dependencies]\nmini-infer-model = \"1\""), [2]);
    }

    #[test]
    fn edges_are_found_in_every_way_to_write_them() {
        assert_eq!(objections("model", "[dependencies.mini-infer-kv]\npath = \"x\""), [1]);
        assert_eq!(
            objections("model", "[target.'cfg(unix)'.dependencies]\nmini-infer-kv = 1"),
            [2]
        );
        assert_eq!(
            objections("model", "[dependencies]\nkv = { package = \"mini-infer-kv\" }"),
            [2]
        );
        assert_eq!(objections("model", "[workspace.dependencies]\nmini-infer-kv = 1"), []);
    }

    #[test]
    fn crates_that_use_the_standard_library_only_may_test_with_others() {
        assert_eq!(objections("core", "[dependencies]\nserde = \"1\""), [2]);
        assert_eq!(objections("core", "[dev-dependencies]\nserde = \"1\""), []);
        assert_eq!(objections("model", "[dependencies]\nserde = \"1\""), []);
    }

    #[test]
    fn a_crate_without_a_row_and_a_row_without_a_crate_are_reported() {
        assert_eq!(objections("new", ""), [1]);
        let missing = check(&[], &crate_rules(TABLE));
        assert_eq!(missing.len(), 2);
    }
}
