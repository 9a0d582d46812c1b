//! Levels and requests as comma-separated values.
//!
//! The columns of servebench 1.1.3 come first, under its names; what it does not have follows. A
//! figure that was not measured is empty. Text is quoted where it must be, and text that a
//! spreadsheet would run as a formula gets an apostrophe in front (OWASP, *CSV Injection*).

use crate::results::{LevelResult, Mode, RequestResult, RunResult, TokenSource};

/// Returns every level of some runs, one line each, under a line of titles.
#[must_use]
pub fn levels_csv(runs: &[RunResult]) -> String {
    let rows = runs.iter().flat_map(|run| run.levels.iter().map(|level| level_row(run, level)));
    lines(&LEVEL_COLUMNS, rows)
}

/// Returns every request of a run, one line each, under a line of titles.
#[must_use]
pub fn requests_csv(run: &RunResult) -> String {
    let rows = run.levels.iter().flat_map(|level| {
        let label = level.label();
        level.requests.iter().map(move |request| request_row(&label, request))
    });
    lines(&REQUEST_COLUMNS, rows)
}

const LEVEL_COLUMNS: [&str; 45] = [
    "run",
    "label",
    "mode",
    "level",
    "repeat_count",
    "completed",
    "failed",
    "req_s",
    "req_s_std",
    "out_tok_s",
    "out_tok_s_std",
    "steady_out_tok_s",
    "ttft_p50_ms",
    "ttft_p50_std_ms",
    "ttft_p90_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p50_std_ms",
    "tpot_p90_ms",
    "tpot_p99_ms",
    "itl_p50_ms",
    "e2e_p50_s",
    "goodput",
    "slo_attainment_pct",
    "server_prefill_p50_ms",
    "server_decode_p50_ms",
    "queue_overhead_p50_ms",
    "gpu_util_avg",
    "vram_used_avg_mb",
    "power_avg_w",
    "tokens_per_joule",
    "ttft_worst10_mean_ms",
    "tpot_worst10_mean_ms",
    "itl_p90_ms",
    "itl_p99_ms",
    "e2e_p90_s",
    "e2e_p99_s",
    "normalised_latency_p50_ms",
    "send_delay_p99_ms",
    "input_tok_s",
    "cached_share_pct",
    "tokens_per_chunk",
    "client_lag_p99_ms",
    "client_cpu_pct",
    "duration_s",
];

fn level_row(run: &RunResult, level: &LevelResult) -> Vec<String> {
    let summary = &level.summary;
    let std = |name: &str, scale: f64, digits: usize| {
        let metric = level.repeat_metrics.as_ref().and_then(|metrics| metrics.get(name));
        decimal(metric.map(|metric| metric.std), scale, digits)
    };
    let gpu = level.gpu_telemetry.clone().unwrap_or_default();
    let mode = match level.mode {
        Mode::Concurrency => "concurrency",
        Mode::Rate => "rate",
    };
    vec![
        text(&run.label),
        text(&level.label()),
        mode.to_owned(),
        level.value.to_string(),
        level.repeat_count.to_string(),
        summary.completed.to_string(),
        summary.failed.to_string(),
        decimal(Some(summary.request_throughput), 1.0, 3),
        std("request_throughput", 1.0, 3),
        decimal(Some(summary.output_throughput), 1.0, 2),
        std("output_throughput", 1.0, 2),
        decimal(summary.steady_state_output_throughput, 1.0, 2),
        decimal(summary.ttft.p50, 1e3, 2),
        std("ttft_p50", 1e3, 2),
        decimal(summary.ttft.p90, 1e3, 2),
        decimal(summary.ttft.p99, 1e3, 2),
        decimal(summary.tpot.p50, 1e3, 3),
        std("tpot_p50", 1e3, 3),
        decimal(summary.tpot.p90, 1e3, 3),
        decimal(summary.tpot.p99, 1e3, 3),
        decimal(summary.itl.p50, 1e3, 3),
        decimal(summary.e2e.p50, 1.0, 4),
        decimal(Some(summary.goodput), 1.0, 3),
        decimal(summary.slo_attainment, 100.0, 2),
        decimal(summary.server_prefill_ms.p50, 1.0, 2),
        decimal(summary.server_decode_ms.p50, 1.0, 2),
        decimal(summary.queue_network_overhead_ms.p50, 1.0, 2),
        decimal(gpu.avg_gpu_util, 1.0, 1),
        decimal(gpu.avg_vram_used_mb, 1.0, 1),
        decimal(gpu.avg_power_w, 1.0, 2),
        decimal(gpu.tokens_per_joule, 1.0, 3),
        decimal(summary.ttft.worst10_mean, 1e3, 2),
        decimal(summary.tpot.worst10_mean, 1e3, 3),
        decimal(summary.itl.p90, 1e3, 3),
        decimal(summary.itl.p99, 1e3, 3),
        decimal(summary.e2e.p90, 1.0, 4),
        decimal(summary.e2e.p99, 1.0, 4),
        decimal(summary.normalised_latency.p50, 1e3, 3),
        decimal(summary.send_delay.p99, 1e3, 3),
        decimal(summary.input_throughput, 1.0, 2),
        decimal(summary.cached_share, 100.0, 2),
        decimal(summary.tokens_per_chunk, 1.0, 3),
        decimal(level.client_lag_p99_ms, 1.0, 3),
        decimal(level.client_cpu_share, 100.0, 1),
        decimal(Some(level.duration), 1.0, 4),
    ]
}

const REQUEST_COLUMNS: [&str; 22] = [
    "level",
    "index",
    "ok",
    "error",
    "start_s",
    "ttft_ms",
    "e2e_s",
    "output_tokens",
    "prompt_tokens",
    "tpot_ms",
    "chunks",
    "token_source",
    "server_prefill_ms",
    "server_decode_ms",
    "queue_network_overhead_ms",
    "send_delay_ms",
    "cached_tokens",
    "answer_start_ms",
    "reasoning_chunks",
    "finish_reason",
    "session",
    "turn",
];

fn request_row(level: &str, request: &RequestResult) -> Vec<String> {
    let source = match request.token_source {
        TokenSource::Usage => "usage",
        TokenSource::Tokenizer => "tokenizer",
        TokenSource::Chunks => "chunks",
    };
    let words = |words: &Option<String>| words.as_deref().map_or_else(String::new, text);
    vec![
        text(level),
        request.index.to_string(),
        request.ok.to_string(),
        words(&request.error),
        decimal(Some(request.start), 1.0, 6),
        decimal(request.ttft, 1e3, 3),
        decimal(request.e2e, 1.0, 6),
        request.output_tokens.to_string(),
        whole(request.prompt_tokens),
        decimal(request.tpot(), 1e3, 3),
        request.chunk_times.len().to_string(),
        source.to_owned(),
        decimal(request.server_prefill_ms, 1.0, 2),
        decimal(request.server_decode_ms, 1.0, 2),
        decimal(request.queue_network_overhead_ms, 1.0, 2),
        decimal(request.send_delay, 1e3, 3),
        whole(request.cached_tokens),
        decimal(request.answer_start, 1e3, 3),
        request.reasoning_chunks.to_string(),
        words(&request.finish_reason),
        whole(request.session),
        whole(request.turn),
    ]
}

/// Joins titles and rows; rows hold fields that are ready to be written.
fn lines(titles: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut lines = titles.join(",");
    lines.push('\n');
    for row in rows {
        debug_assert_eq!(row.len(), titles.len(), "a row has one field for each title");
        lines.push_str(&row.join(","));
        lines.push('\n');
    }
    lines
}

/// Writes a figure; nothing for one that was not measured.
fn decimal(value: Option<f64>, scale: f64, digits: usize) -> String {
    value.map_or_else(String::new, |value| format!("{:.digits$}", value * scale))
}

fn whole<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Writes somebody else's words: no spreadsheet takes them for a formula, and no reader for more
/// than one field.
fn text(words: &str) -> String {
    // A tab or a line end at the beginning is skipped by spreadsheets, which then see what follows.
    let is_formula = words.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let words = if is_formula { format!("'{words}") } else { words.to_owned() };
    if words.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", words.replace('"', "\"\""));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Slo;
    use crate::statistics::sample_requests::{even_request, failed_request, level_of, run_of};

    fn run(label: &str) -> RunResult {
        let slo = Slo { ttft_ms: Some(500.0), tpot_ms: Some(50.0) };
        let requests = vec![
            even_request(0, 0.0, 0.25, 0.01, 11),
            failed_request(1, 0.5, "HTTP 500: a, \"b\""),
        ];
        run_of(label, vec![level_of(Mode::Concurrency, 2.0, requests, 2.0, slo)])
    }

    #[test]
    fn every_row_has_a_field_for_each_title() {
        let run = run("plain");
        for csv in [levels_csv(&[run.clone(), run.clone()]), requests_csv(&run)] {
            // The error holds a comma and a line of fields cannot be split there.
            let widths: Vec<usize> = csv
                .replace("a, \"\"b\"\"", "")
                .lines()
                .map(|line| line.split(',').count())
                .collect();
            assert_eq!(widths.len(), 3);
            assert!(widths.iter().all(|width| *width == widths[0]), "{widths:?}\n{csv}");
        }
    }

    #[test]
    fn figures_are_under_their_titles_and_missing_ones_are_empty() {
        let csv = levels_csv(&[run("plain")]);
        let mut rows = csv.lines().map(|line| line.split(','));
        let (titles, row) = (rows.next().unwrap(), rows.next().unwrap());
        let fields: std::collections::BTreeMap<&str, &str> = titles.zip(row).collect();
        for (title, expected) in [
            ("run", "plain"),
            ("label", "c=2"),
            ("mode", "concurrency"),
            ("completed", "1"),
            ("failed", "1"),
            ("out_tok_s", "5.50"),
            ("ttft_p50_ms", "250.00"),
            ("e2e_p50_s", "0.3500"),
            ("slo_attainment_pct", "50.00"),
            ("steady_out_tok_s", ""),
            ("power_avg_w", ""),
            ("client_lag_p99_ms", "0.100"),
            ("duration_s", "2.0000"),
        ] {
            assert_eq!(fields[title], expected, "{title}");
        }
    }

    #[test]
    fn words_stay_one_field_and_run_nowhere() {
        for (words, expected) in [
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(1,2)", "\"'@SUM(1,2)\""),
            ("\t=1", "'\t=1"),
        ] {
            assert_eq!(text(words), expected, "{words:?}");
        }
        assert!(levels_csv(&[run("=1+1")]).contains("\n'=1+1,"));
        assert!(requests_csv(&run("a")).contains("\"HTTP 500: a, \"\"b\"\"\""));
    }
}
