//! One run as text for a terminal of 100 columns.

use super::figures::plain;
use super::run_sentences::{capacity_sentence, goodput_sentences, measurement, origin, workload};
use super::run_tables::tables;
use crate::diagnosis::{findings_about_server, warnings};
use crate::results::{RunResult, Severity};

/// Columns that sentences keep to, where a word is not longer.
const WIDTH: usize = 100;

/// Returns one run as text: what was measured, its tables, what limits the server, and what to
/// mind.
#[must_use]
pub fn run_text(run: &RunResult) -> String {
    let config = &run.config;
    let mut text = wrapped("", &format!("{} · {} at {}", run.label, config.model, config.url));
    let notes = run.environment.notes.clone().unwrap_or_default();
    for line in [origin(run), workload(config), notes] {
        text.push_str(&wrapped("", &line));
    }
    text.push('\n');
    if run.levels.is_empty() {
        text.push_str("No level was measured.\n");
        return text;
    }
    for (table, explanation) in tables(run) {
        text.push_str(&table.text());
        text.push_str(&wrapped("", &explanation));
        text.push('\n');
    }
    text.push_str(&wrapped("", &measurement(run)));
    for sentence in goodput_sentences(run).into_iter().chain(capacity_sentence(run)) {
        text.push_str(&wrapped("", &sentence));
    }
    text.push('\n');
    text.push_str(&limits(run));
    for warning in warnings(run) {
        text.push_str(&wrapped("! ", &warning));
    }
    text
}

/// Returns what limits the server, with the figures that show it and what to do.
fn limits(run: &RunResult) -> String {
    let mut text = String::new();
    for finding in findings_about_server(run) {
        let mark = if finding.severity >= Severity::Medium { "● " } else { "○ " };
        text.push_str(&wrapped(mark, &finding.headline));
        for evidence in &finding.evidence {
            text.push_str(&wrapped("  - ", evidence));
        }
        for recommendation in &finding.recommendations {
            text.push_str(&wrapped("  → ", recommendation));
        }
    }
    if text.is_empty() { text } else { text + "\n" }
}

/// Returns a text as lines of at most [`WIDTH`] characters: the first opens with `mark`, the others
/// are indented as far. Nothing of nothing.
pub(super) fn wrapped(mark: &str, text: &str) -> String {
    let indent = " ".repeat(mark.chars().count());
    let mut lines = String::new();
    let mut line = String::new();
    for word in plain(text).split(' ').filter(|word| !word.is_empty()) {
        let length = indent.len() + line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && length > WIDTH {
            push_line(&mut lines, mark, &indent, &line);
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        push_line(&mut lines, mark, &indent, &line);
    }
    lines
}

fn push_line(lines: &mut String, mark: &str, indent: &str, line: &str) {
    let opening = if lines.is_empty() { mark } else { indent };
    lines.push_str(opening);
    lines.push_str(line);
    lines.push('\n');
}
