//! What a run says about settings, as text for a terminal.

use super::figures::{MISSING, milliseconds_or_dash, number, percent, slo_text};
use super::table::{Align, Table};
use super::terminal::wrapped;
use crate::results::RunResult;
use crate::tune::{Engine, Launch, Targets, Tuning, launch};

/// Returns the levels, the knee, and how to start an engine for it.
pub(crate) fn text(
    run: &RunResult,
    tuning: &Tuning,
    targets: Targets,
    engine: Option<Engine>,
) -> String {
    let rule =
        format!("{} of requests must meet {}", percent(targets.share), slo_text(targets.slo));
    let mut text = format!("{}\n", levels(tuning).text());
    let Some(knee) = tuning.knee.map(|knee| &tuning.levels[knee]) else {
        return text + &none(tuning, &rule);
    };
    let sentence = format!(
        "Knee: {}, {} output tokens/s with {} sequences in flight; {} of requests meet the targets. \
         It is the lowest load within 5 % of the most throughput that does ({rule}).",
        knee.label,
        number(knee.output_tokens_per_s),
        knee.num_in_flight,
        percent(knee.attainment)
    );
    text.push_str(&wrapped("", &sentence));
    if tuning.knee == Some(tuning.levels.len() - 1) {
        let advice = "It is the highest load measured, so the true knee may lie beyond.";
        text.push_str(&wrapped("! ", advice));
    }
    text.push('\n');
    match engine.and_then(|engine| launch(tuning, engine, &run.config.model)) {
        Some(launch) => text.push_str(&launch_text(&launch)),
        None => text.push_str(&wrapped(
            "",
            &format!(
                "The engine is not known. Let it run {} sequences at once, with contexts of {} \
                 tokens; --engine writes the settings.",
                knee.num_in_flight, tuning.context_tokens
            ),
        )),
    }
    text
}

fn levels(tuning: &Tuning) -> Table {
    let mut table = Table::default()
        .column("load", Align::Left)
        .column("out tok/s", Align::Right)
        .column("gain", Align::Right)
        .column("TTFT p50 ms", Align::Right)
        .column("TPOT p50 ms", Align::Right)
        .column("in targets", Align::Right)
        .column("", Align::Left);
    for (i, level) in tuning.levels.iter().enumerate() {
        let gain = level.gain.map(|gain| format!("{:+.0} %", gain * 100.0));
        table.push(vec![
            level.label.clone(),
            number(level.output_tokens_per_s),
            gain.unwrap_or_else(|| MISSING.to_owned()),
            milliseconds_or_dash(level.ttft_p50),
            milliseconds_or_dash(level.tpot_p50),
            percent(level.attainment),
            if tuning.knee == Some(i) { "← knee".to_owned() } else { String::new() },
        ]);
    }
    table
}

/// Says that no level meets the targets.
fn none(tuning: &Tuning, rule: &str) -> String {
    let best = tuning.levels.iter().max_by(|a, b| a.attainment.total_cmp(&b.attainment));
    let best = best.map_or_else(String::new, |best| {
        format!(" The best is {}, where {} do.", best.label, percent(best.attainment))
    });
    let sentence = format!(
        "No level meets the targets ({rule}), so there is nothing to recommend.{best} A smaller or \
         quantised model, a faster machine or other targets would be needed."
    );
    wrapped("", &sentence)
}

fn launch_text(launch: &Launch) -> String {
    let mut text = format!("  {}\n\n", super::figures::plain(&launch.command));
    for (setting, reason) in &launch.settings {
        text.push_str(&wrapped("- ", &format!("{setting}: {reason}")));
    }
    text
}
