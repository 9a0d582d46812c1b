//! Runs as Markdown: set side by side when there are several, then each for itself.

use super::comparison;
use super::run_sentences::{capacity_sentence, goodput_sentences, measurement, origin, workload};
use super::run_tables::tables;
use super::table::escape_markdown;
use crate::diagnosis::{findings_about_server, warnings};
use crate::results::RunResult;

/// Returns runs as one Markdown document.
#[must_use]
pub fn report_text(runs: &[RunResult]) -> String {
    let mut text = "# Servebench report\n".to_owned();
    if runs.len() > 1 {
        text.push_str("\n## Comparison\n\n");
        text.push_str(&comparison::markdown(runs));
    }
    for run in runs {
        text.push_str(&section(run));
    }
    text
}

/// Returns the section of one run.
fn section(run: &RunResult) -> String {
    let config = &run.config;
    let mut text = format!("\n## {}\n\n", escape_markdown(&run.label));
    let model = format!("{} at {}", config.model, config.url);
    let notes = run.environment.notes.clone().unwrap_or_default();
    text.push_str(&list([model, origin(run), workload(config), notes]));
    if run.levels.is_empty() {
        return text + "\nNo level was measured.\n";
    }
    for (table, explanation) in tables(run) {
        text.push_str(&format!("\n{}", table.markdown()));
        if !explanation.is_empty() {
            text.push_str(&format!("\n{}\n", escape_markdown(&explanation)));
        }
    }
    let sentences = std::iter::once(measurement(run))
        .chain(goodput_sentences(run))
        .chain(capacity_sentence(run));
    text.push_str(&format!("\n{}", list(sentences)));
    let limits = findings_about_server(run).into_iter().map(|finding| {
        let sentences = std::iter::once(finding.headline)
            .chain(finding.evidence)
            .chain(finding.recommendations);
        sentences.collect::<Vec<String>>().join(" ")
    });
    text.push_str(&format!("\n### What limits the server\n\n{}", list(limits)));
    let warnings = warnings(run);
    if !warnings.is_empty() {
        text.push_str(&format!("\n### What to mind\n\n{}", list(warnings)));
    }
    text
}

/// Returns texts as a list; empty ones are left out.
pub(super) fn list(texts: impl IntoIterator<Item = String>) -> String {
    let texts = texts.into_iter().filter(|text| !text.is_empty());
    texts.map(|text| format!("- {}\n", escape_markdown(&text))).collect()
}
