//! What the engine thread's time goes to, phase by phase.
//!
//! Costs a lock that only scrapes share and a look through a dozen buckets for each phase.

use mini_infer_engine::StepTimes;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use std::time::Duration;

/// A part of the engine thread's time while there is work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepPhase {
    /// Taking commands and aborting what nobody waits for, between two steps.
    Commands,
    /// Choosing who runs and writing the batch.
    Schedule,
    /// The forward pass of a step with prompt tokens.
    Prefill,
    /// The forward pass of a step without any.
    Decode,
    /// Waiting for what constrained outputs may be.
    Masks,
    /// Choosing tokens.
    Sampling,
    /// Applying tokens.
    Output,
    /// Handing tokens to their requests.
    Delivery,
}

/// All phases, in the order in which they come.
const PHASES: [(StepPhase, &str); 8] = [
    (StepPhase::Commands, "commands"),
    (StepPhase::Schedule, "schedule"),
    (StepPhase::Prefill, "prefill"),
    (StepPhase::Decode, "decode"),
    (StepPhase::Masks, "masks"),
    (StepPhase::Sampling, "sampling"),
    (StepPhase::Output, "output"),
    (StepPhase::Delivery, "delivery"),
];

/// A histogram, in seconds, for each phase.
#[derive(Debug)]
pub(crate) struct StepPhases {
    histograms: [Histogram; PHASES.len()],
}

impl StepPhases {
    /// Creates empty histograms.
    pub(crate) fn new() -> Self {
        // 1 µs to 16 s in steps of four.
        let histogram = |_| Histogram::new(exponential_buckets(1e-6, 4.0, 13));
        Self { histograms: std::array::from_fn(histogram) }
    }

    /// Notes that a phase took `time`.
    pub(crate) fn observe(&self, phase: StepPhase, time: Duration) {
        self.histograms[phase as usize].observe(time.as_secs_f64());
    }

    /// Notes the phases of a step, without those that it did not have.
    pub(crate) fn observe_step(&self, times: &StepTimes) {
        let StepTimes { schedule, prefill, decode, masks, sampling, output } = *times;
        let phases = [
            (StepPhase::Schedule, schedule),
            (StepPhase::Prefill, prefill),
            (StepPhase::Decode, decode),
            (StepPhase::Masks, masks),
            (StepPhase::Sampling, sampling),
            (StepPhase::Output, output),
        ];
        for (phase, time) in phases.into_iter().filter(|(_, time)| !time.is_zero()) {
            self.observe(phase, time);
        }
    }

    /// Returns each histogram with its label.
    pub(crate) fn samples(
        &self,
    ) -> [([(&'static str, &'static str); 1], &Histogram); PHASES.len()] {
        PHASES.map(|(phase, name)| ([("phase", name)], &self.histograms[phase as usize]))
    }
}
