//! Several runs side by side, level by level, against the first.
//!
//! A ratio is shown only where both runs measured the level. With repeats on both sides, a
//! difference that chance explains is marked. What makes runs incomparable is said before the
//! figures.

use super::figures::{
    MISSING, milliseconds_or_dash, number_or_dash, percent_or_dash, shortened, slo_text,
};
use super::markdown::list;
use super::run_sentences::slo_of;
use super::table::{Align, Table};
use super::terminal::wrapped;
use crate::results::{LevelResult, RepeatMetric, RunConfig, RunResult};
use crate::statistics::{Difference, difference};

/// Characters of a run's name in a table.
const NAME_WIDTH: usize = 16;

/// Characters of a ratio and its mark.
const RATIO_WIDTH: usize = 6;

/// Returns the comparison as text for a terminal.
#[must_use]
pub fn text(runs: &[RunResult]) -> String {
    let mut text = String::new();
    for sentence in doubts(runs) {
        text.push_str(&wrapped("! ", &sentence));
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(&table(runs).text());
    text.push('\n');
    for sentence in legend(runs) {
        text.push_str(&wrapped("", &sentence));
    }
    text
}

/// Returns the comparison as Markdown.
#[must_use]
pub fn markdown(runs: &[RunResult]) -> String {
    let doubts = list(doubts(runs));
    let gap = if doubts.is_empty() { "" } else { "\n" };
    format!("{doubts}{gap}{}\n{}", table(runs).markdown(), list(legend(runs)))
}

/// A level of one run beside the same level of another.
pub(crate) type LevelPair<'a> = (Option<&'a LevelResult>, Option<&'a LevelResult>);

/// Pairs the levels of two runs by what they measure; the second level of one load pairs with the
/// second of the other run. Levels that only one run has come with nothing, all in order of load.
pub(crate) fn pair_levels<'a>(first: &'a RunResult, second: &'a RunResult) -> Vec<LevelPair<'a>> {
    let first = numbered(first);
    let mut second = numbered(second);
    let mut pairs: Vec<LevelPair<'a>> = Vec::new();
    for (key, level) in first {
        let same = second.iter().position(|(other, _)| *other == key);
        pairs.push((Some(level), same.map(|i| second.remove(i).1)));
    }
    pairs.extend(second.into_iter().map(|(_, level)| (None, Some(level))));
    let load = |pair: &LevelPair<'_>| pair.0.or(pair.1).map_or(0.0, |level| level.value.0);
    pairs.sort_by(|a, b| load(a).total_cmp(&load(b)));
    pairs
}

/// Returns the levels of a run, each with its label and how many of that label came before.
fn numbered(run: &RunResult) -> Vec<((String, usize), &LevelResult)> {
    let mut levels: Vec<((String, usize), &LevelResult)> = Vec::new();
    for level in &run.levels {
        let label = level.label();
        let before = levels.iter().filter(|((other, _), _)| *other == label).count();
        levels.push(((label, before), level));
    }
    levels
}

/// Returns why the figures of two runs mean different things; empty when they compare.
pub(crate) fn incomparable(first: &RunConfig, second: &RunConfig) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut compare = |what: &str, values: [String; 2]| {
        if values[0] != values[1] {
            let [first, second] = values;
            reasons.push(format!("{what} differ: {first} and {second}"));
        }
    };
    let words = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let both = [first, second];
    compare("the endpoints", both.map(|config| format!("{:?}", config.endpoint).to_lowercase()));
    compare("the kinds of load", both.map(|config| format!("{:?}", config.mode).to_lowercase()));
    compare("the prompts", both.map(|config| config.prompts.clone()));
    compare("the presets", both.map(|config| words(&config.preset)));
    compare("the traces", both.map(|config| words(&config.trace)));
    compare("the prompt lengths", both.map(|config| length(config.input_len, config.input_dist)));
    compare("the output lengths", both.map(|config| length(config.output_len, config.output_dist)));
    compare("the shared prefixes", both.map(|config| optional(config.shared_prefix_tokens)));
    compare("the numbers of turns", both.map(|config| optional(config.turns)));
    compare(
        "the ways that outputs end",
        both.map(|config| {
            let end = if config.ignore_eos { "at full length" } else { "where the model ends" };
            end.to_owned()
        }),
    );
    reasons
}

fn length(tokens: u32, dist: Option<crate::results::LengthDist>) -> String {
    match dist {
        None | Some(crate::results::LengthDist::Fixed) => format!("{tokens} tokens"),
        Some(dist) => format!("{tokens} tokens ({})", format!("{dist:?}").to_lowercase()),
    }
}

fn optional(value: Option<u32>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

/// Returns what to know before reading the figures.
fn doubts(runs: &[RunResult]) -> Vec<String> {
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let mut doubts = Vec::new();
    for other in others {
        let reasons = incomparable(&first.config, &other.config);
        if !reasons.is_empty() {
            doubts.push(format!(
                "The figures of {} are not comparable with those of {}: {}.",
                other.label,
                first.label,
                reasons.join("; ")
            ));
        }
    }
    let mut differs = |what: &str, values: Vec<String>| {
        let mut distinct: Vec<&str> = Vec::new();
        for value in values.iter().filter(|value| !value.is_empty()) {
            if !distinct.contains(&value.as_str()) {
                distinct.push(value);
            }
        }
        if distinct.len() > 1 {
            doubts.push(format!("{what}: {}.", distinct.join("; ")));
        }
    };
    let of = |value: fn(&RunResult) -> String| runs.iter().map(value).collect::<Vec<String>>();
    differs(
        "The models have different names, so the figures compare engines only if it is one model",
        of(|run| run.config.model.clone()),
    );
    differs("The SLO differs, so goodput does not compare", of(|run| slo_text(slo_of(run))));
    differs(
        "The clients run on different machines",
        of(|run| run.environment.cpu.clone().unwrap_or_default()),
    );
    differs(
        "Tokens are counted in different ways",
        of(|run| {
            let sources = run.levels.iter().flat_map(|level| level.summary.token_sources.keys());
            let mut sources: Vec<String> = sources.cloned().collect();
            sources.sort_unstable();
            sources.dedup();
            sources.join(" and ")
        }),
    );
    doubts.extend(different_outputs(runs));
    doubts
}

/// Says so when the outputs that arrived have different lengths.
fn different_outputs(runs: &[RunResult]) -> Option<String> {
    let mean = |run: &RunResult| {
        let counts = run.levels.iter().filter_map(|level| level.summary.output_tokens_mean);
        let (sum, count) = counts.fold((0.0, 0.0), |(sum, count), mean| (sum + mean, count + 1.0));
        (count > 0.0).then_some(sum / count)
    };
    let means: Vec<f64> = runs.iter().filter_map(mean).collect();
    let least = means.iter().copied().fold(f64::INFINITY, f64::min);
    let most = means.iter().copied().fold(0.0, f64::max);
    // Two in a hundred tokens is what an end of text at the limit may differ by.
    (most > least * 1.02).then(|| {
        let means: Vec<String> = means.iter().map(|mean| format!("{mean:.1}")).collect();
        format!(
            "Outputs had different lengths ({} tokens in the mean), so requests/s and E2E do not \
             compare.",
            means.join(", ")
        )
    })
}

/// Which way a figure is better.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Higher,
    Lower,
}

/// One figure of the table.
struct Figure {
    title: &'static str,
    /// Its name among the figures over repeats.
    repeat_name: Option<&'static str>,
    better: Better,
    value: fn(&LevelResult) -> Option<f64>,
    write: fn(Option<f64>) -> String,
}

const FIGURES: [Figure; 5] = [
    Figure {
        title: "out tok/s",
        repeat_name: Some("output_throughput"),
        better: Better::Higher,
        value: |level| Some(level.summary.output_throughput),
        write: number_or_dash,
    },
    Figure {
        title: "TTFT p50 ms",
        repeat_name: Some("ttft_p50"),
        better: Better::Lower,
        value: |level| level.summary.ttft.p50,
        write: milliseconds_or_dash,
    },
    Figure {
        title: "TTFT p99 ms",
        repeat_name: Some("ttft_p99"),
        better: Better::Lower,
        value: |level| level.summary.ttft.p99,
        write: milliseconds_or_dash,
    },
    Figure {
        title: "TPOT p50 ms",
        repeat_name: Some("tpot_p50"),
        better: Better::Lower,
        value: |level| level.summary.tpot.p50,
        write: milliseconds_or_dash,
    },
    Figure {
        title: "goodput",
        repeat_name: Some("goodput"),
        better: Better::Higher,
        value: |level| Some(level.summary.goodput),
        write: number_or_dash,
    },
];

/// Returns one row for each level and run.
fn table(runs: &[RunResult]) -> Table {
    let mut table = Table::default().column("load", Align::Left).column("run", Align::Left);
    for figure in FIGURES {
        table = table.column(figure.title, Align::Right);
    }
    table = table.column("in SLO", Align::Right).column("failed", Align::Right);
    for (i, (label, levels)) in levels_by_load(runs).iter().enumerate() {
        if i > 0 {
            table.separate();
        }
        let first = levels.first().copied().flatten();
        for (run, level) in runs.iter().zip(levels) {
            let mut row = vec![label.clone(), shortened(&run.label, NAME_WIDTH)];
            let Some(level) = level else {
                let missing = format!("{MISSING} {:RATIO_WIDTH$}", "");
                row.extend(FIGURES.iter().map(|_| missing.clone()));
                row.extend([MISSING, MISSING].map(str::to_owned));
                table.push(row);
                continue;
            };
            let base = first.filter(|first| !std::ptr::eq(*first, *level));
            row.extend(FIGURES.iter().map(|figure| with_ratio(figure, level, base)));
            row.push(percent_or_dash(level.summary.slo_attainment));
            row.push(level.summary.failed.to_string());
            table.push(row);
        }
    }
    table
}

/// Returns each load with the level of every run there, by load.
fn levels_by_load(runs: &[RunResult]) -> Vec<(String, Vec<Option<&LevelResult>>)> {
    let mut loads: Vec<((String, usize), f64)> = Vec::new();
    let numbered: Vec<_> = runs.iter().map(numbered).collect();
    for (key, level) in numbered.iter().flatten() {
        if !loads.iter().any(|(known, _)| known == key) {
            loads.push((key.clone(), level.value.0));
        }
    }
    loads.sort_by(|a, b| a.1.total_cmp(&b.1));
    let row = |((label, before), _): ((String, usize), f64)| {
        let key = (label, before);
        let levels = numbered
            .iter()
            .map(|levels| levels.iter().find(|(other, _)| *other == key).map(|(_, level)| *level));
        let levels = levels.collect();
        (key.0, levels)
    };
    loads.into_iter().map(row).collect()
}

/// Writes a figure, and its ratio to that of another level: `~` in front of what chance explains,
/// `+` and `−` behind what is better or worse by more than a twentieth.
fn with_ratio(figure: &Figure, level: &LevelResult, base: Option<&LevelResult>) -> String {
    let value = (figure.value)(level);
    let written = (figure.write)(value);
    // Figures stay in one line below each other, whether a ratio follows or not.
    let alone = format!("{written} {:RATIO_WIDTH$}", "");
    let Some(base) = base else { return alone };
    let (Some(value), Some(of)) = (value, (figure.value)(base).filter(|of| *of > 0.0)) else {
        return alone;
    };
    let ratio = value / of;
    let is_noise = repeat_difference(figure, level, base) == Some(Difference::Noise);
    let better = match figure.better {
        Better::Higher => ratio,
        Better::Lower => ratio.recip(),
    };
    let mark = match better {
        _ if is_noise => "~",
        better if better > 1.05 => "+",
        better if better < 0.95 => "−",
        _ => " ",
    };
    format!("{written} {:>RATIO_WIDTH$}", format!("{ratio:.2}×{mark}"))
}

/// Tells whether chance explains the difference of a figure, where both levels ran several times.
fn repeat_difference(figure: &Figure, a: &LevelResult, b: &LevelResult) -> Option<Difference> {
    let name = figure.repeat_name?;
    let metric = |level: &LevelResult| -> Option<RepeatMetric> {
        level.repeat_metrics.as_ref()?.get(name).cloned()
    };
    difference(&metric(a)?, &metric(b)?, (a.repeat_count, b.repeat_count))
}

/// Explains the marks.
fn legend(runs: &[RunResult]) -> Vec<String> {
    let Some(first) = runs.first() else { return Vec::new() };
    let mut sentences = vec![format!(
        "×: ratio to {} at the same load; + better, − worse by more than 5 %.",
        first.label
    )];
    let repeated = runs.iter().flat_map(|run| &run.levels).any(|level| level.repeat_count > 1);
    sentences.push(if repeated {
        "~: chance explains the difference (Welch's test over the repeats, 95 %).".to_owned()
    } else {
        "Each level ran once, so nothing tells chance from a difference: use --repeat.".to_owned()
    });
    sentences
}
