//! What a report says of one run in sentences: what was asked, where, and what came of it.

use super::caption;
use super::figures::{load_count, number, percent, percent_or_dash, slo_text};
use crate::results::{
    CapacityReason, Endpoint, GoodputAt, LengthDist, LevelResult, Mode, RunConfig, RunResult, Slo,
};
use crate::statistics::goodput_at;

/// Returns what was asked of the server, in words.
pub(super) fn workload(config: &RunConfig) -> String {
    let endpoint = match config.endpoint {
        Endpoint::Chat => "chat",
        Endpoint::Completions => "completions",
    };
    let spread = |dist: Option<LengthDist>| match dist {
        None | Some(LengthDist::Fixed) => "",
        Some(LengthDist::Normal) => " (normal)",
        Some(LengthDist::Lognormal) => " (log-normal)",
        Some(LengthDist::Uniform) => " (uniform)",
    };
    let mut parts = vec![match (&config.trace, &config.preset) {
        (Some(trace), _) => format!("{endpoint}, trace {trace}"),
        (None, Some(preset)) => format!("{endpoint}, preset {preset}, {} prompts", config.prompts),
        (None, None) => format!("{endpoint}, {} prompts", config.prompts),
    }];
    if config.trace.is_none() {
        parts.push(format!(
            "{} tokens in{}, {} out{}",
            config.input_len,
            spread(config.input_dist),
            config.output_len,
            spread(config.output_dist)
        ));
    }
    if let Some(prefix) = config.shared_prefix_tokens {
        parts.push(format!("first {prefix} tokens shared"));
    }
    if let Some(turns) = config.turns.filter(|turns| *turns > 1) {
        parts.push(format!("{turns} turns"));
    }
    parts.push(format!("seed {}", config.seed));
    parts.join(", ")
}

/// Returns where, when and with what a run was measured, in words.
pub(super) fn origin(run: &RunResult) -> String {
    let environment = &run.environment;
    let version = Some(&environment.servebench_version).filter(|version| !version.is_empty());
    let parts = [
        environment.engine.is_some().then(|| caption::engine(run)),
        caption::machine(run),
        Some(environment.timestamp.clone()).filter(|timestamp| !timestamp.is_empty()),
        version.map(|version| format!("servebench {version}")),
    ];
    parts.into_iter().flatten().collect::<Vec<String>>().join(" · ")
}

/// Returns where the numbers of tokens come from, and how busy the client was.
pub(super) fn measurement(run: &RunResult) -> String {
    let mut sources: Vec<String> = Vec::new();
    for (name, words) in [
        ("usage", "the server's usage"),
        ("tokenizer", "a tokenizer"),
        ("chunks", "pieces of text, one token each"),
    ] {
        let count: usize =
            run.levels.iter().filter_map(|level| level.summary.token_sources.get(name)).sum();
        if count > 0 {
            sources.push(format!("{words} ({count} requests)"));
        }
    }
    let mut parts = Vec::new();
    if !sources.is_empty() {
        parts.push(format!("Tokens counted by {}", sources.join(", ")));
    }
    let lag = run.levels.iter().filter_map(|level| level.client_lag_p99_ms).max_by(f64::total_cmp);
    if let Some(lag) = lag {
        parts.push(format!("client lag p99 at most {} ms", number(lag)));
    }
    let cpu = run.levels.iter().filter_map(|level| level.client_cpu_share).max_by(f64::total_cmp);
    if let Some(cpu) = cpu {
        parts.push(format!("client CPU at most {}", percent(cpu)));
    }
    let cached = |level: &LevelResult| level.summary.cached_share;
    let cached = run.levels.iter().filter_map(cached).max_by(f64::total_cmp);
    if let Some(cached) = cached {
        parts.push(format!("prompt tokens from the server's cache: up to {}", percent(cached)));
    }
    if parts.is_empty() { String::new() } else { format!("{}.", parts.join("; ")) }
}

/// Returns the SLO by which the levels are judged.
pub(super) fn slo_of(run: &RunResult) -> Slo {
    run.levels.first().map_or_else(
        || run.config.slo(),
        |level| Slo { ttft_ms: level.summary.slo_ttft_ms, tpot_ms: level.summary.slo_tpot_ms },
    )
}

/// Returns up to which load enough requests meet the SLO, in one sentence for each share.
pub(super) fn goodput_sentences(run: &RunResult) -> Vec<String> {
    let slo = slo_of(run);
    let mode = run.levels.first().map_or(run.config.mode, |level| level.mode);
    let sentence = |at: GoodputAt| {
        let share = percent(at.attainment);
        let (Some(load), Some(rate)) = (at.load, at.requests_per_s) else {
            return format!("{share} of requests meet {} at no level.", slo_text(slo));
        };
        let bound = if at.is_lower_bound { "at least " } else { "" };
        let rate = match mode {
            Mode::Concurrency => format!(", {} good requests/s", number(rate)),
            Mode::Rate => String::new(),
        };
        format!(
            "{share} of requests meet {} up to {bound}{}{rate}.",
            slo_text(slo),
            load_count(mode, load)
        )
    };
    goodput_at(&run.levels, slo).into_iter().map(sentence).collect()
}

/// Returns the answer of a search for capacity.
pub(super) fn capacity_sentence(run: &RunResult) -> Option<String> {
    let found = run.capacity.as_ref()?;
    let slo = Slo { ttft_ms: found.slo_ttft_ms, tpot_ms: found.slo_tpot_ms };
    let rule = format!("{} of requests must meet {}", percent(found.target), slo_text(slo));
    let met = |load: f64| -> String {
        let level = run.levels.iter().find(|level| level.value.0 == load);
        level.map_or_else(String::new, |level| {
            let failed = match level.summary.failed {
                0 => String::new(),
                failed => format!(", {failed} failed"),
            };
            format!(" ({} met it{failed})", percent_or_dash(level.summary.slo_attainment))
        })
    };
    let at = |load: f64| format!("{}{}", load_count(found.mode, load), met(load));
    Some(match (found.reason, found.capacity, found.first_fail) {
        (CapacityReason::MaxReached, Some(passed), _) => {
            format!("Capacity: at least {}, the highest load allowed; {rule}.", at(passed))
        }
        (_, Some(passed), Some(failed)) => {
            format!("Capacity: {}; not {}; {rule}.", at(passed), at(failed))
        }
        (_, Some(passed), None) => format!("Capacity: at least {}; {rule}.", at(passed)),
        (_, None, Some(failed)) => {
            format!("Capacity: none; even {} is too much; {rule}.", at(failed))
        }
        (_, None, None) => format!("Capacity: nothing was measured; {rule}."),
    })
}
