//! Whether a run is worse than a baseline by more than allowed.
//!
//! Fails closed: a level of the baseline that the candidate lacks, no level in common, and a figure
//! that the candidate no longer has all count as failures. Where both runs repeated their levels,
//! means are compared, and what chance explains (Welch's test, 95 %) is noise unless the caller
//! wants it counted. Goodput of both is judged by the baseline's SLO.

use crate::report::comparison::{incomparable, pair_levels};
use crate::report::number;
use crate::results::{LevelResult, RunResult, Slo, Summary};
use crate::statistics::{Difference, as_f64, difference, resummarize};
use serde::Serialize;

/// How much worse a run may be, in percent of the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Rise of the median TTFT.
    pub ttft: f64,
    /// Rise of the median TPOT.
    pub tpot: f64,
    /// Fall of the output tokens per second.
    pub throughput: f64,
    /// Fall of the goodput.
    pub goodput: f64,
    /// Failed requests, of all requests of the level: not a change, a share.
    pub error_rate: f64,
    /// Rise of the p99 of TTFT, where it is to be checked.
    pub ttft_p99: Option<f64>,
    /// Rise of the p99 of TPOT, where it is to be checked.
    pub tpot_p99: Option<f64>,
    /// Rise of the p99 of ITL, where it is to be checked.
    pub itl_p99: Option<f64>,
    /// Rise of the p99 of E2E latency, where it is to be checked.
    pub e2e_p99: Option<f64>,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            ttft: 15.0,
            tpot: 10.0,
            throughput: 10.0,
            goodput: 10.0,
            error_rate: 1.0,
            ttft_p99: None,
            tpot_p99: None,
            itl_p99: None,
            e2e_p99: None,
        }
    }
}

/// What becomes of a change that chance explains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoisePolicy {
    /// It is reported, and passes.
    #[default]
    Excuse,
    /// It counts as any other.
    Count,
}

/// What became of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Within the threshold.
    Pass,
    /// Beyond the threshold, but chance explains it.
    Noise,
    /// Beyond the threshold.
    Fail,
}

/// One figure of one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricCheck {
    /// What it is.
    pub metric: &'static str,
    /// Of the baseline; `None` where it has none.
    pub baseline: Option<f64>,
    /// Of the candidate; `None` where it has none.
    pub candidate: Option<f64>,
    /// Unit of both.
    pub unit: &'static str,
    /// Change in percent of the baseline, positive where the figure rose; `None` from zero, or
    /// where one is missing.
    pub change_pct: Option<f64>,
    /// How much worse it may be.
    pub threshold_pct: f64,
    /// What became of it.
    pub verdict: Verdict,
}

/// One level that both runs have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelCheck {
    /// What it is called.
    pub label: String,
    /// Whether nothing failed.
    pub passed: bool,
    /// Its figures.
    pub metrics: Vec<MetricCheck>,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckReport {
    /// Whether nothing failed.
    pub passed: bool,
    /// Name of the candidate.
    pub candidate_label: String,
    /// Name of the baseline.
    pub baseline_label: String,
    /// The levels that both have.
    pub levels: Vec<LevelCheck>,
    /// Why it failed, in sentences.
    pub failures: Vec<String>,
    /// What to mind, though it does not fail.
    pub notes: Vec<String>,
}

/// Compares a candidate with a baseline.
///
/// # Errors
/// With the reasons why the figures of the two mean different things.
pub fn check(
    candidate: &RunResult,
    baseline: &RunResult,
    thresholds: &Thresholds,
    noise: NoisePolicy,
) -> Result<CheckReport, Vec<String>> {
    let reasons = incomparable(&baseline.config, &candidate.config);
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let mut notes = Vec::new();
    let mut judged = candidate.clone();
    let slo = slo_of(baseline);
    if let (Some(slo), true) = (slo, slo_of(candidate) != slo) {
        notes.push("The candidate's goodput is computed by the baseline's SLO.".to_owned());
        resummarize(&mut judged, slo);
    }
    if candidate.config.model != baseline.config.model {
        notes.push(format!(
            "The models have different names: {} and {}.",
            baseline.config.model, candidate.config.model
        ));
    }
    let mut levels = Vec::new();
    let mut failures = Vec::new();
    for pair in pair_levels(baseline, &judged) {
        match pair {
            (Some(baseline), Some(candidate)) => {
                let level = check_level(baseline, candidate, thresholds, noise);
                failures.extend(level.metrics.iter().filter_map(|metric| failure(&level, metric)));
                levels.push(level);
            }
            (Some(missing), None) => failures.push(format!(
                "{}: the baseline has this level, the candidate does not.",
                missing.label()
            )),
            (None, Some(level)) => notes.push(format!(
                "{}: the baseline does not have this level, so it is not checked.",
                level.label()
            )),
            (None, None) => {}
        }
    }
    if levels.is_empty() {
        failures.push("The runs have no level in common, so nothing was checked.".to_owned());
    }
    Ok(CheckReport {
        passed: failures.is_empty(),
        candidate_label: candidate.label.clone(),
        baseline_label: baseline.label.clone(),
        levels,
        failures,
        notes,
    })
}

/// Returns the SLO by which a run's levels were judged; `None` without levels.
fn slo_of(run: &RunResult) -> Option<Slo> {
    let summary = &run.levels.first()?.summary;
    Some(Slo { ttft_ms: summary.slo_ttft_ms, tpot_ms: summary.slo_tpot_ms })
}

/// Which way a figure gets worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worse {
    Higher,
    Lower,
}

/// A figure that is compared.
struct Metric {
    name: &'static str,
    unit: &'static str,
    /// From seconds, or as it is.
    scale: f64,
    worse: Worse,
    /// Its name among the figures over repeats.
    repeat_name: &'static str,
    value: fn(&Summary) -> Option<f64>,
    threshold: fn(&Thresholds) -> Option<f64>,
}

/// Returns a latency, in milliseconds.
const fn latency(
    name: &'static str,
    repeat_name: &'static str,
    value: fn(&Summary) -> Option<f64>,
    threshold: fn(&Thresholds) -> Option<f64>,
) -> Metric {
    Metric { name, unit: "ms", scale: 1e3, worse: Worse::Higher, repeat_name, value, threshold }
}

/// Returns a rate.
const fn rate(
    name: &'static str,
    unit: &'static str,
    repeat_name: &'static str,
    value: fn(&Summary) -> Option<f64>,
    threshold: fn(&Thresholds) -> Option<f64>,
) -> Metric {
    Metric { name, unit, scale: 1.0, worse: Worse::Lower, repeat_name, value, threshold }
}

const METRICS: [Metric; 8] = [
    latency("TTFT p50", "ttft_p50", |level| level.ttft.p50, |limits| Some(limits.ttft)),
    latency("TTFT p99", "ttft_p99", |level| level.ttft.p99, |limits| limits.ttft_p99),
    latency("TPOT p50", "tpot_p50", |level| level.tpot.p50, |limits| Some(limits.tpot)),
    latency("TPOT p99", "tpot_p99", |level| level.tpot.p99, |limits| limits.tpot_p99),
    latency("ITL p99", "itl_p99", |level| level.itl.p99, |limits| limits.itl_p99),
    latency("E2E p99", "e2e_p99", |level| level.e2e.p99, |limits| limits.e2e_p99),
    rate(
        "output throughput",
        "tokens/s",
        "output_throughput",
        |level| Some(level.output_throughput),
        |limits| Some(limits.throughput),
    ),
    rate(
        "goodput",
        "requests/s",
        "goodput",
        |level| level.slo_ttft_ms.or(level.slo_tpot_ms).map(|_| level.goodput),
        |limits| Some(limits.goodput),
    ),
];

fn check_level(
    baseline: &LevelResult,
    candidate: &LevelResult,
    thresholds: &Thresholds,
    noise: NoisePolicy,
) -> LevelCheck {
    let mut metrics: Vec<MetricCheck> = METRICS
        .iter()
        .filter_map(|metric| {
            let threshold = (metric.threshold)(thresholds)?;
            check_metric(metric, baseline, candidate, threshold, noise)
        })
        .collect();
    metrics.push(check_errors(baseline, candidate, thresholds.error_rate));
    let passed = metrics.iter().all(|metric| metric.verdict != Verdict::Fail);
    LevelCheck { label: baseline.label(), passed, metrics }
}

/// Compares one figure; `None` when the baseline does not have it, so that nothing can be worse.
fn check_metric(
    metric: &Metric,
    baseline: &LevelResult,
    candidate: &LevelResult,
    threshold_pct: f64,
    noise: NoisePolicy,
) -> Option<MetricCheck> {
    let repeated = repeated(metric, baseline, candidate);
    let (before, after) = match &repeated {
        Some((before, after, _)) => (*before, Some(*after)),
        None => ((metric.value)(&baseline.summary)?, (metric.value)(&candidate.summary)),
    };
    let change_pct = after.filter(|_| before > 0.0).map(|after| (after / before - 1.0) * 100.0);
    let is_worse = match (after, metric.worse) {
        // Nothing completed, so there is no figure any more.
        (None, _) => true,
        (Some(after), Worse::Higher) => after > before * (1.0 + threshold_pct / 100.0),
        (Some(after), Worse::Lower) => after < before * (1.0 - threshold_pct / 100.0),
    };
    let is_noise = matches!(repeated, Some((_, _, Difference::Noise)));
    let verdict = match (is_worse, is_noise, noise) {
        (false, _, _) => Verdict::Pass,
        (true, true, NoisePolicy::Excuse) => Verdict::Noise,
        (true, _, _) => Verdict::Fail,
    };
    Some(MetricCheck {
        metric: metric.name,
        baseline: Some(before * metric.scale),
        candidate: after.map(|after| after * metric.scale),
        unit: metric.unit,
        change_pct,
        threshold_pct,
        verdict,
    })
}

/// Returns both means over repeats, and whether chance explains their difference.
fn repeated(
    metric: &Metric,
    baseline: &LevelResult,
    candidate: &LevelResult,
) -> Option<(f64, f64, Difference)> {
    let (before, after) = (
        baseline.repeat_metrics.as_ref()?.get(metric.repeat_name)?,
        candidate.repeat_metrics.as_ref()?.get(metric.repeat_name)?,
    );
    let num_runs = (baseline.repeat_count, candidate.repeat_count);
    Some((before.mean, after.mean, difference(before, after, num_runs)?))
}

fn check_errors(
    baseline: &LevelResult,
    candidate: &LevelResult,
    threshold_pct: f64,
) -> MetricCheck {
    let percentage = |level: &LevelResult| {
        let (failed, completed) = (level.summary.failed, level.summary.completed);
        (failed + completed > 0).then(|| as_f64(failed) / as_f64(failed + completed) * 100.0)
    };
    let (before, after) = (percentage(baseline), percentage(candidate));
    // A level without requests shows nothing.
    let is_within = after.is_some_and(|after| after <= threshold_pct);
    MetricCheck {
        metric: "failed requests",
        baseline: before,
        candidate: after,
        unit: "%",
        change_pct: None,
        threshold_pct,
        verdict: if is_within { Verdict::Pass } else { Verdict::Fail },
    }
}

/// Says why a figure failed.
fn failure(level: &LevelCheck, metric: &MetricCheck) -> Option<String> {
    if metric.verdict != Verdict::Fail {
        return None;
    }
    let MetricCheck { metric: name, unit, threshold_pct, .. } = metric;
    let label = &level.label;
    let Some(after) = metric.candidate else {
        return Some(format!("{label}: the candidate has no {name}, no request gave one."));
    };
    let after = number(after);
    let before = metric.baseline.map_or_else(|| "nothing".to_owned(), number);
    if *name == "failed requests" {
        return Some(format!("{label}: {after} % of requests failed, {threshold_pct} % may."));
    }
    let change = metric.change_pct.map_or_else(String::new, |change| format!("{change:+.1} %, "));
    Some(format!(
        "{label}: {name} went from {before} to {after} {unit} ({change}limit {threshold_pct} %)."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Mode, RequestResult};
    use crate::statistics::merge_repeats;
    use crate::statistics::sample_requests::{even_request, failed_request, level_of, run_of};

    const SLO: Slo = Slo { ttft_ms: Some(500.0), tpot_ms: Some(50.0) };

    /// Ten requests one after the other, 11 tokens each.
    fn requests(ttft: f64, gap: f64) -> Vec<RequestResult> {
        (0..10).map(|i| even_request(i, as_f64(i), ttft, gap, 11)).collect()
    }

    fn level(load: f64, ttft: f64, gap: f64) -> LevelResult {
        level_of(Mode::Concurrency, load, requests(ttft, gap), 10.0, SLO)
    }

    fn run(levels: Vec<LevelResult>) -> RunResult {
        run_of("run", levels)
    }

    fn checked(candidate: &RunResult, baseline: &RunResult) -> CheckReport {
        check(candidate, baseline, &Thresholds::default(), NoisePolicy::Excuse).unwrap()
    }

    /// Returns the names of the figures that failed.
    fn failed(report: &CheckReport) -> Vec<&'static str> {
        let metrics = report.levels.iter().flat_map(|level| &level.metrics);
        metrics
            .filter(|metric| metric.verdict == Verdict::Fail)
            .map(|metric| metric.metric)
            .collect()
    }

    #[test]
    fn a_run_passes_against_itself_and_when_it_is_faster() {
        let baseline = run(vec![level(1.0, 0.1, 0.01), level(2.0, 0.2, 0.02)]);
        assert!(checked(&baseline, &baseline).passed);
        let faster = run(vec![level(1.0, 0.01, 0.001), level(2.0, 0.02, 0.002)]);
        let report = checked(&faster, &baseline);
        assert!(report.passed, "{:?}", report.failures);
    }

    #[test]
    fn each_figure_fails_beyond_its_threshold_only() {
        let baseline = run(vec![level(1.0, 0.1, 0.01)]);
        for (ttft, gap, expected) in [
            (0.1149, 0.01, vec![]),
            (0.1151, 0.01, vec!["TTFT p50"]),
            (0.1, 0.0109, vec![]),
            (0.1, 0.0111, vec!["TPOT p50"]),
        ] {
            let report = checked(&run(vec![level(1.0, ttft, gap)]), &baseline);
            assert_eq!(failed(&report), expected, "{ttft}, {gap}");
            assert_eq!(report.passed, expected.is_empty());
        }
        let mut slower = run(vec![level(1.0, 0.1, 0.01)]);
        slower.levels[0].summary.output_throughput *= 0.89;
        assert_eq!(failed(&checked(&slower, &baseline)), ["output throughput"]);
        slower.levels[0].summary.goodput *= 0.89;
        assert_eq!(failed(&checked(&slower, &baseline)), ["output throughput", "goodput"]);
    }

    #[test]
    fn p99_is_checked_where_a_threshold_is_given() {
        let baseline = run(vec![level(1.0, 0.1, 0.01)]);
        let mut slow_one = run(vec![level(1.0, 0.1, 0.01)]);
        slow_one.levels[0].requests[3] = even_request(3, 3.0, 0.45, 0.01, 11);
        resummarize(&mut slow_one, SLO);
        assert!(checked(&slow_one, &baseline).passed);
        let strict = Thresholds { ttft_p99: Some(20.0), ..Thresholds::default() };
        let report = check(&slow_one, &baseline, &strict, NoisePolicy::Excuse).unwrap();
        assert_eq!(failed(&report), ["TTFT p99"]);
    }

    #[test]
    fn levels_that_are_missing_or_not_in_common_fail() {
        let baseline = run(vec![level(1.0, 0.1, 0.01), level(2.0, 0.1, 0.01)]);
        let report = checked(&run(vec![level(2.0, 0.1, 0.01)]), &baseline);
        assert!(!report.passed && report.failures[0].starts_with("c=1: "), "{report:?}");
        let report = checked(&run(vec![level(4.0, 0.1, 0.01)]), &baseline);
        assert_eq!(report.failures.len(), 3, "{:?}", report.failures);
        assert!(!checked(&run(Vec::new()), &run(Vec::new())).passed, "nothing was checked");
        let more = run(vec![level(1.0, 0.1, 0.01), level(2.0, 0.1, 0.01), level(4.0, 9.0, 0.9)]);
        assert!(checked(&more, &baseline).passed, "nothing to compare a further level with");
    }

    #[test]
    fn a_rise_from_zero_counts() {
        let baseline = run(vec![level(1.0, 0.0, 0.01)]);
        let report = checked(&run(vec![level(1.0, 0.4, 0.01)]), &baseline);
        assert_eq!(failed(&report), ["TTFT p50"]);
        assert_eq!(report.levels[0].metrics[0].change_pct, None);
    }

    #[test]
    fn failed_requests_fail_the_level_and_leave_no_figure() {
        let baseline = run(vec![level(1.0, 0.1, 0.01)]);
        let broken = (0..10).map(|i| failed_request(i, as_f64(i), "HTTP 500")).collect();
        let broken = run(vec![level_of(Mode::Concurrency, 1.0, broken, 10.0, SLO)]);
        let report = checked(&broken, &baseline);
        let expected = ["TTFT p50", "TPOT p50", "output throughput", "goodput", "failed requests"];
        assert_eq!(failed(&report), expected);
        let mut some = level(1.0, 0.1, 0.01);
        some.requests.push(failed_request(10, 10.0, "HTTP 500"));
        some.summary.failed = 1;
        assert_eq!(failed(&checked(&run(vec![some]), &baseline)), ["failed requests"]);
    }

    fn repeated(ttfts: [f64; 4]) -> RunResult {
        let runs = ttfts.map(|ttft| level(1.0, ttft, 0.01));
        run(vec![merge_repeats(runs.to_vec(), SLO).unwrap()])
    }

    #[test]
    fn what_chance_explains_is_noise_unless_it_is_to_count() {
        let baseline = repeated([0.10, 0.14, 0.08, 0.12]);
        let noisy = repeated([0.11, 0.19, 0.09, 0.15]);
        let report = checked(&noisy, &baseline);
        assert!(report.passed, "{:?}", report.failures);
        assert_eq!(report.levels[0].metrics[0].verdict, Verdict::Noise);
        let strict = check(&noisy, &baseline, &Thresholds::default(), NoisePolicy::Count).unwrap();
        assert_eq!(failed(&strict), ["TTFT p50"]);
        let slower = repeated([0.20, 0.21, 0.19, 0.20]);
        assert_eq!(failed(&checked(&slower, &baseline)), ["TTFT p50"]);
    }

    #[test]
    fn goodput_is_judged_by_the_slo_of_the_baseline() {
        let baseline = run(vec![level(1.0, 0.1, 0.01)]);
        let lenient = Slo { ttft_ms: Some(9000.0), tpot_ms: None };
        let mut slower = run(vec![level(1.0, 0.6, 0.01)]);
        resummarize(&mut slower, lenient);
        let report = checked(&slower, &baseline);
        assert_eq!(failed(&report), ["TTFT p50", "goodput"]);
        assert_eq!(report.notes.len(), 1);
    }

    #[test]
    fn different_prompts_do_not_compare() {
        let baseline = run(vec![level(1.0, 0.1, 0.01)]);
        let mut other = baseline.clone();
        other.config.input_len = 1024;
        let reasons = check(&other, &baseline, &Thresholds::default(), NoisePolicy::Excuse);
        assert!(reasons.unwrap_err()[0].contains("prompt lengths"));
    }
}
