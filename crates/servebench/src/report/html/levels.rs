//! Tables of what was measured: at a glance, at every load, errors, server metrics, GPU use.

use super::super::{caption, number};
use super::markup::{Column, Field, Table};
use super::payload::by_load;
use crate::results::{GpuSummary, LevelResult, RunResult};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the table at a glance: a row for each run.
pub(super) fn headline(runs: &[RunResult]) -> Table {
    let mut table = Table::new("headline", "Runs at a glance");
    table.column("Run", Column::Text);
    table.column("Engine", Column::Text);
    for title in [
        "Peak output tokens/s",
        "TTFT p50, ms",
        "TPOT p50, ms",
        "Best goodput, requests/s",
        "90 % in target up to",
    ] {
        table.column(title, Column::Number);
    }
    table.column("Capacity found", Column::Text);
    for (i, run) in runs.iter().enumerate() {
        table.row(format!("data-run=\"{i}\""), headline_row(run));
    }
    table
}

fn headline_row(run: &RunResult) -> Vec<Field> {
    let levels = by_load(run);
    let most = |value: fn(&LevelResult) -> f64| {
        levels
            .iter()
            .map(|level| value(level))
            .max_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal))
            .map_or_else(|| number::UNKNOWN.to_owned(), number::short)
    };
    let lowest = levels.first().map(|level| &level.summary);
    let figure = |text: String, name| Field::number(text, None).named(name);
    let holds = run.goodput_at.iter().flatten().find(|at| at.attainment == 0.9);
    let holds = holds.map_or_else(
        || number::UNKNOWN.to_owned(),
        |at| match at.load {
            Some(load) if at.is_lower_bound => format!("≥ {}", number::short(load)),
            Some(load) => number::short(load),
            None => "below the lowest load".to_owned(),
        },
    );
    let capacity = run.capacity.as_ref();
    vec![
        Field::text(run.label.clone()),
        Field::text(caption::engine(run)),
        figure(most(|level| level.summary.output_throughput), "peak"),
        figure(number::milliseconds(lowest.and_then(|summary| summary.ttft.p50)), "ttft"),
        figure(number::milliseconds(lowest.and_then(|summary| summary.tpot.p50)), "tpot"),
        figure(most(|level| level.summary.goodput), "goodput"),
        figure(holds, "holds"),
        Field::text(capacity.map_or_else(|| "not searched".to_owned(), caption::capacity)),
    ]
}

/// Returns the table of every load of every run.
pub(super) fn every_level(runs: &[RunResult]) -> Table {
    let mut table = Table::new("levels", "Every load of every run");
    table.column("Run", Column::Text);
    for title in [
        "Load",
        "Done",
        "Failed",
        "Output tokens/s",
        "Requests/s",
        "TTFT p50, ms",
        "TTFT p90",
        "TTFT p99",
        "TPOT p50, ms",
        "TPOT p99",
        "ITL p50, ms",
        "ITL p99",
        "E2E p50, ms",
        "E2E p99",
        "In target, %",
        "Goodput, requests/s",
        "Tokens per output",
        "Client lag p99, ms",
    ] {
        table.column(title, Column::Number);
    }
    for (i, run) in runs.iter().enumerate() {
        for (j, level) in by_load(run).into_iter().enumerate() {
            table.row(format!("data-run=\"{i}\" data-level=\"{j}\""), level_row(run, level));
        }
    }
    table
}

#[expect(clippy::cast_precision_loss, reason = "a number of requests is far below 2^52")]
fn level_row(run: &RunResult, level: &LevelResult) -> Vec<Field> {
    let summary = &level.summary;
    let count = |count: usize| Field::number(number::exact(count as f64), Some(count as f64));
    let rate = |rate: f64| Field::number(number::short(rate), Some(rate));
    let ms = |seconds: Option<f64>| Field::number(number::milliseconds(seconds), seconds);
    let optional = |value: Option<f64>| {
        let text = value.map_or_else(|| number::UNKNOWN.to_owned(), number::short);
        Field::number(text, value)
    };
    let failed = count(summary.failed);
    let load = level.value.0;
    let attainment = summary.slo_attainment;
    vec![
        Field::text(run.label.clone()),
        // Infinity is above all loads, and no number of JSON or HTML.
        Field::number(level.label(), Some(if load.is_finite() { load } else { f64::MAX })),
        count(summary.completed),
        if summary.failed > 0 { failed.with_class("bad") } else { failed },
        rate(summary.output_throughput),
        rate(summary.request_throughput),
        ms(summary.ttft.p50),
        ms(summary.ttft.p90),
        ms(summary.ttft.p99),
        ms(summary.tpot.p50),
        ms(summary.tpot.p99),
        ms(summary.itl.p50),
        ms(summary.itl.p99),
        ms(summary.e2e.p50),
        ms(summary.e2e.p99),
        Field::number(
            attainment.map_or_else(|| number::UNKNOWN.to_owned(), number::percent),
            attainment,
        )
        .named("attainment"),
        rate(summary.goodput).named("goodput"),
        optional(summary.output_tokens_mean),
        optional(level.client_lag_p99_ms),
    ]
}

/// Returns the table of failed requests by kind of error.
#[expect(clippy::cast_precision_loss, reason = "a number of requests is far below 2^52")]
pub(super) fn errors(runs: &[RunResult]) -> Table {
    let mut table = Table::new("errors", "Failed requests by kind");
    for title in ["Run", "Load", "Error", "Example"] {
        table.column(title, Column::Text);
    }
    table.column("Requests", Column::Number);
    for run in runs {
        for level in by_load(run) {
            let mut kinds: BTreeMap<String, (usize, &str)> = BTreeMap::new();
            for request in level.requests.iter().filter(|request| !request.ok) {
                let message = request.error.as_deref().unwrap_or_default();
                kinds.entry(super::notice::error_kind(request)).or_insert((0, message)).0 += 1;
            }
            for (kind, (count, example)) in kinds {
                let fields = vec![
                    Field::text(run.label.clone()),
                    Field::text(level.label()),
                    Field::text(kind),
                    Field::text(example).with_class("code"),
                    Field::number(number::exact(count as f64), Some(count as f64)),
                ];
                table.row("", fields);
            }
        }
    }
    table
}

/// Returns the table of what servers' own metrics say.
pub(super) fn server_metrics(runs: &[RunResult]) -> Table {
    let metrics = |level: &LevelResult| level.prometheus_metrics.clone().unwrap_or_default();
    named_figures("server", "Server metrics by load", runs, metrics)
}

/// Returns the table of GPU use.
pub(super) fn gpu(runs: &[RunResult]) -> Table {
    named_figures("gpu", "GPU use by load", runs, |level| {
        let summary = level.gpu_telemetry.as_ref().or(level.summary.gpu_telemetry.as_ref());
        summary.map(gpu_figures).unwrap_or_default()
    })
}

fn gpu_figures(gpu: &GpuSummary) -> BTreeMap<String, f64> {
    let figures = [
        ("use, mean %", gpu.avg_gpu_util),
        ("use, peak %", gpu.peak_gpu_util),
        ("memory, peak MiB", gpu.peak_vram_used_mb),
        ("memory traffic, mean %", gpu.avg_mem_util),
        ("power, mean W", gpu.avg_power_w),
        ("power, peak W", gpu.peak_power_w),
        ("energy, J", gpu.energy_consumed_joules),
        ("tokens per J", gpu.tokens_per_joule),
        ("temperature, peak °C", gpu.peak_temp_c),
        ("clock, mean MHz", gpu.avg_sm_clock_mhz),
    ];
    figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Returns a table with a row for each level that has figures and a column for each name.
fn named_figures(
    id: &'static str,
    title: &'static str,
    runs: &[RunResult],
    figures: impl Fn(&LevelResult) -> BTreeMap<String, f64>,
) -> Table {
    let mut table = Table::new(id, title);
    let names: BTreeSet<String> = runs
        .iter()
        .flat_map(|run| &run.levels)
        .flat_map(|level| figures(level).into_keys())
        .collect();
    table.column("Run", Column::Text);
    table.column("Load", Column::Text);
    for name in &names {
        table.column(name.replace('_', " "), Column::Number);
    }
    for run in runs {
        for level in by_load(run) {
            let figures = figures(level);
            if figures.is_empty() {
                continue;
            }
            let mut fields = vec![Field::text(run.label.clone()), Field::text(level.label())];
            fields.extend(names.iter().map(|name| {
                let value = figures.get(name).copied();
                let text = value.map_or_else(|| number::UNKNOWN.to_owned(), number::short);
                Field::number(text, value)
            }));
            table.row("", fields);
        }
    }
    table
}
