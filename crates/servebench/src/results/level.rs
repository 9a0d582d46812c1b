//! One level of load: its requests and what they say.

use super::load_value::LoadValue;
use super::request::RequestResult;
use super::summary::{GpuSummary, RepeatMetric, Summary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the load of a level counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Closed loop: requests (or conversations) in flight.
    #[default]
    Concurrency,
    /// Open loop: arrivals per second, whether or not earlier requests have ended.
    Rate,
}

/// One level of load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelResult {
    /// What the load counts.
    pub mode: Mode,
    /// How much load.
    pub value: LoadValue,
    /// From the first request until the last one ended, in seconds.
    pub duration: f64,
    /// 99th percentile of how long an event that is ready waits in the client, in milliseconds.
    #[serde(default)]
    pub client_lag_p99_ms: Option<f64>,
    /// Processor time of the client for each second of the level, for each of its threads: 1 is a
    /// client that can do no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_share: Option<f64>,
    /// The requests, by number.
    pub requests: Vec<RequestResult>,
    /// The requests in a few numbers.
    pub summary: Summary,
    /// How often the level was run.
    #[serde(default = "one")]
    pub repeat_count: usize,
    /// Each run of the level in a few numbers, where it was run several times.
    #[serde(default)]
    pub repeats: Option<Vec<Summary>>,
    /// Mean, spread and confidence over the runs.
    #[serde(default)]
    pub repeat_metrics: Option<BTreeMap<String, RepeatMetric>>,
    /// GPU use meanwhile.
    #[serde(default)]
    pub gpu_telemetry: Option<GpuSummary>,
    /// What the server's own metrics say about the level.
    #[serde(default)]
    pub prometheus_metrics: Option<BTreeMap<String, f64>>,
    /// What limits the server here, in sentences.
    #[serde(default)]
    pub bottlenecks: Option<Vec<String>>,
    /// Requests that were still running when the user stopped the level; they are not among
    /// `requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_interrupted: Option<usize>,
}

fn one() -> usize {
    1
}

impl LevelResult {
    /// Creates the result of a level that was run once, of which only this is known.
    #[must_use]
    pub fn new(
        mode: Mode,
        value: LoadValue,
        duration: f64,
        requests: Vec<RequestResult>,
        summary: Summary,
    ) -> Self {
        Self {
            mode,
            value,
            duration,
            client_lag_p99_ms: None,
            client_cpu_share: None,
            requests,
            summary,
            repeat_count: one(),
            repeats: None,
            repeat_metrics: None,
            gpu_telemetry: None,
            prometheus_metrics: None,
            bottlenecks: None,
            num_interrupted: None,
        }
    }

    /// Returns what the level is called in reports, such as `c=8` or `rate=0.5`.
    #[must_use]
    pub fn label(&self) -> String {
        match self.mode {
            Mode::Concurrency => format!("c={}", self.value),
            Mode::Rate => format!("rate={}", self.value),
        }
    }
}
