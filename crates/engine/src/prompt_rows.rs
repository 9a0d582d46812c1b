//! What a sequence has read of its prompt's rows, for the report that its request wants.
//!
//! Rows are read in the order of their positions, each of them once: what was read outlives a
//! preemption, and until a row was read, neither the prefix cache nor a tier may give the KV of its
//! token. States are added up in double precision one position after the other, so that chunks make
//! no difference. Log probabilities take the memory of what will be told, at most 21 for each token;
//! logits are never kept.

use mini_infer_core::{EngineEvent, Pooling, PromptReport, RankedLogprobs, RowForm, SequenceId};
use std::ops::Range;

/// What was read, and what is still wanted.
#[derive(Debug)]
pub(crate) struct PromptRows {
    /// Positions whose rows are wanted and were not read.
    wanted: Range<u32>,
    findings: Findings,
}

#[derive(Debug)]
enum Findings {
    Logprobs { num_top: u32, found: Vec<RankedLogprobs> },
    States { sum: Vec<f64>, num_rows: u32 },
}

impl PromptRows {
    /// Prepares the report on a prompt of `num_prompt_tokens`; `None` where none is wanted.
    pub(crate) fn new(report: PromptReport, num_prompt_tokens: u32) -> Option<Box<Self>> {
        let last = num_prompt_tokens - 1;
        let states = || Findings::States { sum: Vec::new(), num_rows: 0 };
        let (wanted, findings) = match report {
            PromptReport::Nothing => return None,
            // The last row tells what follows the prompt.
            PromptReport::Logprobs { num_top } => {
                (0..last, Findings::Logprobs { num_top, found: Vec::new() })
            }
            PromptReport::Embedding(Pooling::Mean) => (0..num_prompt_tokens, states()),
            PromptReport::Embedding(Pooling::Last) => (last..num_prompt_tokens, states()),
        };
        Some(Box::new(Self { wanted, findings }))
    }

    /// Returns what is read of each row.
    pub(crate) fn form(&self) -> RowForm {
        match self.findings {
            Findings::Logprobs { .. } => RowForm::Logits,
            Findings::States { .. } => RowForm::HiddenState,
        }
    }

    /// Returns the first position whose row is wanted, if any is.
    pub(crate) fn first_wanted(&self) -> Option<u32> {
        (!self.wanted.is_empty()).then_some(self.wanted.start)
    }

    /// Returns the wanted ones of the positions that a step computes.
    pub(crate) fn wanted_of(&self, computed: Range<u32>) -> Range<u32> {
        let start = self.wanted.start.max(computed.start);
        start..self.wanted.end.min(computed.end).max(start)
    }

    /// Returns how many of the likeliest tokens are told for each row.
    pub(crate) fn num_top(&self) -> u32 {
        match self.findings {
            Findings::Logprobs { num_top, .. } => num_top,
            Findings::States { .. } => 0,
        }
    }

    /// Takes what was found in the next wanted row.
    ///
    /// # Panics
    /// When states are wanted.
    pub(crate) fn push_logprobs(&mut self, logprobs: RankedLogprobs) {
        match &mut self.findings {
            Findings::Logprobs { found, .. } => found.push(logprobs),
            Findings::States { .. } => panic!("the form of the rows is another"),
        }
        self.wanted.start += 1;
    }

    /// Takes the next wanted row's state.
    ///
    /// # Panics
    /// When logits are wanted.
    pub(crate) fn push_state(&mut self, state: &[f32]) {
        match &mut self.findings {
            Findings::States { sum, num_rows } => {
                sum.resize(state.len(), 0.0);
                for (sum, &value) in sum.iter_mut().zip(state) {
                    *sum += f64::from(value);
                }
                *num_rows += 1;
            }
            Findings::Logprobs { .. } => panic!("the form of the rows is another"),
        }
        self.wanted.start += 1;
    }

    /// Returns what the request is told, all rows being read.
    pub(crate) fn into_event(self, sequence: SequenceId) -> EngineEvent {
        debug_assert!(self.wanted.is_empty(), "the report on {sequence} is not complete");
        match self.findings {
            Findings::Logprobs { found, .. } => {
                EngineEvent::PromptLogprobs { sequence, logprobs: found }
            }
            Findings::States { sum, num_rows } => {
                #[expect(clippy::cast_possible_truncation, reason = "a mean of f32s is one")]
                let mean = |sum: f64| (sum / f64::from(num_rows)) as f32;
                EngineEvent::Embedding { sequence, values: sum.into_iter().map(mean).collect() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_core::RequestId;

    const SEQUENCE: SequenceId = SequenceId { request: RequestId(1), index: 0 };

    fn wanted(report: PromptReport) -> Range<u32> {
        PromptRows::new(report, 10).unwrap().wanted_of(0..20)
    }

    #[test]
    fn each_report_wants_its_own_rows_and_each_of_them_once() {
        assert!(PromptRows::new(PromptReport::Nothing, 10).is_none());
        assert_eq!(wanted(PromptReport::Logprobs { num_top: 2 }), 0..9);
        assert_eq!(wanted(PromptReport::Embedding(Pooling::Mean)), 0..10);
        assert_eq!(wanted(PromptReport::Embedding(Pooling::Last)), 9..10);
        let mut rows = PromptRows::new(PromptReport::Logprobs { num_top: 2 }, 3).unwrap();
        assert_eq!((rows.first_wanted(), rows.wanted_of(1..2)), (Some(0), 1..2));
        for logprob in [-1.0, -2.0] {
            rows.push_logprobs(RankedLogprobs { rank: 1, chosen: logprob, top: Vec::new() });
        }
        assert_eq!(rows.first_wanted(), None);
        assert!(rows.wanted_of(0..3).is_empty());
        let EngineEvent::PromptLogprobs { logprobs, .. } = rows.into_event(SEQUENCE) else {
            panic!("log probabilities were asked for");
        };
        assert_eq!(logprobs.iter().map(|of| of.chosen).collect::<Vec<_>>(), [-1.0, -2.0]);
    }

    #[test]
    fn a_mean_is_rounded_once() {
        let mut rows = PromptRows::new(PromptReport::Embedding(Pooling::Mean), 3).unwrap();
        for state in [[1.0, 1e8], [2.0, 1.0], [6.0, -1e8]] {
            rows.push_state(&state);
        }
        let expected = EngineEvent::Embedding { sequence: SEQUENCE, values: vec![3.0, 1.0 / 3.0] };
        assert_eq!(rows.into_event(SEQUENCE), expected);
    }
}
