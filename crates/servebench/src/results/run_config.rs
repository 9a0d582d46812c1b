//! What a run was asked to do.

use super::level::Mode;
use super::load_value::LoadValue;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Which route of the API is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Endpoint {
    /// `/chat/completions`.
    #[default]
    Chat,
    /// `/completions`.
    Completions,
}

/// How lengths spread around the one asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LengthDist {
    /// All are as asked.
    Fixed,
    /// Normal, with a quarter of the mean as deviation.
    #[value(alias = "gaussian")]
    #[serde(alias = "gaussian")]
    Normal,
    /// Log-normal with the mean asked for and a deviation of 0.5 in the logarithm.
    Lognormal,
    /// Uniform from half to one and a half.
    Uniform,
}

/// How arrivals of an open loop spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ArrivalDist {
    /// Independent of each other.
    #[default]
    Poisson,
    /// In bursts, by `burstiness`.
    Gamma,
}

/// What a run was asked to do. Lengths in tokens, times in seconds unless the name ends in `_ms`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunConfig {
    /// Base URL of the API, such as `http://127.0.0.1:8000/v1`.
    pub url: String,
    /// Name of the model.
    pub model: String,
    /// Which route.
    pub endpoint: Endpoint,
    /// `synthetic`, `dolly`, or a file.
    pub prompts: String,
    /// Tokens of a prompt.
    pub input_len: u32,
    /// Tokens of an output.
    pub output_len: u32,
    /// What the levels count.
    pub mode: Mode,
    /// The levels.
    pub levels: Vec<LoadValue>,
    /// Most requests in flight in an open loop.
    pub max_concurrency: Option<usize>,
    /// Requests of a level.
    pub num_requests: Option<usize>,
    /// How long a level runs.
    pub duration: Option<f64>,
    /// How long a level runs at least.
    pub min_duration: Option<f64>,
    /// How often each level is run.
    pub repeat: usize,
    /// Requests before the first level that are not measured.
    pub warmup: usize,
    /// Seed of prompts and arrivals.
    pub seed: u64,
    /// Whether outputs are to have their full length.
    pub ignore_eos: bool,
    /// Sampling temperature.
    pub temperature: f64,
    /// Longest wait for the next bytes of a request.
    pub timeout: f64,
    /// SLO on TTFT.
    pub slo_ttft_ms: Option<f64>,
    /// SLO on TPOT.
    pub slo_tpot_ms: Option<f64>,
    /// Tokenizer for prompts of exact length and for outputs without `usage`.
    pub tokenizer: Option<String>,
    /// Name of the preset.
    pub preset: Option<String>,
    /// Spread of prompt lengths.
    pub input_dist: Option<LengthDist>,
    /// Spread of output lengths.
    pub output_dist: Option<LengthDist>,
    /// Spread of arrivals.
    pub arrival_dist: ArrivalDist,
    /// Shape of gamma arrivals: below 1 in bursts, 1 as Poisson.
    pub burstiness: f64,
    /// Tokens that all prompts begin with.
    pub shared_prefix_tokens: Option<u32>,
    /// A trace to replay.
    pub trace: Option<String>,
    /// How much faster than recorded the trace runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_speed: Option<f64>,
    /// By what the lengths of the trace are multiplied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_scale: Option<f64>,
    /// Turns of a conversation; a load then counts conversations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    /// Pause between an answer and the next turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think_time: Option<f64>,
    /// Whether GPU use was asked for.
    pub gpu_telemetry: bool,
    /// Where the server's metrics are, or `auto`.
    pub scrape_metrics: Option<String>,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            url: String::new(),
            model: String::new(),
            endpoint: Endpoint::Chat,
            prompts: "synthetic".to_owned(),
            input_len: 256,
            output_len: 128,
            mode: Mode::Concurrency,
            levels: vec![LoadValue(1.0)],
            max_concurrency: None,
            num_requests: None,
            duration: None,
            min_duration: None,
            repeat: 1,
            warmup: 2,
            seed: 0,
            ignore_eos: true,
            temperature: 0.0,
            timeout: 300.0,
            slo_ttft_ms: Some(500.0),
            slo_tpot_ms: Some(50.0),
            tokenizer: None,
            preset: None,
            input_dist: None,
            output_dist: None,
            arrival_dist: ArrivalDist::Poisson,
            burstiness: 1.0,
            shared_prefix_tokens: None,
            trace: None,
            trace_speed: None,
            trace_scale: None,
            turns: None,
            think_time: None,
            gpu_telemetry: true,
            scrape_metrics: None,
        }
    }
}

impl RunConfig {
    /// Returns what a request must meet to be good.
    #[must_use]
    pub fn slo(&self) -> super::Slo {
        super::Slo { ttft_ms: self.slo_ttft_ms, tpot_ms: self.slo_tpot_ms }
    }
}
