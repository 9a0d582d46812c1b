//! Checks on the repository itself, in the spirit of TigerBeetle's `tidy` and rust-analyzer's.
//!
//! Each rule of `STYLE.md` that a machine can read is one function from text to [`Violation`]s in
//! a file of its own; the tests here run the functions over every file of the repository and
//! print all violations at once. Beside each function, unit tests on small strings show that it
//! can fail. Tables that the rules need are read from the documents themselves (`ARCHITECTURE.md`
//! for dependencies and unsafe code, `docs/glossary.md` for names), so the two cannot drift apart.
//!
//! Deliberately absent: anything that rustfmt, clippy or rustdoc already checks.
#![forbid(unsafe_code)]

mod dependencies;
mod function_length;
mod hygiene;
mod links;
mod markdown;
mod names;
mod repository;
mod rust_source;
mod unsafe_code;

use repository::{Repository, SourceFile, Violation};
use rust_source::RustSource;

/// Most lines of a Rust file.
const MAX_FILE_LINES: usize = 600;
/// Most lines of a function, from `fn` to the closing brace.
const MAX_FUNCTION_LINES: usize = 70;

/// Fails with every violation on a line of its own.
fn expect_none(violations: &[Violation]) {
    let report: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(report.is_empty(), "{} violations\n{}", report.len(), report.join("\n"));
}

/// Runs `check` over every Rust file.
fn check_rust(check: impl Fn(&SourceFile, &RustSource) -> Vec<Violation>) {
    let repository = Repository::open();
    let violations: Vec<Violation> = repository
        .with_extension("rs")
        .flat_map(|file| check(file, &RustSource::new(&file.text)))
        .collect();
    expect_none(&violations);
}

#[test]
fn rust_files_fit_in_600_lines() {
    check_rust(|file, _| hygiene::file_length(file, MAX_FILE_LINES));
}

#[test]
fn functions_fit_in_70_lines() {
    check_rust(|file, source| function_length::check(file, source, MAX_FUNCTION_LINES));
}

#[test]
fn every_rust_file_opens_with_a_header() {
    check_rust(|file, _| hygiene::module_header(file));
}

#[test]
fn every_file_is_named_after_a_noun() {
    check_rust(|file, _| hygiene::file_name(file));
}

#[test]
fn every_todo_names_an_issue() {
    check_rust(hygiene::todo_without_issue);
}

#[test]
fn no_test_is_ignored() {
    check_rust(hygiene::ignored_test);
}

#[test]
fn files_name_no_home_folder() {
    let repository = Repository::open();
    let violations: Vec<Violation> =
        repository.files().iter().flat_map(hygiene::home_folder).collect();
    expect_none(&violations);
}

#[test]
fn names_come_from_the_glossary() {
    let repository = Repository::open();
    let banned = names::banned_names(repository.text("docs/glossary.md"));
    assert!(banned.len() >= 20, "the table of banned names was not found");
    check_rust(|file, source| names::check(file, source, &banned));
}

#[test]
fn crates_depend_only_as_the_architecture_allows() {
    let repository = Repository::open();
    let rules = dependencies::crate_rules(repository.text("ARCHITECTURE.md"));
    let manifests: Vec<&SourceFile> = repository.named("Cargo.toml").collect();
    assert!(manifests.len() >= 9, "the manifests of the workspace were not found");
    expect_none(&dependencies::check(&manifests, &rules));
}

#[test]
fn unsafe_code_stays_on_its_islands() {
    let repository = Repository::open();
    let rules = dependencies::crate_rules(repository.text("ARCHITECTURE.md"));
    check_rust(|file, source| unsafe_code::check_use(file, source, &rules));
    check_rust(|file, source| unsafe_code::check_attribute(file, source, &rules));
}

#[test]
fn links_between_documents_lead_somewhere() {
    let repository = Repository::open();
    let violations: Vec<Violation> =
        repository.with_extension("md").flat_map(|file| links::check(file, &repository)).collect();
    expect_none(&violations);
}

#[test]
fn paths_named_in_documents_exist() {
    let repository = Repository::open();
    let violations: Vec<Violation> = repository
        .with_extension("md")
        .filter(|file| file.path != "CHANGELOG.md")
        .flat_map(|file| links::check_code_paths(file, &repository))
        .collect();
    expect_none(&violations);
}
