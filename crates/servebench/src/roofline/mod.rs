//! How close a run comes to what its machine could do at most.
//!
//! A decode step reads all weights once and gives each stream in it one token, so a step takes one
//! TPOT, and there are throughput x TPOT streams in it (Little's law). From that follow the bytes
//! per token, the bandwidth used and the arithmetic for each byte. KV and activations are not
//! counted, nor is what prefill reads. Following S. Williams et al., "Roofline", CACM 2009.
//!
//! Shares above 100 % are shown as they are: they mean that an assumption does not hold.

mod gpu_specs;
mod model_size;
mod peaks;
mod plot;
mod text;

pub use gpu_specs::{GpuSpec, find as find_gpu};
pub use model_size::{ModelFacts, ModelSize, parse_number};
pub use peaks::{PeakFlags, Peaks};
pub use text::{limits_text, run_text};

use crate::results::{LevelResult, RunResult};

/// One level under the roof.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelPoint {
    /// What the level is called.
    pub label: String,
    /// Output tokens per second.
    pub output_throughput: f64,
    /// Prompt tokens per second that were computed, not found in a cache; `None` when unknown.
    pub prompt_throughput: Option<f64>,
    /// Arithmetic of all tokens, as a share of the peak.
    pub mfu: f64,
    /// The decode steps; `None` without outputs of at least two tokens.
    pub decode: Option<DecodePoint>,
}

/// The decode steps of a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodePoint {
    /// Streams in a step, in the mean; at least 1.
    pub num_streams: f64,
    /// Bytes of weights read for each token.
    pub bytes_per_token: f64,
    /// Operations for each byte.
    pub intensity: f64,
    /// Operations per second while steps run.
    pub ops_per_s: f64,
    /// Bandwidth used, as a share of the peak.
    pub mbu: f64,
    /// Tokens per second that so many streams could have at most.
    pub most_tokens_per_s: f64,
}

/// What limits steps at some intensity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading the weights.
    Memory,
    /// Arithmetic.
    Compute,
}

impl Bound {
    /// Returns what limits steps at this intensity.
    #[must_use]
    pub fn at(intensity: f64, peaks: &Peaks) -> Self {
        if intensity < peaks.ridge() { Self::Memory } else { Self::Compute }
    }

    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
        }
    }
}

/// Operations of one token: each parameter is multiplied and added once.
#[must_use]
pub fn ops_per_token(model: &ModelSize) -> f64 {
    2.0 * model.num_parameters
}

/// Returns the tokens per second of decode steps with so many streams, at most.
#[must_use]
pub fn most_tokens_per_s(peaks: &Peaks, model: &ModelSize, num_streams: f64) -> f64 {
    let by_memory = peaks.bandwidth / model.weight_bytes * num_streams;
    by_memory.min(peaks.ops_per_s / ops_per_token(model))
}

/// Returns the levels of a run under the roof.
#[must_use]
pub fn analyse(run: &RunResult, peaks: &Peaks, model: &ModelSize) -> Vec<LevelPoint> {
    run.levels.iter().map(|level| analyse_level(level, peaks, model)).collect()
}

fn analyse_level(level: &LevelResult, peaks: &Peaks, model: &ModelSize) -> LevelPoint {
    let summary = &level.summary;
    let output_throughput = summary.output_throughput;
    let computed = 1.0 - summary.cached_share.unwrap_or(0.0);
    let prompt_throughput = summary.input_throughput.map(|throughput| throughput * computed);
    let tokens_per_s = output_throughput + prompt_throughput.unwrap_or(0.0);
    let ops = ops_per_token(model);
    let tpot = summary.tpot.mean.filter(|tpot| *tpot > 0.0 && output_throughput > 0.0);
    let decode = tpot.map(|tpot| {
        let num_streams = (output_throughput * tpot).max(1.0);
        let bytes_per_token = model.weight_bytes / num_streams;
        DecodePoint {
            num_streams,
            bytes_per_token,
            intensity: ops / bytes_per_token,
            ops_per_s: ops * num_streams / tpot,
            mbu: model.weight_bytes / tpot / peaks.bandwidth,
            most_tokens_per_s: most_tokens_per_s(peaks, model, num_streams),
        }
    });
    LevelPoint {
        label: level.label(),
        output_throughput,
        prompt_throughput,
        mfu: tokens_per_s * ops / peaks.ops_per_s,
        decode,
    }
}

#[cfg(test)]
mod tests;
