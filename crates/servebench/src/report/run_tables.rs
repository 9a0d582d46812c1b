//! The tables of one run: the terminal and Markdown show the same.

use super::figures::{
    MISSING, bar, milliseconds_or_dash, number, number_or_dash, percent_or_dash, slo_text,
};
use super::run_sentences::slo_of;
use super::table::{Align, Table};
use crate::results::{LevelResult, RepeatMetric, RunResult, Slo};

/// Width of a bar, in characters.
const BAR_WIDTH: u8 = 14;

/// Returns the tables that have something to show, each with what explains it.
pub(super) fn tables(run: &RunResult) -> Vec<(Table, String)> {
    let slo = slo_of(run);
    let goodput = if slo == Slo::default() {
        "Steady: without start and end.".to_owned()
    } else {
        format!("Steady: without start and end. Goodput: requests/s that met {}.", slo_text(slo))
    };
    let all = [
        (throughput(run), goodput),
        (latency(run), "Worst: mean of the slowest tenth.".to_owned()),
        (confidence(run), "Mean over the runs ± half of its 95 % interval.".to_owned()),
        (server_times(run), "By the server's own clock.".to_owned()),
        (gpu(run), String::new()),
        (server_metrics(run), String::new()),
    ];
    all.into_iter().filter(|(table, _)| !table.is_empty()).collect()
}

/// Returns what each level achieved: requests, tokens and how many met the SLO.
fn throughput(run: &RunResult) -> Table {
    let most = run.levels.iter().map(|level| level.summary.output_throughput).fold(0.0, f64::max);
    let mut table = Table::default()
        .column("load", Align::Left)
        .group("requests", &["done", "failed"])
        .column("req/s", Align::Right)
        .group("output tokens/s", &["all", "steady"])
        .column("", Align::Left)
        .column("goodput", Align::Right)
        .column("in SLO", Align::Right);
    for level in &run.levels {
        let summary = &level.summary;
        let has_slo = summary.slo_ttft_ms.or(summary.slo_tpot_ms).is_some();
        let in_slo = |text: String| if has_slo { text } else { MISSING.to_owned() };
        table.push(vec![
            load_title(level),
            summary.completed.to_string(),
            summary.failed.to_string(),
            number(summary.request_throughput),
            number(summary.output_throughput),
            number_or_dash(summary.steady_state_output_throughput),
            bar(summary.output_throughput / most, BAR_WIDTH),
            in_slo(number(summary.goodput)),
            in_slo(percent_or_dash(summary.slo_attainment)),
        ]);
    }
    table
}

/// Returns the latencies of each level, in milliseconds.
fn latency(run: &RunResult) -> Table {
    let mut table = Table::default()
        .column("load", Align::Left)
        .group("TTFT ms", &["p50", "p90", "p99", "worst"])
        .group("TPOT ms", &["p50", "p90", "p99"])
        .group("ITL ms", &["p50", "p99"])
        .group("E2E ms", &["p50", "p90", "p99"]);
    for level in &run.levels {
        let summary = &level.summary;
        let (ttft, tpot) = (&summary.ttft, &summary.tpot);
        let (itl, e2e) = (&summary.itl, &summary.e2e);
        let figures = [
            ttft.p50,
            ttft.p90,
            ttft.p99,
            ttft.worst10_mean,
            tpot.p50,
            tpot.p90,
            tpot.p99,
            itl.p50,
            itl.p99,
            e2e.p50,
            e2e.p90,
            e2e.p99,
        ];
        let mut row = vec![level.label()];
        row.extend(figures.map(milliseconds_or_dash));
        table.push(row);
    }
    table
}

/// Returns mean and interval of the levels that ran several times.
fn confidence(run: &RunResult) -> Table {
    let titles = ["req/s", "out tok/s", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "E2E p50 ms"];
    let names =
        ["request_throughput", "output_throughput", "ttft_p50", "ttft_p99", "tpot_p50", "e2e_p50"];
    let mut table = Table::default().column("load", Align::Left).column("runs", Align::Right);
    for title in titles {
        table = table.column(title, Align::Right);
    }
    for level in &run.levels {
        let Some(metrics) = &level.repeat_metrics else { continue };
        let mut row = vec![level.label(), level.repeat_count.to_string()];
        for name in names {
            let scale = if name.ends_with("throughput") { 1.0 } else { 1e3 };
            row.push(
                metrics
                    .get(name)
                    .map_or_else(|| MISSING.to_owned(), |metric| mean_and_interval(metric, scale)),
            );
        }
        table.push(row);
    }
    table
}

/// Writes a mean and half the width of its interval, with as many decimals.
fn mean_and_interval(metric: &RepeatMetric, scale: f64) -> String {
    let mean = number(metric.mean * scale);
    let Some((_, high)) = metric.ci95 else { return mean };
    let num_decimals = mean.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    format!("{mean} ±{:.num_decimals$}", (high - metric.mean) * scale)
}

/// Returns what the server says about its own times, where it does.
fn server_times(run: &RunResult) -> Table {
    let mut table = Table::default()
        .column("load", Align::Left)
        .group("server ms, p50", &["prefill", "decode", "queue and network"])
        .column("TTFT p50 ms", Align::Right);
    for level in &run.levels {
        let summary = &level.summary;
        let times = [
            &summary.server_prefill_ms,
            &summary.server_decode_ms,
            &summary.queue_network_overhead_ms,
        ];
        if times.iter().all(|stats| stats.count == 0) {
            continue;
        }
        let mut row = vec![level.label()];
        row.extend(times.map(|stats| number_or_dash(stats.p50)));
        row.push(milliseconds_or_dash(summary.ttft.p50));
        table.push(row);
    }
    table
}

/// Returns GPU use for each level, where it was measured.
fn gpu(run: &RunResult) -> Table {
    let mut table = Table::default()
        .column("load", Align::Left)
        .group("GPU %", &["mean", "peak"])
        .group("memory MiB", &["mean", "peak"])
        .group("power W", &["mean", "peak"])
        .column("tokens/J", Align::Right);
    for level in &run.levels {
        let Some(gpu) = &level.gpu_telemetry else { continue };
        let figures = [
            gpu.avg_gpu_util,
            gpu.peak_gpu_util,
            gpu.avg_vram_used_mb,
            gpu.peak_vram_used_mb,
            gpu.avg_power_w,
            gpu.peak_power_w,
            gpu.tokens_per_joule,
        ];
        let mut row = vec![level.label()];
        row.extend(figures.map(number_or_dash));
        table.push(row);
    }
    table
}

/// Returns the server's own metrics, one row each, with a column for each level.
fn server_metrics(run: &RunResult) -> Table {
    let told: Vec<&LevelResult> =
        run.levels.iter().filter(|level| level.prometheus_metrics.is_some()).collect();
    let metrics = |level: &LevelResult| level.prometheus_metrics.clone().unwrap_or_default();
    let mut names: Vec<String> = told.iter().flat_map(|level| metrics(level).into_keys()).collect();
    names.sort_unstable();
    names.dedup();
    let mut table = Table::default().column("server's own metrics", Align::Left);
    for level in &told {
        table = table.column(level.label(), Align::Right);
    }
    for name in names {
        let values = told.iter().map(|level| number_or_dash(metrics(level).get(&name).copied()));
        let values: Vec<String> = values.collect();
        table.push(std::iter::once(name).chain(values).collect());
    }
    table
}

/// Writes what a level is called, and how often it ran.
fn load_title(level: &LevelResult) -> String {
    match level.repeat_count {
        0 | 1 => level.label(),
        count => format!("{} (×{count})", level.label()),
    }
}
