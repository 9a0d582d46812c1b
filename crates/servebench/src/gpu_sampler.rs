//! GPU use while a level runs.

use crate::results::GpuSummary;

/// Samples a GPU until it is stopped.
#[derive(Debug)]
pub struct GpuSampler {}

impl GpuSampler {
    /// Starts to sample the GPU with this number; `None` where there is none.
    #[must_use]
    pub fn start(_index: u32) -> Option<Self> {
        None
    }

    /// Stops and returns what was seen; `output_throughput` in tokens per second.
    #[must_use]
    pub fn stop(self, _output_throughput: f64) -> Option<GpuSummary> {
        None
    }
}
