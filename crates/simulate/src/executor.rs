//! The device that computes nothing and takes as long as a real one would.
//!
//! A step lasts as [`MachineSpeed`] says and moves the clock by that. Every row of logits is the
//! same: it makes greedy sampling choose the one output token. Copying KV takes no time.

use crate::SimulateError;
use crate::simulated_prompt::{OUTPUT_TOKEN, VOCAB_SIZE};
use mini_infer_core::{Batch, Executor, ExecutorError, KvTransfer, ManualClock};
use std::time::Duration;

/// How long a machine takes for a step.
///
/// The rates add up, for prompt and output tokens share the step; the floor is what streaming the
/// weights once takes, however few tokens there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineSpeed {
    /// Prompt tokens per second of all sequences together; `None` for as many as a step holds.
    pub prefill_rate: Option<f64>,
    /// Output tokens per second of all sequences together; `None` for as many as a step holds.
    pub decode_rate: Option<f64>,
    /// The shortest step.
    pub step_floor: Duration,
}

impl MachineSpeed {
    /// Steps of 20 ms, whatever they compute: speed does not matter, only time passes.
    pub const DEFAULT: Self =
        Self { prefill_rate: None, decode_rate: None, step_floor: Duration::from_millis(20) };

    /// Checks that time passes in every step.
    ///
    /// # Errors
    /// When a rate is not a positive number, or the floor is under a microsecond.
    pub fn validate(&self) -> Result<(), SimulateError> {
        let rates = [("--prefill-rate", self.prefill_rate), ("--decode-rate", self.decode_rate)];
        for (what, rate) in rates {
            if let Some(rate) = rate
                && !(rate.is_finite() && rate >= 1e-3)
            {
                let expected = "at least 0.001 tokens per second".to_owned();
                return Err(SimulateError::OutOfRange { what, got: rate.to_string(), expected });
            }
        }
        if self.step_floor < Duration::from_micros(1) {
            return Err(SimulateError::OutOfRange {
                what: "--step-floor",
                got: format!("{} ms", self.step_floor.as_secs_f64() * 1e3),
                expected: "at least 0.001 ms, for shares of memory are weighted by time".to_owned(),
            });
        }
        Ok(())
    }

    fn step_time(&self, num_prefill_tokens: usize, num_decode_tokens: usize) -> Duration {
        let time = |num_tokens: usize, rate: Option<f64>| {
            rate.map_or(0.0, |rate| num_tokens as f64 / rate)
        };
        let seconds =
            time(num_prefill_tokens, self.prefill_rate) + time(num_decode_tokens, self.decode_rate);
        self.step_floor.max(Duration::from_secs_f64(seconds))
    }
}

/// The row of logits that every sequence gets.
const LOGITS: [f32; VOCAB_SIZE] = {
    let mut row = [0.0; VOCAB_SIZE];
    row[OUTPUT_TOKEN as usize] = 1.0;
    row
};

/// Plays a device.
#[derive(Debug)]
pub(crate) struct SimulatedExecutor {
    speed: MachineSpeed,
    clock: ManualClock,
}

impl SimulatedExecutor {
    /// Creates a device that moves `clock`.
    pub(crate) fn new(speed: MachineSpeed, clock: ManualClock) -> Self {
        Self { speed, clock }
    }
}

impl Executor for SimulatedExecutor {
    fn vocab_size(&self) -> usize {
        VOCAB_SIZE
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        let ends = batch.query_start_loc.windows(2);
        let num_decode_tokens = ends.filter(|ends| ends[1] - ends[0] == 1).count();
        let num_prefill_tokens = batch.num_tokens() - num_decode_tokens;
        self.clock.advance(self.speed.step_time(num_prefill_tokens, num_decode_tokens));
        logits.clear();
        for _ in &batch.logits_rows {
            logits.extend_from_slice(&LOGITS);
        }
        Ok(())
    }

    fn transfer(&mut self, _transfers: &[KvTransfer]) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_core::{BlockId, BlockSize, Clock};

    #[test]
    fn a_step_takes_its_prompt_and_output_tokens_but_never_less_than_the_floor() {
        let speed = MachineSpeed {
            prefill_rate: Some(1000.0),
            decode_rate: Some(100.0),
            step_floor: Duration::from_millis(15),
        };
        let clock = ManualClock::default();
        let mut executor = SimulatedExecutor::new(speed, clock.clone());
        let (mut batch, mut logits) = (Batch::default(), Vec::new());
        batch.push_sequence(&[1], 7, &[BlockId(0)], BlockSize::DEFAULT, true);
        executor.forward(&batch, &mut logits).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(15));
        assert_eq!(logits, LOGITS);
        batch.push_sequence(&[1; 10], 0, &[BlockId(1)], BlockSize::DEFAULT, false);
        executor.forward(&batch, &mut logits).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(15 + 10 + 10));
    }

    #[test]
    fn machines_on_which_no_time_passes_are_refused() {
        let refused = |speed: MachineSpeed| speed.validate().unwrap_err().to_string();
        MachineSpeed::DEFAULT.validate().unwrap();
        let speed = MachineSpeed { step_floor: Duration::ZERO, ..MachineSpeed::DEFAULT };
        assert!(refused(speed).contains("--step-floor is 0 ms"));
        let speed = MachineSpeed { prefill_rate: Some(f64::NAN), ..MachineSpeed::DEFAULT };
        assert!(refused(speed).contains("--prefill-rate is NaN"));
        let speed = MachineSpeed { decode_rate: Some(0.0), ..MachineSpeed::DEFAULT };
        assert!(refused(speed).contains("--decode-rate is 0"));
    }
}
