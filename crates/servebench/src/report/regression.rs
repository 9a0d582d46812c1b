//! A check against a baseline as text for a terminal.

use super::figures::{MISSING, number_or_dash};
use super::table::{Align, Table};
use super::terminal::wrapped;
use crate::check::{CheckReport, Verdict};

/// Returns the figures of a check, and why it failed.
pub(crate) fn text(report: &CheckReport) -> String {
    let mut table = Table::default()
        .column("load", Align::Left)
        .column("figure", Align::Left)
        .column("baseline", Align::Right)
        .column("candidate", Align::Right)
        .column("", Align::Left)
        .column("change", Align::Right)
        .column("limit", Align::Right)
        .column("", Align::Left);
    for (i, level) in report.levels.iter().enumerate() {
        if i > 0 {
            table.separate();
        }
        for metric in &level.metrics {
            let change = metric.change_pct.map(|change| format!("{change:+.1} %"));
            let verdict = match metric.verdict {
                Verdict::Pass => "",
                Verdict::Noise => "noise",
                Verdict::Fail => "WORSE",
            };
            table.push(vec![
                level.label.clone(),
                metric.metric.to_owned(),
                number_or_dash(metric.baseline),
                number_or_dash(metric.candidate),
                metric.unit.to_owned(),
                change.unwrap_or_else(|| MISSING.to_owned()),
                format!("{} %", metric.threshold_pct),
                verdict.to_owned(),
            ]);
        }
    }
    let mut text =
        wrapped("", &format!("{} against {}", report.candidate_label, report.baseline_label));
    text.push('\n');
    if !table.is_empty() {
        text.push_str(&table.text());
        text.push('\n');
    }
    for note in &report.notes {
        text.push_str(&wrapped("! ", note));
    }
    if report
        .levels
        .iter()
        .flat_map(|level| &level.metrics)
        .any(|metric| metric.verdict == Verdict::Noise)
    {
        text.push_str(&wrapped(
            "! ",
            "noise: worse by more than allowed, but chance explains it (Welch's test over the \
             repeats, 95 %).",
        ));
    }
    for failure in &report.failures {
        text.push_str(&wrapped("✗ ", failure));
    }
    text.push_str(if report.passed {
        "PASSED: nothing is worse by more than allowed.\n"
    } else {
        "FAILED\n"
    });
    text
}
