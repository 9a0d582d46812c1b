//! Runs a scenario, checking what must hold in every step.

use crate::scenario::{Command, Scenario, SimEngine};
use crate::transcript::{Transcript, Transcripts, record};
use mini_infer_core::{
    EngineEvent, FinishReason, KvPart, ManualClock, Request, SamplingParams, SequenceId,
};
use mini_infer_engine::{Fault, KvAllocator, SequenceState, SubmitError};
use std::collections::BTreeMap;
use std::time::Duration;

/// A run of a scenario.
pub(crate) struct Simulation<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) engine: SimEngine,
    clock: ManualClock,
    pub(crate) accepted: Vec<Request>,
    pub(crate) transcripts: Transcripts,
    /// Sequences ended by a stop string while alive, and after how many output tokens.
    pub(crate) stopped: BTreeMap<SequenceId, u32>,
    pub(crate) num_errors: usize,
    pub(crate) num_refused: usize,
}

impl<'a> Simulation<'a> {
    /// Prepares a run.
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        let (engine, clock) = scenario.engine();
        Self {
            scenario,
            engine,
            clock,
            accepted: Vec::new(),
            transcripts: BTreeMap::new(),
            stopped: BTreeMap::new(),
            num_errors: 0,
            num_refused: 0,
        }
    }

    /// Runs until every request has ended, checking all invariants after every step.
    pub(crate) fn run(&mut self) {
        let last_command = *self.scenario.commands.keys().last().expect("at least one request");
        let mut num_owed_steps = 0;
        let mut events = Vec::new();
        let mut step = 0;
        while step <= last_command || self.engine.has_work() {
            for command in self.scenario.commands.get(&step).into_iter().flatten() {
                num_owed_steps += self.give(command);
                self.engine.check_invariants();
            }
            self.step(step, &mut events);
            if step.is_multiple_of(7) {
                self.check_snapshot();
            }
            self.clock.advance(Duration::from_millis(self.scenario.step_ms));
            step += 1;
            assert!(step <= last_command + 1 + num_owed_steps, "a request starves");
        }
        assert!(events.is_empty() && !self.engine.has_work());
        self.engine.trim_kv(0);
        self.engine.check_invariants();
        let kv = self.engine.stats().kv;
        assert_eq!((kv.num_active_blocks, kv.num_live_tokens), (0, 0), "blocks leak at idle");
        if self.scenario.config.allocator == KvAllocator::Paged {
            assert_eq!((kv.num_cached_blocks, self.committed_weight()), (0, 0), "idle memory");
        }
    }

    /// Returns the memory that is in use in the end, in the unit of the window's weights.
    fn committed_weight(&self) -> u64 {
        let num_committed = |part| self.engine.executor().inner.num_committed_blocks(part) as u64;
        let num_full = num_committed(KvPart::FullAttention);
        self.scenario.config.window.map_or(num_full, |window| {
            num_full * u64::from(window.full_weight)
                + num_committed(KvPart::SlidingWindow) * u64::from(window.window_weight)
        })
    }

    /// Gives one command and returns how many steps it may cost at most.
    fn give(&mut self, command: &Command) -> u64 {
        match command {
            Command::Submit(request) => return self.submit(request),
            Command::Abort(request) => self.engine.abort(*request),
            Command::FinishSequence(sequence, length) => {
                let transcript = self.transcripts.get(sequence);
                let num_tokens = transcript.map_or(0, |transcript| transcript.tokens.len());
                let is_alive = transcript.is_some_and(|transcript| transcript.end.is_none());
                if is_alive && num_tokens >= *length as usize {
                    self.stopped.entry(*sequence).or_insert(*length);
                    self.engine.finish_sequence(*sequence, *length);
                }
            }
            Command::Trim(keep_blocks) => {
                self.engine.trim_kv(*keep_blocks);
                let kv = self.engine.stats().kv;
                assert!(kv.num_cached_blocks <= *keep_blocks, "more is kept than was asked for");
            }
        }
        0
    }

    fn submit(&mut self, request: &Request) -> u64 {
        let config = &self.scenario.config;
        let stats = self.engine.stats();
        let (num_waiting, max) = (stats.num_waiting_requests, config.max_queue_len);
        match self.engine.submit(request.clone()) {
            Ok(()) => assert!(num_waiting < max + max / 8, "the queue is not bounded"),
            Err(error) => {
                assert!(num_waiting >= max && matches!(error, SubmitError::QueueFull { .. }));
                self.num_refused += 1;
                return 0;
            }
        }
        let SamplingParams { n, beam, max_tokens, .. } = request.sampling;
        for index in 0..n {
            let sequence = SequenceId { request: request.id, index };
            self.transcripts.insert(sequence, Transcript::default());
        }
        self.accepted.push(request.clone());
        // Alone, with a budget of one token, each token costs a step; twice that leaves room for
        // what preemptions compute again. Beams may have to compute everything again for each token
        // of each beam, where memory holds one at a time.
        let num_tokens = match beam {
            Some(beam) => beam.width * config.max_model_len * max_tokens.min(config.max_model_len),
            None => n * config.max_model_len,
        };
        2 * u64::from(num_tokens)
    }

    fn step(&mut self, step: u64, events: &mut Vec<EngineEvent>) {
        let before = self.engine.stats();
        let report = self.engine.step(events);
        let stats = self.engine.stats();
        let config = &self.scenario.config;
        self.engine.check_invariants();
        // What was suspended was in the budget of an earlier step.
        let most = config.max_batched_tokens + before.num_suspended_tokens;
        assert!(report.num_scheduled_tokens <= most, "budget of step {step}");
        assert!(report.num_scheduled_seqs <= config.max_num_seqs);
        assert!(stats.num_running_seqs <= config.max_num_seqs);
        let has_sequences = before.num_running_seqs + before.num_waiting_seqs > 0;
        assert_eq!(has_sequences, report.num_scheduled_tokens > 0, "progress of step {step}");
        let num_blocks = u64::from(config.num_blocks);
        let capacity = config.window.map_or(num_blocks, |window| {
            num_blocks * u64::from(window.full_weight + window.window_weight)
        });
        assert!(self.committed_weight() <= capacity, "memory of step {step}");
        let waste = stats.kv.waste;
        let num_open = stats.num_running_seqs * (config.block_size.tokens() - 1);
        assert!(
            config.allocator != KvAllocator::Paged
                || waste.internal_slots <= u64::from(num_open + stats.num_suspended_tokens),
            "only the last block of a sequence has open slots"
        );
        self.count_errors(events, report.num_scheduled_seqs as usize);
        record(&mut self.transcripts, events);
    }

    /// Checks that a fault ends what it hits, once, and nothing else.
    fn count_errors(&mut self, events: &[EngineEvent], num_scheduled_seqs: usize) {
        let mut num_errors = BTreeMap::new();
        for event in events {
            if let EngineEvent::Finished { sequence, reason: FinishReason::Error(_), .. } = event {
                *num_errors.entry(sequence.request).or_insert(0) += 1;
            }
        }
        if num_errors.is_empty() {
            return;
        }
        assert_eq!(self.num_errors, 0, "one fault fails one step");
        let num_hit: usize = num_errors
            .iter()
            .map(|(id, num)| match self.accepted.iter().find(|request| request.id == *id) {
                Some(request) if request.sampling.beam.is_some() => {
                    assert_eq!(*num, request.sampling.n as usize, "all choices of a search fail");
                    1
                }
                _ => *num,
            })
            .sum();
        let has_beams = self.accepted.iter().any(|request| request.sampling.beam.is_some());
        match self.scenario.fault {
            // Sequences in decode and a suspended chunk that ends fail by themselves.
            Some(Fault::StepFails { .. }) if has_beams || self.scenario.num_layers > 1 => {
                assert!(num_hit <= num_scheduled_seqs);
            }
            Some(Fault::StepFails { .. }) => assert_eq!(num_hit, num_scheduled_seqs),
            Some(Fault::RowIsNotFinite { .. } | Fault::KeptRowIsNotFinite { .. }) => {
                assert_eq!(num_hit, 1);
            }
            None => panic!("an error without a fault"),
        }
        self.num_errors = num_errors.values().sum();
    }

    fn check_snapshot(&self) {
        let snapshot = self.engine.kv_snapshot();
        let stats = self.engine.stats();
        assert_eq!(snapshot.stats, stats);
        let num_running = snapshot
            .sequences
            .iter()
            .filter(|sequence| sequence.state == SequenceState::Running)
            .count();
        assert_eq!(num_running, stats.num_running_seqs as usize);
        assert_eq!(snapshot.sequences.len() - num_running, stats.num_waiting_seqs as usize);
        assert_eq!(snapshot.shared_blocks.len(), stats.kv.num_shared_blocks as usize);
        for shared in snapshot.shared_blocks {
            let tables = snapshot.sequences.iter().map(|sequence| &sequence.block_table);
            let num_holders = tables.filter(|table| table.contains(&shared.block)).count();
            assert_eq!(num_holders, shared.ref_count as usize);
        }
    }
}
