//! Runs as one HTML file that is complete in itself.
//!
//! The tables are plain HTML and hold all figures; charts and sliders come from a script in the
//! file. Nothing is loaded, from anywhere: a content security policy in the file forbids it, and
//! allows the one script and the one style sheet by their hashes, so that a text from outside
//! could not run even if it became markup. Every text from outside is escaped in HTML and in JSON,
//! and enters the document as text nodes.
//!
//! Pure: the same runs give the same file.

mod command_line;
mod configuration;
mod levels;
mod markup;
mod notice;
mod payload;

use super::caption;
use crate::results::{RunResult, Severity};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use markup::{Table, escape};
use payload::Payload;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write;

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// The parts of the script, each building on those before it.
const SCRIPT_PARTS: [&str; 8] = [
    include_str!("number.js"),
    include_str!("dom.js"),
    include_str!("data.js"),
    include_str!("scale.js"),
    include_str!("chart.js"),
    include_str!("timeline.js"),
    include_str!("tables.js"),
    include_str!("page.js"),
];

/// What the page's words mean.
const TERMS: [(&str, &str); 9] = [
    (
        "TTFT",
        "time to first token: from when a request was due until its first piece of text. In a \
         closed loop a request is due when it is sent; in an open loop when its arrival was drawn, \
         so that a server or client that falls behind cannot hide it.",
    ),
    (
        "TPOT",
        "time per output token after the first, for each request: (E2E − TTFT) / (output tokens \
         − 1). Percentiles are over requests.",
    ),
    (
        "ITL",
        "each gap between pieces of text of one request. Percentiles are over gaps. One piece may \
         hold several tokens.",
    ),
    ("E2E", "from when a request was due until its stream ended."),
    ("Output throughput", "output tokens of completed requests per second of the whole load."),
    (
        "Target (SLO)",
        "a request meets it when it ended well and neither TTFT nor TPOT is above its target. A \
         request of one token has no TPOT and can fail on TTFT only. Attainment is the share of all \
         requests, failed ones included.",
    ),
    ("Goodput", "requests per second that met the target."),
    (
        "90 % in target up to",
        "the highest load at which 90 % of the requests met the target, interpolated between the \
         last load measured that holds and the first that does not.",
    ),
    (
        "Bands and whiskers",
        "95 % confidence interval of the mean over repeats, by Student's t; the point is of all \
         repeats together.",
    ),
];

/// Returns runs as one HTML file: tables, charts, and sliders that count the SLO again.
#[must_use]
pub fn page(runs: &[RunResult]) -> String {
    let script = format!("\"use strict\";\n{}", SCRIPT_PARTS.join("\n"));
    let labels: Vec<&str> = runs.iter().map(|run| run.label.as_str()).collect();
    let title = match labels.len() {
        0..=4 => labels.join(" · "),
        number => format!("{number} runs: {} …", labels[..3].join(" · ")),
    };
    let (config, environment) = configuration::tables(runs);
    let hint = "TTFT and TPOT are at each run's lowest load unless chosen otherwise.";
    let version = env!("CARGO_PKG_VERSION");
    fill(
        TEMPLATE,
        &[
            ("STYLE_HASH", &hash_source(STYLE)),
            ("SCRIPT_HASH", &hash_source(&script)),
            ("VERSION", version),
            ("TITLE", &escape(&format!("{title} – servebench"))),
            ("STYLE", STYLE),
            ("HEADING", &escape(&title)),
            ("LEAD", &escape(&lead(runs))),
            ("NOTICES", &notices_html(runs)),
            ("HEADLINE", &levels::headline(runs).to_html()),
            ("HEADLINE_HINT", hint),
            ("LEVELS", &levels::every_level(runs).to_html()),
            ("ERRORS", &section("h-errors", "Failed requests", &levels::errors(runs))),
            ("DIAGNOSIS", &diagnosis_html(runs)),
            ("SERVER", &section("h-server", "What the servers say", &levels::server_metrics(runs))),
            ("GPU", &section("h-gpu", "GPU", &levels::gpu(runs))),
            ("COMMANDS", &commands_html(runs)),
            ("CONFIG", &under_heading("What was asked", &config)),
            ("ENVIRONMENT", &under_heading("Where it ran", &environment)),
            ("TERMS", &terms_html()),
            ("DATA", &Payload::new(runs).to_inert_json()),
            ("SCRIPT", &script),
        ],
    )
}

/// Replaces each `{{NAME}}` of the template once; what a value contains is left alone.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").expect("the template closes what it opens");
        let value = values.iter().find(|(known, _)| *known == name);
        let (_, value) = value.expect("the template names only values that there are");
        filled.push_str(before);
        filled.push_str(value);
        rest = after;
    }
    filled + rest
}

/// Returns the hash by which a content security policy allows a text between tags.
fn hash_source(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

/// Returns what was compared, on what, when, in a sentence or two.
fn lead(runs: &[RunResult]) -> String {
    let distinct = |values: Vec<Option<String>>| {
        let values: BTreeSet<String> =
            values.into_iter().flatten().filter(|value| !value.is_empty()).collect();
        values.into_iter().collect::<Vec<_>>()
    };
    let models = distinct(runs.iter().map(|run| Some(run.config.model.clone())).collect());
    let machines = distinct(runs.iter().map(caption::machine).collect());
    let times: Vec<String> =
        distinct(runs.iter().map(|run| Some(day(&run.environment.timestamp).to_owned())).collect());
    let num_requests: usize =
        runs.iter().flat_map(|run| &run.levels).map(|level| level.requests.len()).sum();
    let mut parts = Vec::new();
    if !models.is_empty() {
        parts.push(models.join(", "));
    }
    parts.extend(machines);
    parts.extend(match (times.first(), times.last()) {
        (Some(first), Some(last)) if first != last => Some(format!("{first} to {last}")),
        (first, _) => first.cloned(),
    });
    parts.push(format!("{num_requests} requests"));
    parts.join(" · ")
}

/// Returns date and time of an RFC 3339 timestamp to the minute; the whole text if it is none.
fn day(timestamp: &str) -> &str {
    timestamp.get(..16).filter(|start| start.as_bytes()[10] == b'T').unwrap_or(timestamp)
}

fn notices_html(runs: &[RunResult]) -> String {
    let notices = notice::notices(runs);
    if notices.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<aside class=\"notices\" aria-labelledby=\"h-notices\"><h2 id=\"h-notices\">Before you \
         compare</h2><ul>",
    );
    for notice in notices {
        let _ = write!(html, "<li>{}.</li>", escape(&notice));
    }
    html + "</ul></aside>"
}

fn section(id: &str, title: &str, table: &Table) -> String {
    if table.is_empty() {
        return String::new();
    }
    let html = table.to_html();
    format!("<section aria-labelledby=\"{id}\"><h2 id=\"{id}\">{title}</h2>\n{html}</section>")
}

fn under_heading(title: &str, table: &Table) -> String {
    if table.is_empty() {
        return String::new();
    }
    format!("<h3>{title}</h3>\n{}", table.to_html())
}

fn diagnosis_html(runs: &[RunResult]) -> String {
    let mut html = String::new();
    for run in runs {
        let findings = run.bottleneck_diagnosis.iter().flat_map(|diagnosis| &diagnosis.findings);
        let mut findings: Vec<String> = findings.map(finding_html).collect();
        for level in payload::by_load(run) {
            for sentence in level.bottlenecks.iter().flatten() {
                findings.push(format!(
                    "<div class=\"finding\"><p><span class=\"tag\">{}</span>{}</p></div>",
                    escape(&level.label()),
                    escape(sentence)
                ));
            }
        }
        if !findings.is_empty() {
            let _ = write!(
                html,
                "<details open><summary>{}</summary>{}</details>",
                escape(&run.label),
                findings.concat()
            );
        }
    }
    if html.is_empty() {
        return html;
    }
    format!(
        "<section aria-labelledby=\"h-diagnosis\"><h2 id=\"h-diagnosis\">What limits each \
         run</h2>{html}</section>"
    )
}

fn finding_html(finding: &crate::results::Finding) -> String {
    let (severity, class) = match finding.severity {
        Severity::Info => ("info", "tag"),
        Severity::Low => ("low", "tag"),
        Severity::Medium => ("medium", "tag"),
        Severity::High => ("high", "tag high"),
    };
    let items: String = finding
        .evidence
        .iter()
        .chain(&finding.recommendations)
        .map(|sentence| format!("<li>{}</li>", escape(sentence)))
        .collect();
    format!(
        "<div class=\"finding\"><p><span class=\"{class}\">{} · {severity}</span>{}</p><ul>{items}\
         </ul></div>",
        escape(&finding.category),
        escape(&finding.headline)
    )
}

fn commands_html(runs: &[RunResult]) -> String {
    let mut html = String::from("<h3>Commands that measure the same loads</h3>\n");
    for run in runs {
        let command = command_line::command_line(&run.config);
        let _ = write!(
            html,
            "<pre><code># {}\n{}</code></pre>\n",
            escape(&run.label.replace(['\n', '\r'], " ")),
            escape(&command)
        );
    }
    html
}

fn terms_html() -> String {
    let mut html = String::from("<dl>");
    for (term, meaning) in TERMS {
        let _ = write!(html, "<dt>{term}</dt><dd>{meaning}</dd>");
    }
    html + "</dl>"
}
