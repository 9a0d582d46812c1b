//! Names come from the glossary.
//!
//! Looks only at names that this repository gives: what follows `fn`, `struct`, `let` and the
//! like, fields, parameters and variants. So `tokio::task` and `std::cell` stay usable where
//! `task` and `cell` are banned.

use crate::markdown;
use crate::repository::{SourceFile, Violation};
use crate::rust_source::RustSource;

/// Keywords that a new name follows.
const DEFINING_KEYWORDS: [&str; 13] = [
    "as", "const", "enum", "fn", "for", "let", "mod", "mut", "ref", "static", "struct", "trait",
    "type",
];

/// A name that the glossary bans.
pub(crate) struct BannedName {
    /// The words of the name in lower case, such as `seq`, `len`; they are banned in a row,
    /// anywhere in a longer name. A last word `*` stands for one or more, and the first word then
    /// opens the name.
    words: Vec<String>,
    /// What to say instead.
    instead: String,
    /// Parts of paths of files that may use the name.
    exempt: Vec<String>,
}

/// Reads the table of banned names out of the glossary.
pub(crate) fn banned_names(glossary: &str) -> Vec<BannedName> {
    let rows = markdown::table_under(glossary, "## Banned identifiers");
    let row_names = rows.iter().flat_map(|row| {
        markdown::code_spans(&row[0]).map(|name| BannedName {
            words: name.split('_').map(str::to_owned).collect(),
            instead: row[1].clone(),
            exempt: markdown::code_spans(&row[2]).map(str::to_owned).collect(),
        })
    });
    row_names.collect()
}

/// Reports names given in `file` that are banned.
pub(crate) fn check(
    file: &SourceFile,
    source: &RustSource,
    banned: &[BannedName],
) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut previous = "";
    let mut previous_end = 0;
    for (at, word) in source.words() {
        let follows_keyword = DEFINING_KEYWORDS.contains(&previous)
            && source.code[previous_end..at].trim().is_empty();
        previous = word;
        previous_end = at + word.len();
        if !follows_keyword && !is_defined_by_place(&source.code, at, previous_end) {
            continue;
        }
        let words = split_words(word);
        for name in banned {
            let exempt = name.exempt.iter().any(|part| file.path.contains(part.as_str()));
            if !exempt && name.matches(&words) {
                let message = format!("{word} is banned by the glossary: {}", name.instead);
                violations.push(Violation::new(file, source.line_of(at), message));
            }
        }
    }
    violations
}

impl BannedName {
    /// Tells whether the words of an identifier contain this name.
    fn matches(&self, words: &[String]) -> bool {
        match self.words.split_last() {
            Some((last, first)) if last == "*" => {
                words.len() > first.len() && words.starts_with(first)
            }
            _ => words.windows(self.words.len()).any(|window| window == self.words),
        }
    }
}

/// Tells whether the identifier at `start..end` is a field, a parameter, a variant or a closure's
/// parameter, judging by what stands around it.
fn is_defined_by_place(code: &str, start: usize, end: usize) -> bool {
    let before = code[..start].trim_end();
    let after = code[end..].trim_start();
    if before.ends_with("::") || before.ends_with('.') || after.starts_with("::") {
        return false;
    }
    let is_field_or_parameter = after.starts_with(':');
    let is_closure_parameter = before.ends_with('|') && after.starts_with(['|', ',']);
    let opens_line = code[..start].rsplit('\n').next().is_some_and(|line| line.trim().is_empty());
    let is_variant = opens_line
        && code[start..].starts_with(|first: char| first.is_ascii_uppercase())
        && after.starts_with([',', '(', '{', '}']);
    is_field_or_parameter || is_closure_parameter || is_variant
}

/// Splits `snake_case` and `CamelCase` into words in lower case.
fn split_words(identifier: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut after_lower = false;
    for c in identifier.chars() {
        let starts_word = words.is_empty() || (c.is_ascii_uppercase() && after_lower);
        if c == '_' || starts_word {
            words.push(String::new());
        }
        if c != '_' {
            let word = words.last_mut().expect("the first character starts a word");
            word.push(c.to_ascii_lowercase());
        }
        after_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOSSARY: &str = "## Banned identifiers\n| a | b | c |\n|---|---|---|\n\
        | `page` | block | `mmap` |\n| `seq_len` | `context_lens` | |\n| `n_*` | `num_x` | |\n\
        | `task` | request | |";

    fn reported(path: &str, text: &str) -> Vec<String> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        let violations = check(&file, &RustSource::new(text), &banned_names(GLOSSARY));
        let name = |violation: &Violation| {
            violation.message.split(' ').next().unwrap_or_default().to_owned()
        };
        violations.iter().map(name).collect()
    }

    #[test]
    fn banned_words_are_found_in_every_kind_of_definition() {
        assert_eq!(reported("a.rs", "struct PageTable;"), ["PageTable"]);
        assert_eq!(reported("a.rs", "fn page(max_seq_len: u32) {}"), ["page", "max_seq_len"]);
        assert_eq!(reported("a.rs", "let mut page = 1;"), ["page"]);
        assert_eq!(reported("a.rs", "struct S {\n    page: u32,\n}"), ["page"]);
        assert_eq!(reported("a.rs", "enum E {\n    Page,\n}"), ["Page"]);
        assert_eq!(reported("a.rs", "v.map(|page| 1)"), ["page"]);
        assert_eq!(reported("a.rs", "for n_rows in 0..2 {}"), ["n_rows"]);
        assert_eq!(reported("a.rs", "use x as page;"), ["page"]);
    }

    #[test]
    fn names_of_others_longer_words_and_literals_pass() {
        assert_eq!(reported("a.rs", "tokio::task::spawn(f)"), Vec::<String>::new());
        assert_eq!(reported("a.rs", "let stage = pages; let n = 1;"), Vec::<String>::new());
        assert_eq!(reported("a.rs", "// fn page\nlet s = \"let page\";"), Vec::<String>::new());
    }

    #[test]
    fn exempt_files_may_use_the_name() {
        assert_eq!(reported("src/mmap.rs", "let page = 1;"), Vec::<String>::new());
        assert_eq!(reported("src/mmap.rs", "let seq_len = 1;"), ["seq_len"]);
    }

    #[test]
    fn identifiers_split_at_underscores_and_capitals() {
        assert_eq!(split_words("KvPageTable"), ["kv", "page", "table"]);
        assert_eq!(split_words("MAX_SEQ_LEN"), ["max", "seq", "len"]);
        assert_eq!(split_words("_q8_0"), ["q8", "0"]);
    }
}
