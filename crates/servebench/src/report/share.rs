//! A result as Markdown, to paste into a post or an issue.
//!
//! Says enough of how it was measured that others can compare like with like. Names come from
//! servers and files: what would be markup in them stands for itself.

use super::{caption, number};
use crate::results::{LevelResult, Mode, RunResult};
use std::fmt::Write;

/// Returns a run as Markdown.
#[must_use]
pub fn markdown(run: &RunResult) -> String {
    let mut text =
        format!("**{}, {}**", literal(&caption::engine(run)), literal(&run.config.model));
    if let Some(machine) = caption::machine(run) {
        // A backslash at the end of a line is a line break.
        let _ = write!(text, "\\\nMachine: {}", literal(&machine));
    }
    text.push_str("\n\n");
    text.push_str(&table(run));
    if let Some(capacity) = &run.capacity {
        let _ = write!(text, "\n**Capacity: {}**", caption::capacity(capacity));
        if let Some(slo) = caption::slo(capacity.slo_ttft_ms, capacity.slo_tpot_ms) {
            let share = number::percent(capacity.target);
            let _ = write!(text, " ({slo}, for {share} % of the requests)");
        }
        text.push('\n');
    } else if let Some(slo) = caption::slo(run.config.slo_ttft_ms, run.config.slo_tpot_ms) {
        let _ = writeln!(text, "\nTarget: {slo}.");
    }
    let _ = writeln!(text, "\n<sub>Measured with servebench{}</sub>", literal(&method(run)));
    text
}

fn table(run: &RunResult) -> String {
    let load = match run.config.mode {
        Mode::Concurrency => "Users at once",
        Mode::Rate => "Requests/s offered",
    };
    let mut levels: Vec<&LevelResult> = run.levels.iter().collect();
    levels.sort_by(|a, b| a.value.0.total_cmp(&b.value.0));
    // A column of zeros says nothing; a failure must be seen.
    let has_failed = levels.iter().any(|level| level.summary.failed > 0);
    let mut table = format!(
        "| {load} | Output tokens/s | Tokens/s for each | TTFT p50 / p99, ms | TPOT p50, ms | In \
         target |{}\n|---:|---:|---:|---:|---:|---:|{}\n",
        if has_failed { " Failed |" } else { "" },
        if has_failed { "---:|" } else { "" },
    );
    for level in levels {
        let summary = &level.summary;
        let unknown = || number::UNKNOWN.to_owned();
        let each = summary.tpot.p50.filter(|tpot| *tpot > 0.0);
        let in_target = summary.slo_attainment;
        let _ = write!(
            table,
            "| {} | {} | {} | {} / {} | {} | {} |",
            number::exact(level.value.0),
            number::short(summary.output_throughput),
            each.map_or_else(unknown, |tpot| number::short(1.0 / tpot)),
            number::milliseconds(summary.ttft.p50),
            number::milliseconds(summary.ttft.p99),
            number::milliseconds(summary.tpot.p50),
            in_target.map_or_else(unknown, |share| format!("{} %", number::percent(share))),
        );
        if has_failed {
            let _ = write!(table, " {} |", summary.failed);
        }
        table.push('\n');
    }
    table
}

/// Returns how it was measured, from the version on.
fn method(run: &RunResult) -> String {
    let config = &run.config;
    let version = &run.environment.servebench_version;
    let mut text = if version.is_empty() { String::new() } else { format!(" {version}") };
    let _ = match &config.trace {
        Some(trace) => write!(text, ": trace {trace}"),
        None => write!(
            text,
            ": {} prompts of {} tokens, {} tokens of output",
            config.prompts, config.input_len, config.output_len
        ),
    };
    let route = match config.endpoint {
        crate::results::Endpoint::Chat => "chat",
        crate::results::Endpoint::Completions => "completions",
    };
    let _ = write!(text, ", {route} endpoint, seed {}.", config.seed);
    text
}

/// Returns a text on one line whose signs all stand for themselves.
fn literal(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '<' | '>' | '#' | '|' | '~' | '&' => {
                escaped.extend(['\\', sign]);
            }
            sign if sign.is_control() => escaped.push(' '),
            sign => escaped.push(sign),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{CapacityReason, CapacityResult, Slo};
    use crate::statistics::sample_requests::{even_request, failed_request, level_of, run_of};

    const SLO: Slo = Slo { ttft_ms: Some(500.0), tpot_ms: Some(50.0) };

    fn run() -> RunResult {
        let level = |load: f64| {
            let requests = (0..4).map(|i| even_request(i, 0.0, 0.1, 0.02, 50)).collect();
            level_of(Mode::Concurrency, load, requests, 2.0, SLO)
        };
        run_of("label", vec![level(4.0), level(1.0)])
    }

    #[test]
    fn a_run_is_a_table_by_load_with_what_was_measured() {
        let mut run = run();
        run.environment.engine = Some("engine".to_owned());
        run.environment.cpu = Some("a_cpu".to_owned());
        run.capacity = Some(CapacityResult {
            mode: Mode::Concurrency,
            target: 0.9,
            slo_ttft_ms: Some(500.0),
            slo_tpot_ms: None,
            capacity: Some(4.0),
            first_fail: None,
            reason: CapacityReason::MaxReached,
        });
        assert_eq!(
            markdown(&run),
            "**engine, small**\\\n\
             Machine: a\\_cpu\n\
             \n\
             | Users at once | Output tokens/s | Tokens/s for each | TTFT p50 / p99, ms | TPOT p50, ms | In target |\n\
             |---:|---:|---:|---:|---:|---:|\n\
             | 1 | 100 | 50.0 | 100 / 100 | 20.0 | 100 % |\n\
             | 4 | 100 | 50.0 | 100 / 100 | 20.0 | 100 % |\n\
             \n\
             **Capacity: at least 4 users at once** (first token within 500 ms, for 90 % of the requests)\n\
             \n\
             <sub>Measured with servebench: synthetic prompts of 256 tokens, 128 tokens of output, chat endpoint, seed 0.</sub>\n"
        );
    }

    #[test]
    fn failures_are_seen() {
        let mut run = run();
        let requests = vec![failed_request(0, 0.0, "HTTP 500: no")];
        run.levels.push(level_of(Mode::Concurrency, 8.0, requests, 1.0, SLO));
        let text = markdown(&run);
        assert!(text.contains("| In target | Failed |\n"), "{text}");
        assert!(text.contains("| 8 | 0 | – | – / – | – | 0 % | 1 |\n"), "{text}");
        assert!(text.contains("| 100 % | 0 |\n"), "{text}");
    }

    #[test]
    fn names_are_no_markup() {
        let mut run = run();
        run.config.model = "a|b\n# *c* <img> [d](e) `f`".to_owned();
        let first = markdown(&run);
        let first = first.lines().next().unwrap();
        assert_eq!(first, r"**label, a\|b \# \*c\* \<img\> \[d\](e) \`f\`**");
    }
}
