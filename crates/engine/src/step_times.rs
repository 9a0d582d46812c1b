//! How long the parts of a step take, by the engine's clock.

use std::time::Duration;

/// The time of one step by what was done; what did not happen took none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Choosing who runs, moving KV, and writing the batch.
    pub schedule: Duration,
    /// The forward pass of a step with prompt tokens.
    pub prefill: Duration,
    /// The forward pass of a step without any.
    pub decode: Duration,
    /// Waiting, after the forward pass, until it is known what constrained outputs may be.
    pub masks: Duration,
    /// Choosing tokens from logits.
    pub sampling: Duration,
    /// Making the tokens part of their sequences and ending those that are complete.
    pub output: Duration,
}
