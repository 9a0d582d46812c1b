//! Requests of a level in a few numbers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A distribution in a few numbers, in the unit of what it describes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Mean.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
    /// Number of samples.
    pub count: usize,
    /// Mean of the worst tenth of the samples, rounded up to whole samples.
    pub worst10_mean: Option<f64>,
}

/// What a request must meet to be good.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slo {
    /// Longest time to the first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Longest time per output token after the first, in milliseconds.
    pub tpot_ms: Option<f64>,
}

/// A number over repeated runs of one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RepeatMetric {
    /// Mean over the repeats.
    pub mean: f64,
    /// Standard deviation of a sample (divided by one less than the number of repeats).
    pub std: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Where the true mean lies with 95 % confidence, by Student's t.
    #[serde(default)]
    pub ci95: Option<(f64, f64)>,
}

/// GPU use while a level ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuSummary {
    /// Name of the device.
    pub device_name: Option<String>,
    /// Number of samples.
    pub samples_count: usize,
    /// Between the first and the last sample, in seconds.
    pub duration_s: f64,
    /// Mean use of the compute units, in percent.
    pub avg_gpu_util: Option<f64>,
    /// Highest use of the compute units, in percent.
    pub peak_gpu_util: Option<f64>,
    /// Mean use of the memory controller, in percent.
    pub avg_mem_util: Option<f64>,
    /// Highest use of the memory controller, in percent.
    pub peak_mem_util: Option<f64>,
    /// Mean memory in use, in MiB.
    pub avg_vram_used_mb: Option<f64>,
    /// Most memory in use, in MiB.
    pub peak_vram_used_mb: Option<f64>,
    /// Memory of the device, in MiB.
    pub vram_total_mb: Option<f64>,
    /// Mean power, in watts.
    pub avg_power_w: Option<f64>,
    /// Highest power, in watts.
    pub peak_power_w: Option<f64>,
    /// Energy, in joules.
    pub energy_consumed_joules: Option<f64>,
    /// Mean temperature, in degrees Celsius.
    pub avg_temp_c: Option<f64>,
    /// Highest temperature, in degrees Celsius.
    pub peak_temp_c: Option<f64>,
    /// Mean clock of the compute units, in MHz.
    pub avg_sm_clock_mhz: Option<f64>,
    /// Output tokens for each joule.
    pub tokens_per_joule: Option<f64>,
}

/// The highest load at which a share of requests still meets the SLO, over the levels of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoodputAt {
    /// Share of requests that must meet the SLO, such as 0.9.
    pub attainment: f64,
    /// The load, on the scale of the levels; interpolated between the last level that holds and
    /// the first one that does not. `None` when not even the lowest level holds.
    pub load: Option<f64>,
    /// Good requests per second there.
    pub requests_per_s: Option<f64>,
    /// Whether the highest level measured still holds, so that the truth is at least this.
    pub is_lower_bound: bool,
}

/// Requests of a level in a few numbers. Times in seconds unless the name ends in `_ms`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Requests that ended as they should.
    pub completed: usize,
    /// Requests that did not.
    pub failed: usize,
    /// Failed requests by kind.
    pub errors: BTreeMap<String, usize>,
    /// Length of the level.
    pub duration: f64,
    /// Completed requests per second.
    pub request_throughput: f64,
    /// Output tokens of completed requests per second.
    pub output_throughput: f64,
    /// Prompt tokens of completed requests per second, where all are known.
    pub input_throughput: Option<f64>,
    /// Completed requests per second without the ramp at the start.
    pub steady_state_request_throughput: Option<f64>,
    /// Output tokens per second without the ramp at the start.
    pub steady_state_output_throughput: Option<f64>,
    /// Requests per second that met the SLO.
    pub goodput: f64,
    /// Share of all requests, failed ones included, that met the SLO.
    pub slo_attainment: Option<f64>,
    /// The SLO on TTFT.
    pub slo_ttft_ms: Option<f64>,
    /// The SLO on TPOT.
    pub slo_tpot_ms: Option<f64>,
    /// Time to the first token.
    pub ttft: Stats,
    /// Time per output token after the first.
    pub tpot: Stats,
    /// Gaps between pieces of text.
    pub itl: Stats,
    /// Until the end of the stream.
    pub e2e: Stats,
    /// End-to-end time per output token.
    pub normalised_latency: Stats,
    /// From when a request was due until it was sent.
    pub send_delay: Stats,
    /// Mean number of output tokens.
    pub output_tokens_mean: Option<f64>,
    /// Output tokens in one piece of text, in the mean.
    pub tokens_per_chunk: Option<f64>,
    /// Requests by where their numbers of tokens come from.
    pub token_sources: BTreeMap<String, usize>,
    /// Share of prompt tokens that the server found in its cache, where it tells.
    pub cached_share: Option<f64>,
    /// Share of pieces of text that were reasoning.
    pub reasoning_share: Option<f64>,
    /// Until the first piece of the answer.
    pub answer_start: Stats,
    /// What the server says it took for the prompt, in milliseconds.
    pub server_prefill_ms: Stats,
    /// What the server says it took for the output, in milliseconds.
    pub server_decode_ms: Stats,
    /// TTFT less the server's time for the prompt, in milliseconds.
    pub queue_network_overhead_ms: Stats,
    /// GPU use meanwhile.
    pub gpu_telemetry: Option<GpuSummary>,
}
