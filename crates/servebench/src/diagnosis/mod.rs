//! What limits a server, read from its levels, and what makes the figures doubtful.
//!
//! The one list of warnings: every report takes them from here. A finding says what was seen, with
//! its figures, and what to do. Findings about the measurement come with those about the server, and
//! a client that could not keep up comes first, because then nothing else says much.
//!
//! Rules look at one level against the next, never at names of engines. They cannot see inside the
//! server: they say what the figures look like, and which setting would change it.

mod measurement;
mod server;

use crate::results::{Diagnosis, Finding, LevelResult, RunResult, Severity};

/// A finding and what it is about.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    about: About,
    finding: Finding,
}

/// What a finding is about, in the order in which findings of one severity are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    /// The client could not keep up.
    Client,
    /// Something limits the server.
    Server,
    /// The figures are not what one may take them for.
    Measurement,
}

impl Found {
    fn new(about: About, category: &str, severity: Severity, headline: String) -> Self {
        let finding =
            Finding { category: category.to_owned(), severity, headline, ..Finding::default() };
        Self { about, finding }
    }

    fn evidence(mut self, evidence: impl IntoIterator<Item = String>) -> Self {
        self.finding.evidence.extend(evidence);
        self
    }

    fn advice(mut self, recommendation: &str) -> Self {
        self.finding.recommendations.push(recommendation.to_owned());
        self
    }
}

/// Returns what limits the server, and what to do about it. What matters most comes first, but a
/// client that cannot keep up comes before everything.
#[must_use]
pub fn diagnose(run: &RunResult) -> Diagnosis {
    if run.levels.iter().all(|level| level.summary.completed == 0) {
        return undecided(run);
    }
    let mut found = found(run);
    if found.iter().all(|found| found.about != About::Server) {
        found.push(balanced());
    }
    // Few samples do not make a server slow.
    let decides = |found: &&Found| {
        found.about != About::Measurement || found.finding.severity == Severity::High
    };
    let primary = found.iter().find(decides).map(|found| found.finding.category.clone());
    let worst = found.iter().filter(decides).map(|found| found.finding.severity).max();
    Diagnosis {
        primary_bottleneck: primary.unwrap_or_default(),
        overall_health: match worst {
            Some(Severity::High) => "bottlenecked",
            Some(Severity::Medium) => "degraded",
            Some(Severity::Low | Severity::Info) | None => "excellent",
        }
        .to_owned(),
        findings: found.into_iter().map(|found| found.finding).collect(),
    }
}

/// Returns what makes the figures of a run doubtful, one sentence or two for each.
#[must_use]
pub fn warnings(run: &RunResult) -> Vec<String> {
    let doubtful = found(run).into_iter().filter(|found| found.about != About::Server);
    doubtful
        .map(|Found { finding, .. }| {
            let sentences = std::iter::once(finding.headline)
                .chain(finding.evidence)
                .chain(finding.recommendations);
            sentences.collect::<Vec<String>>().join(" ")
        })
        .collect()
}

/// Returns what limits the server, without what makes the figures doubtful.
#[must_use]
pub fn findings_about_server(run: &RunResult) -> Vec<Finding> {
    let found = found(run).into_iter().filter(|found| found.about == About::Server);
    let mut findings: Vec<Finding> = found.map(|found| found.finding).collect();
    let has_completed = run.levels.iter().any(|level| level.summary.completed > 0);
    if has_completed && findings.is_empty() {
        findings.push(balanced().finding);
    }
    findings
}

/// Returns all findings: the client first, then by severity.
fn found(run: &RunResult) -> Vec<Found> {
    let mut found = measurement::findings(run);
    found.extend(server::findings(run));
    found.sort_by_key(|found| {
        let severity = std::cmp::Reverse(found.finding.severity);
        (found.about != About::Client, severity, found.about)
    });
    found
}

fn balanced() -> Found {
    let headline = "No limit of the server shows within the loads measured.".to_owned();
    Found::new(About::Server, "Balanced", Severity::Info, headline)
        .advice("Measure higher loads to find it.")
}

/// Returns what can be said when no request completed.
fn undecided(run: &RunResult) -> Diagnosis {
    let mut findings: Vec<Finding> = found(run).into_iter().map(|found| found.finding).collect();
    if findings.is_empty() {
        let headline = "No request completed, so nothing can be said.".to_owned();
        findings.push(Finding {
            category: "Insufficient Data".to_owned(),
            headline,
            ..Finding::default()
        });
    }
    Diagnosis {
        primary_bottleneck: "Insufficient Data".to_owned(),
        overall_health: "unknown".to_owned(),
        findings,
    }
}

/// Returns what some levels are called, as a list in a sentence.
fn labels(levels: &[&LevelResult]) -> String {
    levels.iter().map(|level| level.label()).collect::<Vec<String>>().join(", ")
}
