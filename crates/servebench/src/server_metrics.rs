//! What a server's own metrics say about a level.
//!
//! Reads the text that Prometheus and OpenMetrics share: samples as `name{labels} value`, with
//! comments, time stamps and exemplars ignored. Engines name the same things differently; the
//! standard figures have one name for all. A figure that an engine does not tell is left out, and
//! never 0.

use crate::detect::{Probe, api_root};
use std::collections::BTreeMap;
use std::time::Duration;

/// The samples of one scrape by name. A name stands for all its samples: summed over labels, or
/// their mean where the values are shares, such as the KV use of several engines. One label's part
/// has the label behind the name, such as `kv_blocks{state="free"}`.
pub type Scrape = BTreeMap<String, f64>;

/// Longest wait for the metrics.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What several samples of one name make together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A value now; samples add up.
    Gauge,
    /// A value now, `0..=1`; samples have a mean.
    Share,
    /// A total since the server was started; samples add up.
    Counter,
}

/// A standard figure and what engines call it.
struct Figure {
    name: &'static str,
    kind: Kind,
    /// In order of preference.
    sources: &'static [&'static str],
}

/// The standard figures. Sources: vLLM 0.6 to 0.11, SGLang 0.5, llama.cpp b6000 and later, TGI 3.
const FIGURES: [Figure; 8] = [
    Figure {
        name: "num_requests_waiting",
        kind: Kind::Gauge,
        sources: &[
            "mini_infer_waiting_sequences",
            "vllm:num_requests_waiting",
            "sglang:num_queue_reqs",
            "llamacpp:requests_deferred",
            "tgi_queue_size",
        ],
    },
    Figure {
        name: "num_requests_running",
        kind: Kind::Gauge,
        sources: &[
            "mini_infer_running_sequences",
            "vllm:num_requests_running",
            "sglang:num_running_reqs",
            "llamacpp:requests_processing",
            "tgi_batch_current_size",
        ],
    },
    Figure {
        name: "gpu_cache_usage",
        kind: Kind::Share,
        sources: &[
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
            "sglang:token_usage",
            "llamacpp:kv_cache_usage_ratio",
        ],
    },
    Figure {
        name: "prompt_tokens_total",
        kind: Kind::Counter,
        sources: &[
            "mini_infer_tokens_total{kind=\"prompt\"}",
            "vllm:prompt_tokens_total",
            "sglang:prompt_tokens_total",
            "llamacpp:prompt_tokens_total",
            "tgi_request_input_length_sum",
        ],
    },
    Figure {
        name: "generation_tokens_total",
        kind: Kind::Counter,
        sources: &[
            "mini_infer_tokens_total{kind=\"output\"}",
            "vllm:generation_tokens_total",
            "sglang:generation_tokens_total",
            "llamacpp:tokens_predicted_total",
            "tgi_request_generated_tokens_sum",
        ],
    },
    Figure {
        name: "prefix_cache_hit_tokens",
        kind: Kind::Counter,
        sources: &[
            "mini_infer_prefix_cache_hit_tokens_total",
            "vllm:prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits_total",
            "sglang:cached_tokens_total",
            "llamacpp:prompt_tokens_cached_total",
        ],
    },
    Figure {
        name: "prefix_cache_queried_tokens",
        kind: Kind::Counter,
        sources: &[
            "mini_infer_prefix_cache_queried_tokens_total",
            "vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries_total",
        ],
    },
    Figure {
        name: "preemptions",
        kind: Kind::Counter,
        sources: &[
            "mini_infer_preemptions_total",
            "vllm:num_preemptions_total",
            "sglang:num_retracted_requests_total",
        ],
    },
];

/// Returns where the metrics are: `option` is a URL, or `auto` for `/metrics` beside the API.
/// `None` without an option, or when it is neither.
#[must_use]
pub fn metrics_url(base_url: &str, option: Option<&str>) -> Option<String> {
    let option = option?.trim();
    if option.starts_with("http://") || option.starts_with("https://") {
        return Some(option.to_owned());
    }
    option.eq_ignore_ascii_case("auto").then(|| format!("{}/metrics", api_root(base_url)))
}

/// Reads a server's metrics; `None` when it does not tell them.
pub async fn scrape(url: &str) -> Option<Scrape> {
    scrape_with_key(url, None).await
}

/// Reads the metrics of a server that wants a key; `None` when it does not tell them.
pub async fn scrape_with_key(url: &str, api_key: Option<&str>) -> Option<Scrape> {
    scrape_with(&Probe::new(url, TIMEOUT, api_key), url).await
}

/// Reads metrics with a probe that is there already.
pub(crate) async fn scrape_with(probe: &Probe, url: &str) -> Option<Scrape> {
    let text = probe.bytes(url).await.ok()?;
    Some(parse(&String::from_utf8_lossy(&text))).filter(|scrape| !scrape.is_empty())
}

/// Returns the standard figures: gauges at the end, counters as the difference. Counters are left
/// out without a scrape at the start, and where they fell because the server was started anew.
#[must_use]
pub fn standard_metrics(start: Option<&Scrape>, end: &Scrape) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::new();
    for figure in &FIGURES {
        let source = figure.sources.iter().find(|name| end.contains_key(**name));
        let value = source.and_then(|name| match figure.kind {
            Kind::Gauge | Kind::Share => Some(end[*name]),
            // A counter with labels may be absent before it first counts.
            Kind::Counter => Some(end[*name] - start?.get(*name).copied().unwrap_or(0.0)),
        });
        if let Some(value) = value.filter(|value| value.is_finite() && *value >= 0.0) {
            metrics.insert(figure.name.to_owned(), value);
        }
    }
    // mini-infer counts blocks, so that the share is still to be computed.
    let blocks = end.get("mini_infer_kv_pool_blocks").filter(|blocks| **blocks > 0.0);
    let active = end.get("mini_infer_kv_blocks{state=\"active\"}");
    if let Some((blocks, active)) = blocks.zip(active) {
        metrics.insert("gpu_cache_usage".to_owned(), active / blocks);
    }
    metrics
}

/// A sample as it is written.
#[derive(Debug, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// Reads a page of metrics. Lines that are no samples are left out, and so are the buckets of
/// histograms and the quantiles of summaries, which do not add up.
#[must_use]
pub fn parse(text: &str) -> Scrape {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let mut add = |name: String, value: f64| {
        let (sum, count) = sums.entry(name).or_default();
        *sum += value;
        *count += 1.0;
    };
    for sample in text.lines().filter_map(parse_line) {
        if sample.labels.iter().any(|(label, _)| label == "le" || label == "quantile") {
            continue;
        }
        for (label, value) in &sample.labels {
            add(format!("{}{{{label}={value:?}}}", sample.name), sample.value);
        }
        add(sample.name, sample.value);
    }
    let is_share = |name: &str| {
        let mut shares = FIGURES.iter().filter(|figure| figure.kind == Kind::Share);
        let family = name.split('{').next().unwrap_or_default();
        shares.any(|figure| figure.sources.contains(&family))
    };
    let value = |(name, (sum, count)): (String, (f64, f64))| {
        let value = if is_share(&name) { sum / count } else { sum };
        (name, value)
    };
    sums.into_iter().map(value).collect()
}

/// Reads one line; `None` when it is no sample.
fn parse_line(line: &str) -> Option<Sample> {
    let line = line.trim();
    let name_end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let (name, rest) = line.split_at(name_end?);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut labels = Vec::new();
    let rest = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest, &mut labels)?,
        None => rest,
    };
    // A time stamp or an exemplar may follow.
    let value = rest.split_whitespace().next()?;
    // Rust reads all forms of the format: `+Inf`, `NaN`, `1e-3`.
    let value = value.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Reads labels up to the closing brace and returns what follows it.
fn parse_labels<'a>(text: &'a str, labels: &mut Vec<(String, String)>) -> Option<&'a str> {
    let mut rest = text.trim_start();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Some(rest);
        }
        let (label, value) = rest.split_once('=')?;
        let (value, end) = parse_quoted(value.trim_start().strip_prefix('"')?)?;
        labels.push((label.trim().to_owned(), value));
        rest = end.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
}

/// Reads a label's value up to its closing quotation mark, and returns what follows it.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[i + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            _ => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests;
