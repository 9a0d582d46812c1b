//! A level that ran several times, and a run under another SLO.
//!
//! The requests of a repeated level are those of its runs, one run after the other, numbered
//! through; `repeats` says how many each run had. Times count from the start of their own run, so
//! what depends on when things happened is computed run by run.

use super::distribution::mean;
use super::student_t::critical_value_95;
use super::{as_f64, goodput_at, summarize};
use crate::diagnosis::diagnose;
use crate::results::{LevelResult, RepeatMetric, RequestResult, RunResult, Slo, Summary};
use std::collections::BTreeMap;

/// Returns mean, spread and confidence of some values; `None` of no values. One value has no spread
/// to be confident about, hence no interval.
#[must_use]
pub fn repeat_metric(values: &[f64]) -> Option<RepeatMetric> {
    let mean = mean(values)?;
    let degrees_of_freedom = values.len() - 1;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let std =
        if degrees_of_freedom == 0 { 0.0 } else { (squares / as_f64(degrees_of_freedom)).sqrt() };
    let ci95 = critical_value_95(degrees_of_freedom).map(|critical| {
        let half = critical * std / as_f64(values.len()).sqrt();
        (mean - half, mean + half)
    });
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(RepeatMetric { mean, std, min, max, ci95 })
}

/// Returns mean, spread and confidence of the main figures over repeated runs of one level. Runs in
/// which a figure is unknown, because no request completed, are not among its values.
#[must_use]
pub fn summarize_repeats(repeats: &[Summary]) -> BTreeMap<String, RepeatMetric> {
    type Figure = fn(&Summary) -> Option<f64>;
    let figures: [(&str, Figure); 11] = [
        ("output_throughput", |run| Some(run.output_throughput)),
        ("request_throughput", |run| Some(run.request_throughput)),
        ("goodput", |run| Some(run.goodput)),
        ("slo_attainment", |run| run.slo_attainment),
        ("ttft_p50", |run| run.ttft.p50),
        ("ttft_p99", |run| run.ttft.p99),
        ("tpot_p50", |run| run.tpot.p50),
        ("tpot_p99", |run| run.tpot.p99),
        ("itl_p99", |run| run.itl.p99),
        ("e2e_p50", |run| run.e2e.p50),
        ("e2e_p99", |run| run.e2e.p99),
    ];
    let metrics = figures.into_iter().filter_map(|(name, figure)| {
        let values: Vec<f64> = repeats.iter().filter_map(figure).collect();
        Some((name.to_owned(), repeat_metric(&values)?))
    });
    metrics.collect()
}

/// Returns one level out of its repeated runs; `None` of no runs. Durations add up, requests are
/// numbered through, the worst lag counts, and GPU use and server metrics are the last run's.
#[must_use]
pub fn merge_repeats(mut runs: Vec<LevelResult>, slo: Slo) -> Option<LevelResult> {
    if runs.len() < 2 {
        return runs.pop();
    }
    let repeats: Vec<Summary> = runs.iter().map(|run| run.summary.clone()).collect();
    let largest = |figure: fn(&LevelResult) -> Option<f64>| {
        runs.iter().filter_map(figure).max_by(f64::total_cmp)
    };
    let client_lag_p99_ms = largest(|run| run.client_lag_p99_ms);
    let client_cpu_share = largest(|run| run.client_cpu_share);
    let interrupted: Vec<usize> = runs.iter().filter_map(|run| run.num_interrupted).collect();
    let last = |found: Option<usize>| found.unwrap_or(runs.len() - 1);
    let with_gpu = last(runs.iter().rposition(|run| run.gpu_telemetry.is_some()));
    let with_metrics = last(runs.iter().rposition(|run| run.prometheus_metrics.is_some()));
    let gpu_telemetry = runs[with_gpu].gpu_telemetry.clone();
    let mut level = LevelResult {
        mode: runs[0].mode,
        value: runs[0].value,
        duration: runs.iter().map(|run| run.duration).sum(),
        client_lag_p99_ms,
        client_cpu_share,
        summary: Summary { gpu_telemetry: gpu_telemetry.clone(), ..Summary::default() },
        repeat_count: runs.len(),
        repeats: Some(repeats),
        repeat_metrics: None,
        gpu_telemetry,
        prometheus_metrics: runs[with_metrics].prometheus_metrics.clone(),
        bottlenecks: None,
        num_interrupted: (!interrupted.is_empty()).then(|| interrupted.iter().sum()),
        requests: runs.into_iter().flat_map(|run| run.requests).collect(),
    };
    for (index, request) in level.requests.iter_mut().enumerate() {
        request.index = index;
    }
    resummarize_level(&mut level, slo);
    Some(level)
}

/// Computes every figure of a run again from its requests, for another SLO, and what limits the
/// server with them. The result of a search for capacity stays: it was searched for with its own
/// SLO.
pub fn resummarize(run: &mut RunResult, slo: Slo) {
    for level in &mut run.levels {
        resummarize_level(level, slo);
    }
    run.config.slo_ttft_ms = slo.ttft_ms;
    run.config.slo_tpot_ms = slo.tpot_ms;
    run.goodput_at = Some(goodput_at(&run.levels, slo));
    run.bottleneck_diagnosis = Some(diagnose(run));
}

/// Completes a run that another program wrote, or an older one: computes every figure again, by the
/// run's own SLO.
pub fn complete(run: &mut RunResult) {
    resummarize(run, run.config.slo());
}

/// Computes every figure of a level again from its requests.
///
/// When the requests are not those that `repeats` counts, nothing tells which run a request belongs
/// to: the figures of the single runs are then dropped, since they hold for the old SLO only. A
/// level without requests keeps what it has.
pub fn resummarize_level(level: &mut LevelResult, slo: Slo) {
    if level.requests.is_empty() {
        return;
    }
    let mut summary = summarize(&level.requests, level.duration, slo);
    summary.gpu_telemetry = level.summary.gpu_telemetry.take();
    if let Some(repeats) = level.repeats.take().filter(|repeats| !repeats.is_empty()) {
        let again = resummarize_repeats(&level.requests, repeats, slo);
        let steady = |figure: fn(&Summary) -> Option<f64>| -> Option<f64> {
            let values: Option<Vec<f64>> = again.as_ref()?.iter().map(figure).collect();
            mean(&values?)
        };
        summary.steady_state_request_throughput = steady(|run| run.steady_state_request_throughput);
        summary.steady_state_output_throughput = steady(|run| run.steady_state_output_throughput);
        level.repeat_metrics = again.as_deref().map(summarize_repeats);
        level.repeats = again;
    }
    level.summary = summary;
}

/// Summarises each run again; `None` when the runs do not add up to the requests.
fn resummarize_repeats(
    requests: &[RequestResult],
    repeats: Vec<Summary>,
    slo: Slo,
) -> Option<Vec<Summary>> {
    let mut rest = requests;
    let mut again = Vec::with_capacity(repeats.len());
    for run in repeats {
        let (own, others) = rest.split_at_checked(run.completed + run.failed)?;
        rest = others;
        let gpu_telemetry = run.gpu_telemetry;
        again.push(Summary { gpu_telemetry, ..summarize(own, run.duration, slo) });
    }
    rest.is_empty().then_some(again)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{GpuSummary, Mode};
    use crate::statistics::sample_requests::{even_request, level_of, random_requests, run_of};
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use rand_distr::{Distribution, Normal};

    const SLO: Slo = Slo { ttft_ms: Some(500.0), tpot_ms: Some(50.0) };
    const STRICT: Slo = Slo { ttft_ms: Some(50.0), tpot_ms: None };

    fn repeated_level(rng: &mut StdRng, load: f64, num_runs: usize) -> LevelResult {
        let runs = (0..num_runs)
            .map(|_| level_of(Mode::Concurrency, load, random_requests(rng, 40), 9.0, SLO));
        merge_repeats(runs.collect(), SLO).unwrap()
    }

    #[test]
    fn mean_spread_and_interval_are_those_computed_by_hand() {
        let got = repeat_metric(&[10.0, 12.0, 14.0]).unwrap();
        assert_eq!((got.mean, got.std, got.min, got.max), (12.0, 2.0, 10.0, 14.0));
        // 4.302653 · 2 / √3.
        let (low, high) = got.ci95.unwrap();
        assert!((low - 7.0317).abs() < 1e-3 && (high - 16.9683).abs() < 1e-3, "{got:?}");
    }

    #[test]
    fn one_run_has_no_interval() {
        let got = repeat_metric(&[10.0]).unwrap();
        assert_eq!((got.mean, got.std, got.ci95), (10.0, 0.0, None));
        assert_eq!(repeat_metric(&[]), None);
    }

    #[test]
    fn intervals_hold_the_true_mean_in_95_of_100_cases() {
        let normal = Normal::new(100.0, 15.0).unwrap();
        for num_runs in [2, 3, 5, 12, 25] {
            let mut rng = StdRng::seed_from_u64(5);
            let num_cases = 20_000;
            let held = (0..num_cases)
                .filter(|_| {
                    let values: Vec<f64> = (0..num_runs).map(|_| normal.sample(&mut rng)).collect();
                    let (low, high) = repeat_metric(&values).unwrap().ci95.unwrap();
                    (low..=high).contains(&100.0)
                })
                .count();
            let share = as_f64(held) / f64::from(num_cases);
            assert!((share - 0.95).abs() < 0.01, "{num_runs} runs: {share}");
        }
    }

    #[test]
    fn the_same_slo_changes_nothing_and_coming_back_restores_all() {
        let mut rng = StdRng::seed_from_u64(6);
        for case in 0..30 {
            let once = level_of(Mode::Concurrency, 1.0, random_requests(&mut rng, 50), 9.0, SLO);
            let mut run = run_of("a", vec![once, repeated_level(&mut rng, 2.0, 3)]);
            run.levels[1].summary.gpu_telemetry = Some(GpuSummary::default());
            run.goodput_at = Some(goodput_at(&run.levels, SLO));
            run.bottleneck_diagnosis = Some(diagnose(&run));
            let before = run.clone();
            resummarize(&mut run, SLO);
            assert_eq!(run, before, "case {case}");
            resummarize(&mut run, STRICT);
            assert_ne!(run.levels[0].summary, before.levels[0].summary, "case {case}");
            assert_ne!(run.levels[1].repeats, before.levels[1].repeats, "case {case}");
            assert_eq!(run.levels[1].summary.slo_ttft_ms, STRICT.ttft_ms);
            resummarize(&mut run, SLO);
            assert_eq!(run, before, "case {case}");
        }
    }

    #[test]
    fn repeats_add_up_to_their_level() {
        let level = repeated_level(&mut StdRng::seed_from_u64(7), 4.0, 3);
        let repeats = level.repeats.as_ref().unwrap();
        assert_eq!((level.repeat_count, level.duration), (3, 27.0));
        assert_eq!(repeats.iter().map(|run| run.completed).sum::<usize>(), level.summary.completed);
        assert!(level.requests.iter().enumerate().all(|(index, request)| request.index == index));
        let metric = &level.repeat_metrics.as_ref().unwrap()["output_throughput"];
        assert!((metric.mean - level.summary.output_throughput).abs() < 1e-9, "equal durations");
    }

    #[test]
    fn the_steady_state_of_a_repeated_level_is_the_mean_of_its_runs() {
        let run = || {
            let requests = (0..16).map(|i| even_request(i, as_f64(i / 4), 0.5, 0.1, 6)).collect();
            level_of(Mode::Concurrency, 4.0, requests, 4.0, SLO)
        };
        let level = merge_repeats(vec![run(), run(), run()], SLO).unwrap();
        let steady = level.summary.steady_state_output_throughput.unwrap();
        assert!((steady - 24.0).abs() < 1e-9, "{steady}");
    }

    #[test]
    fn runs_that_do_not_add_up_are_dropped_rather_than_kept_for_the_old_slo() {
        let mut level = repeated_level(&mut StdRng::seed_from_u64(8), 4.0, 3);
        level.requests.pop();
        resummarize_level(&mut level, STRICT);
        assert_eq!((level.repeats, level.repeat_metrics), (None, None));
        assert_eq!(level.summary.slo_ttft_ms, STRICT.ttft_ms);
    }

    #[test]
    fn one_run_merged_is_itself_and_none_is_nothing() {
        let mut rng = StdRng::seed_from_u64(9);
        let level = level_of(Mode::Rate, 1.0, random_requests(&mut rng, 10), 5.0, SLO);
        assert_eq!(merge_repeats(vec![level.clone()], SLO), Some(level));
        assert_eq!(merge_repeats(Vec::new(), SLO), None);
    }
}
