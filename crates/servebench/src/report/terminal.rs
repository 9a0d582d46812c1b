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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{CapacityReason, CapacityResult, GpuSummary, LevelResult, Mode, Slo};
    use crate::statistics::sample_requests::{even_request, level_of, run_of};
    use crate::statistics::{as_f64, merge_repeats};
    use std::collections::BTreeMap;

    const SLO: Slo = Slo { ttft_ms: Some(500.0), tpot_ms: Some(50.0) };

    fn level(load: f64) -> LevelResult {
        let requests = (0..20).map(|i| even_request(i, as_f64(i), 0.1, 0.01, 11)).collect();
        level_of(Mode::Concurrency, load, requests, 20.0, SLO)
    }

    #[test]
    fn a_run_with_everything_fits_into_100_columns() {
        let mut run = run_of("a run", vec![level(1.0), level(2.0)]);
        run.levels.push(merge_repeats(vec![level(512.0), level(512.0)], SLO).unwrap());
        let gpu = GpuSummary { avg_gpu_util: Some(97.5), ..GpuSummary::default() };
        run.levels[1].gpu_telemetry = Some(gpu);
        run.levels[1].summary.server_prefill_ms.count = 1;
        run.levels[1].prometheus_metrics =
            Some(BTreeMap::from([("num_requests_running".to_owned(), 2.0)]));
        run.environment.notes = Some("word ".repeat(60));
        run.capacity = Some(CapacityResult {
            mode: Mode::Concurrency,
            target: 0.9,
            slo_ttft_ms: Some(500.0),
            slo_tpot_ms: Some(50.0),
            capacity: Some(2.0),
            first_fail: Some(512.0),
            reason: CapacityReason::Converged,
        });
        let text = run_text(&run);
        for part in [
            "c=512 (×2)",
            "11.0",
            "TTFT ms",
            "worst",
            "±",
            "GPU %",
            "97.5",
            "server ms",
            "num_requests_running",
            "Capacity: 2 users at once (100 % met it); not 512",
            "Tokens counted by the server's usage",
            "client lag p99",
            "99 % of requests meet TTFT ≤ 500 ms and TPOT ≤ 50 ms up to at least 512",
            "! Under 100 requests completed",
        ] {
            assert!(text.contains(part), "{part:?} is missing:\n{text}");
        }
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 100).collect();
        assert_eq!(wide, Vec::<&str>::new());
    }

    #[test]
    fn figures_that_were_not_measured_are_dashes_and_empty_tables_are_left_out() {
        let mut one_token = level(1.0);
        for request in &mut one_token.requests {
            *request = even_request(request.index, request.start, 0.1, 0.01, 1);
        }
        one_token.summary = crate::statistics::summarize(&one_token.requests, 20.0, Slo::default());
        let text = run_text(&run_of("a", vec![one_token]));
        let latency = text.lines().filter(|line| line.starts_with("c=1")).nth(1).unwrap();
        let figures: Vec<&str> = latency.split_whitespace().collect();
        assert_eq!(figures[5..10], ["–"; 5], "{text}");
        assert!(
            !text.contains("GPU") && !text.contains("±") && !text.contains("Capacity"),
            "{text}"
        );
        assert!(!text.contains("of requests meet"), "there is no SLO:\n{text}");
    }

    #[test]
    fn a_run_without_levels_says_so() {
        assert!(run_text(&run_of("a", Vec::new())).ends_with("No level was measured.\n"));
    }

    #[test]
    fn other_peoples_words_cannot_steer_the_terminal() {
        let mut run = run_of("\u{1b}]0;title\u{7}\nfake line", vec![level(1.0)]);
        run.config.model = "\u{1b}[31mred".to_owned();
        run.environment.notes = Some("two\nlines".to_owned());
        let kinds = BTreeMap::from([("\u{1b}[2J".to_owned(), 1)]);
        (run.levels[0].summary.errors, run.levels[0].summary.failed) = (kinds, 1);
        let text = run_text(&run);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text:?}");
        assert!(!text.contains("\nfake line") && !text.contains("\nlines"), "{text}");
    }

    #[test]
    fn long_sentences_wrap_below_their_beginning() {
        let text = wrapped("! ", &"word ".repeat(30));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("! word") && lines[1].starts_with("  word"));
        assert_eq!(wrapped("! ", "  "), "");
        assert_eq!(wrapped("", &"x".repeat(120)).lines().count(), 1, "words stay whole");
    }
}
