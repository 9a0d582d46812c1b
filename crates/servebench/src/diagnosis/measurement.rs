//! What makes the figures doubtful: the client, failures, counts of tokens, samples, stalls.

use super::{About, Found, labels};
use crate::report::{milliseconds, number, percent};
use crate::results::{LengthDist, LevelResult, Mode, RunConfig, RunResult, Severity, Slo};
use crate::statistics::{as_f64, percentile, tokens_as_f64};
use std::collections::BTreeMap;

/// Lag of the client from which on it shows in latencies of some tens of milliseconds.
const LAG_LIMIT_MS: f64 = 10.0;
/// Use of the client's processors from which on it hardly keeps up.
const CPU_LIMIT: f64 = 0.9;
/// Share of output tokens by which outputs may miss the length asked for.
const OUTPUT_TOLERANCE: f64 = 0.02;
/// Share by which prompts may miss theirs: a chat template adds tokens, and made-up words are not
/// one token each for every tokenizer.
const PROMPT_TOLERANCE: f64 = 0.25;
/// Share of a prompt's own words that a cache may know: the instruction that all begin with. The
/// rest differs from the first word on.
const SHARED_WORDS: f64 = 0.25;
/// Share of requests that a server may have seen before without the level meaning something else.
const SEEN_LIMIT: f64 = 0.05;
/// A gap in a stream is a stall above this many seconds and this many times the median gap. A
/// server that pages its weights in, or a graphics card that wakes up, takes that long.
const STALL_S: f64 = 5.0;
const STALL_RATIO: f64 = 50.0;
/// Share of the mean by which an interval may reach to each side.
const WIDE_INTERVAL: f64 = 0.1;

/// Returns what makes the figures of a run doubtful.
pub(super) fn findings(run: &RunResult) -> Vec<Found> {
    let rules = [
        client,
        send_delay,
        failures,
        offered_rate,
        stalls,
        token_source,
        output_length,
        prompt_length,
        cached_prompts,
        wide_intervals,
        uneven_attainment,
        few_samples,
        reasoning,
        interrupted,
        other_slo,
    ];
    rules.iter().filter_map(|rule| rule(run)).collect()
}

fn doubt(category: &str, severity: Severity, headline: String) -> Found {
    Found::new(About::Measurement, category, severity, headline)
}

fn levels_where(run: &RunResult, holds: impl Fn(&LevelResult) -> bool) -> Vec<&LevelResult> {
    run.levels.iter().filter(|level| holds(level)).collect()
}

fn client(run: &RunResult) -> Option<Found> {
    let lags = |level: &LevelResult| level.client_lag_p99_ms.is_some_and(|lag| lag > LAG_LIMIT_MS);
    let busy = |level: &LevelResult| level.client_cpu_share.is_some_and(|cpu| cpu > CPU_LIMIT);
    let levels = levels_where(run, |level| lags(level) || busy(level));
    if levels.is_empty() {
        return None;
    }
    let evidence = levels.iter().map(|level| {
        let lag = level.client_lag_p99_ms.filter(|_| lags(level));
        let cpu = level.client_cpu_share.filter(|_| busy(level));
        let lag = lag.map(|lag| format!("an event waited {} ms (p99)", number(lag)));
        let cpu = cpu.map(|cpu| format!("its processors were {} busy", percent(cpu)));
        let seen: Vec<String> = [lag, cpu].into_iter().flatten().collect();
        format!("At {} {}.", level.label(), seen.join(" and "))
    });
    let headline =
        format!("The client, not the server, may limit the figures at {}.", labels(&levels));
    let found = Found::new(About::Client, "Client", Severity::High, headline)
        .evidence(evidence.collect::<Vec<String>>())
        .advice("Run servebench on another machine, or with less load.");
    Some(found)
}

fn send_delay(run: &RunResult) -> Option<Found> {
    let delay = |level: &LevelResult| level.summary.send_delay.p99.map(|delay| delay * 1e3);
    let late = |level: &LevelResult| {
        // The delay is part of TTFT; a small part of it is what sending many at once takes.
        let part = level.summary.ttft.p50.map_or(0.0, |ttft| 0.1 * ttft * 1e3);
        level.mode == Mode::Rate && delay(level).is_some_and(|delay| delay > LAG_LIMIT_MS.max(part))
    };
    let levels = levels_where(run, late);
    let worst = levels.iter().filter_map(|level| delay(level)).max_by(f64::total_cmp)?;
    let (severity, why, advice) = match run.config.max_concurrency {
        Some(limit) => (
            Severity::Medium,
            format!("because no more than {limit} were to be in flight"),
            "The wait is part of the latencies. Raise --max-concurrency for the full load.",
        ),
        None => (
            Severity::High,
            "because the client was late".to_owned(),
            "Run servebench on another machine, or with less load.",
        ),
    };
    let headline = format!(
        "At {} requests were sent up to {} ms (p99) after they were due, {why}.",
        labels(&levels),
        number(worst)
    );
    let about = if severity == Severity::High { About::Client } else { About::Measurement };
    Some(Found::new(about, "Client", severity, headline).advice(advice))
}

fn failures(run: &RunResult) -> Option<Found> {
    let levels = levels_where(run, |level| level.summary.failed > 0);
    if levels.is_empty() {
        return None;
    }
    let failed: usize = levels.iter().map(|level| level.summary.failed).sum();
    let all: usize =
        run.levels.iter().map(|level| level.summary.completed + level.summary.failed).sum();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for (kind, count) in levels.iter().flat_map(|level| &level.summary.errors) {
        *kinds.entry(kind).or_default() += count;
    }
    let kinds: Vec<String> =
        kinds.into_iter().map(|(kind, count)| format!("{kind} ({count} times)")).collect();
    let share = as_f64(failed) / as_f64(all);
    let severity = if share > 0.01 { Severity::High } else { Severity::Medium };
    let headline =
        format!("{failed} of {all} requests failed, at {}: {}.", labels(&levels), kinds.join(", "));
    let found = doubt("Errors", severity, headline)
        .advice("Latencies are those of the others only. See what the server's log says of them.");
    Some(found)
}

/// Looks at the second half of the time in which requests were due: there, as many should end as
/// arrive. Twice the root of their number is what random arrivals may differ by.
fn offered_rate(run: &RunResult) -> Option<Found> {
    let behind = |level: &LevelResult| -> Option<(f64, f64, f64)> {
        if level.mode != Mode::Rate || level.value.0.is_infinite() || level.repeat_count > 1 {
            return None;
        }
        let due = |request: &crate::results::RequestResult| request.start;
        let last = level.requests.iter().map(due).fold(0.0, f64::max);
        let half = last / 2.0..last;
        let arrived = as_f64(level.requests.iter().filter(|r| half.contains(&r.start)).count());
        let ends = level.requests.iter().filter_map(|r| Some(r.start + r.e2e?));
        let ended = as_f64(ends.filter(|end| half.contains(end)).count());
        let missing = arrived - ended;
        let seconds = last / 2.0;
        (missing > (0.1 * arrived).max(2.0 * arrived.sqrt())).then_some((
            arrived / seconds,
            ended / seconds,
            level.value.0,
        ))
    };
    let levels = levels_where(run, |level| behind(level).is_some());
    if levels.is_empty() {
        return None;
    }
    let evidence = levels.iter().filter_map(|level| {
        let (arrived, ended, _) = behind(level)?;
        Some(format!(
            "At {} {} requests/s arrived in the second half, {} ended.",
            level.label(),
            number(arrived),
            number(ended)
        ))
    });
    let headline = format!("The server fell behind the rate offered at {}.", labels(&levels));
    let found = doubt("Offered Rate", Severity::Medium, headline)
        .evidence(evidence.collect::<Vec<String>>())
        .advice("Its backlog grows, so latencies there depend on how long the level ran.");
    Some(found)
}

fn stalls(run: &RunResult) -> Option<Found> {
    let stall = |level: &LevelResult| -> Option<(f64, f64)> {
        let completed = level.requests.iter().filter(|request| request.ok);
        let mut gaps: Vec<f64> =
            completed.flat_map(|request| request.inter_token_latencies()).collect();
        gaps.sort_by(f64::total_cmp);
        let (worst, median) = (*gaps.last()?, percentile(&gaps, 50.0)?);
        (worst > STALL_S && worst > STALL_RATIO * median).then_some((worst, median))
    };
    let levels = levels_where(run, |level| stall(level).is_some());
    let (worst, median) =
        levels.iter().filter_map(|level| stall(level)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    let headline = format!(
        "At {} an output stood still for {} s, where gaps are {} ms (median).",
        labels(&levels),
        number(worst),
        milliseconds(median)
    );
    let found = doubt("Stall", Severity::Medium, headline).advice(
        "The server paused: memory paged in, another program, a device asleep. Means include it; \
         measure again.",
    );
    Some(found)
}

fn token_source(run: &RunResult) -> Option<Found> {
    let levels = levels_where(run, |level| level.summary.token_sources.contains_key("chunks"));
    if levels.is_empty() {
        return None;
    }
    let headline = format!(
        "At {} tokens were counted as pieces of text, because the server sends no usage.",
        labels(&levels)
    );
    let found = doubt("Token Counts", Severity::Medium, headline).advice(
        "Where a piece holds several tokens, TPOT is too high and tokens/s too low. Name the \
         model's tokenizer with --tokenizer.",
    );
    Some(found)
}

/// Whether every output, or prompt, is to have the one length that the configuration names.
fn has_one_length(config: &RunConfig, dist: Option<LengthDist>) -> bool {
    let is_fixed = matches!(dist, None | Some(LengthDist::Fixed));
    is_fixed && config.trace.is_none() && config.prompts == "synthetic"
}

fn output_length(run: &RunResult) -> Option<Found> {
    let config = &run.config;
    if !config.ignore_eos || !has_one_length(config, config.output_dist) || config.output_len == 0 {
        return None;
    }
    let asked = f64::from(config.output_len);
    let misses = |level: &LevelResult| {
        let got = level.summary.output_tokens_mean;
        got.is_some_and(|got| (got / asked - 1.0).abs() > OUTPUT_TOLERANCE)
    };
    let levels = levels_where(run, misses);
    let got = levels.first()?.summary.output_tokens_mean?;
    let headline = format!(
        "Outputs have {} tokens in the mean at {}, not the {asked} asked for.",
        number(got),
        labels(&levels)
    );
    let found = doubt("Output Length", Severity::Medium, headline).advice(
        "The server does not ignore the end of text, or limits outputs; runs with other lengths \
         do not compare.",
    );
    Some(found)
}

fn prompt_length(run: &RunResult) -> Option<Found> {
    let config = &run.config;
    let is_plain = config.turns.is_none_or(|turns| turns <= 1);
    if !is_plain || !has_one_length(config, config.input_dist) || config.input_len == 0 {
        return None;
    }
    let asked = f64::from(config.input_len + config.shared_prefix_tokens.unwrap_or(0));
    let counts: Vec<u64> = run
        .levels
        .iter()
        .flat_map(|level| &level.requests)
        .filter_map(|request| request.prompt_tokens)
        .collect();
    if counts.is_empty() {
        return None;
    }
    let got = tokens_as_f64(counts.iter().sum()) / as_f64(counts.len());
    let is_prefix_inside = config.shared_prefix_tokens.is_some();
    let closest = if is_prefix_inside { got.min(asked) } else { got };
    if (closest / asked - 1.0).abs() <= PROMPT_TOLERANCE || (is_prefix_inside && got < asked) {
        return None;
    }
    let headline =
        format!("Prompts have {} tokens in the mean, {asked} were asked for.", number(got));
    let found = doubt("Prompt Length", Severity::Low, headline).advice(
        "A chat template's own tokens are among them. Name the model's tokenizer with \
             --tokenizer for texts of exact length.",
    );
    Some(found)
}

fn cached_prompts(run: &RunResult) -> Option<Found> {
    let config = &run.config;
    let shares_by_design = config.shared_prefix_tokens.is_some()
        || config.trace.is_some()
        || config.preset.is_some()
        || config.turns.is_some_and(|turns| turns > 1);
    if shares_by_design || config.prompts != "synthetic" {
        return None;
    }
    if config.input_dist.is_some_and(|dist| dist != LengthDist::Fixed) {
        return None;
    }
    // Whatever a chat template adds may be cached; of the words themselves, each at least one
    // token, most cannot be.
    let num_distinct = f64::from(config.input_len) * (1.0 - SHARED_WORDS);
    let seen = |level: &LevelResult| -> f64 {
        let told = level.requests.iter().filter_map(|request| {
            Some(tokens_as_f64(request.prompt_tokens?.saturating_sub(request.cached_tokens?)))
        });
        let uncached: Vec<f64> = told.collect();
        let num_seen = uncached.iter().filter(|uncached| **uncached < num_distinct).count();
        as_f64(num_seen) / as_f64(uncached.len().max(1))
    };
    let levels = levels_where(run, |level| seen(level) > SEEN_LIMIT);
    let most = levels.iter().map(|level| seen(level)).max_by(f64::total_cmp)?;
    let headline = format!(
        "The server had most of the prompt in its cache for {} of the requests at {}, though \
         prompts are distinct.",
        percent(most),
        labels(&levels)
    );
    let found = doubt("Prompt Cache", Severity::Medium, headline).advice(
        "It has seen these prompts before, so TTFT is too low: take another --seed, or restart \
         the server.",
    );
    Some(found)
}

fn wide_intervals(run: &RunResult) -> Option<Found> {
    let width = |level: &LevelResult| -> Option<f64> {
        let metric = level.repeat_metrics.as_ref()?.get("output_throughput")?;
        let (_, high) = metric.ci95?;
        (metric.mean > 0.0).then(|| (high - metric.mean) / metric.mean)
    };
    let is_wide = |level: &LevelResult| width(level).is_some_and(|width| width > WIDE_INTERVAL);
    let levels = levels_where(run, is_wide);
    let widest = levels.iter().filter_map(|level| width(level)).max_by(f64::total_cmp)?;
    let headline = format!(
        "Throughput is known to within {} % only, at {}: its runs differ.",
        number(widest * 100.0),
        labels(&levels)
    );
    let found = doubt("Noise", Severity::Low, headline)
        .advice("Quieten the machine, or raise --repeat or --num-requests.");
    Some(found)
}

fn uneven_attainment(run: &RunResult) -> Option<Found> {
    let target = run.capacity.as_ref().map_or(0.9, |capacity| capacity.target);
    let slo =
        run.levels.first().map(|level| (level.summary.slo_ttft_ms, level.summary.slo_tpot_ms));
    slo.filter(|slo| *slo != (None, None))?;
    let mut levels: Vec<&LevelResult> = run.levels.iter().collect();
    levels.sort_by(|a, b| a.value.0.total_cmp(&b.value.0));
    let holds =
        |level: &LevelResult| level.summary.slo_attainment.is_some_and(|share| share >= target);
    let highest = levels.iter().rposition(|level| holds(level))?;
    let missed: Vec<&LevelResult> =
        levels[..highest].iter().copied().filter(|level| !holds(level)).collect();
    if missed.is_empty() {
        return None;
    }
    let headline = format!(
        "Fewer than {} of requests met the SLO at {}, but more did at the higher load {}.",
        percent(target),
        labels(&missed),
        levels[highest].label()
    );
    let found = doubt("Noise", Severity::Low, headline).advice(
        "Something disturbed the lower one, such as a server that warms up; measure again.",
    );
    Some(found)
}

fn few_samples(run: &RunResult) -> Option<Found> {
    let levels = levels_where(run, |level| (1..100).contains(&level.summary.completed));
    if levels.is_empty() {
        return None;
    }
    let headline = format!(
        "Under 100 requests completed at {}: p99 of TTFT, TPOT and E2E is nearly the slowest one.",
        labels(&levels)
    );
    let found = doubt("Samples", Severity::Low, headline)
        .advice("For a p99 that holds, raise --num-requests or --duration.");
    Some(found)
}

fn reasoning(run: &RunResult) -> Option<Found> {
    let level = run
        .levels
        .iter()
        .rfind(|level| level.summary.reasoning_share.is_some_and(|share| share > 0.0))?;
    let share = level.summary.reasoning_share?;
    let answer = level.summary.answer_start.p50.map_or_else(String::new, |start| {
        format!(" The first piece of the answer came after {} ms (p50).", milliseconds(start))
    });
    let headline = format!(
        "The model reasons: {} of the pieces at {} were no answer, and TTFT is that of the \
         first thought.{answer}",
        percent(share),
        level.label()
    );
    Some(doubt("Reasoning", Severity::Info, headline))
}

fn interrupted(run: &RunResult) -> Option<Found> {
    let cut: usize = run.levels.iter().filter_map(|level| level.num_interrupted).sum();
    if !run.interrupted && cut == 0 {
        return None;
    }
    let headline = format!(
        "The run was stopped before its end; {cut} requests that were still running are left out."
    );
    let found = doubt("Interrupted", Severity::Low, headline)
        .advice("The slowest requests are likely among them, so latencies are too low.");
    Some(found)
}

fn other_slo(run: &RunResult) -> Option<Found> {
    let (capacity, level) = (run.capacity.as_ref()?, run.levels.first()?);
    let searched = Slo { ttft_ms: capacity.slo_ttft_ms, tpot_ms: capacity.slo_tpot_ms };
    let judged = Slo { ttft_ms: level.summary.slo_ttft_ms, tpot_ms: level.summary.slo_tpot_ms };
    if searched == judged {
        return None;
    }
    let headline =
        "The capacity was searched for with another SLO than the levels are judged by.".to_owned();
    Some(doubt("Capacity", Severity::Low, headline).advice("Search again for this SLO."))
}
