//! The step loop and its public face.
//!
//! Owns all state of serving: sequences, their KV bookkeeping, the executor and the sampler. One
//! owner, synchronous: commands (`submit`, `abort`, `finish_sequence`) happen between steps, and a
//! step runs schedule, forward, sample, apply. What a request gets never depends on the others: its
//! logits are a function of its own tokens, and its random numbers of its own positions.
//!
//! Invariants: every accepted sequence ends with exactly one `Finished` event, after all its tokens,
//! and holds no blocks from then on; each token is told once. A step without the executor costs
//! O(running sequences + tokens), and allocates only where events and outputs grow.

use crate::sampler::{NonFiniteLogits, SampledToken, Sampler};
use crate::scheduler::Scheduler;
use crate::sequence::{Rank, Sequence, SequenceSource};
use crate::stats::{EngineCounters, EngineStats, StepReport};
use crate::step_plan::StepPlan;
use crate::{ConfigError, EngineConfig, SubmitError};
use mini_infer_core::{
    Batch, Clock, EngineEvent, Executor, ExecutorError, FinishReason, FixedHashMap, Request,
    RequestId, SequenceId,
};
use std::sync::Arc;
use std::time::Duration;

/// Waiting time that outweighs one step of priority: long against the time of an answer, short
/// against a client's patience.
const AGEING_INTERVAL: Duration = Duration::from_secs(10);

/// A request with sequences that have not ended.
#[derive(Debug)]
struct LiveRequest {
    first_rank: Rank,
    num_seqs: u32,
    num_live_seqs: u32,
    /// Whether one of its sequences has run.
    is_admitted: bool,
}

/// Serves requests with an executor.
#[derive(Debug)]
pub struct Engine<E, C> {
    config: EngineConfig,
    executor: E,
    clock: C,
    scheduler: Scheduler,
    sampler: Sampler,
    requests: FixedHashMap<RequestId, LiveRequest>,
    num_submitted: u64,
    num_waiting_requests: u32,
    counters: EngineCounters,
    /// Events of commands, told with the next step.
    pending_events: Vec<EngineEvent>,
    /// Buffers of one step, kept for the next.
    plan: StepPlan,
    batch: Batch,
    logits: Vec<f32>,
    samples: Vec<Result<SampledToken, NonFiniteLogits>>,
}

impl<E: Executor, C: Clock> Engine<E, C> {
    /// Creates an engine without requests.
    ///
    /// # Errors
    /// Returns [`ConfigError`] when the numbers do not fit together.
    pub fn new(config: EngineConfig, executor: E, clock: C) -> Result<Self, ConfigError> {
        config.validate()?;
        if executor.vocab_size() == 0 {
            return Err(ConfigError::EmptyVocabulary);
        }
        Ok(Self {
            config,
            executor,
            clock,
            scheduler: Scheduler::new(config),
            sampler: Sampler::default(),
            requests: FixedHashMap::default(),
            num_submitted: 0,
            num_waiting_requests: 0,
            counters: EngineCounters::default(),
            pending_events: Vec::new(),
            plan: StepPlan::default(),
            batch: Batch::default(),
            logits: Vec::new(),
            samples: Vec::new(),
        })
    }

    /// Accepts a request: its sequences wait to be admitted.
    ///
    /// # Errors
    /// Returns [`SubmitError`] when the request can never be served, or too many wait.
    pub fn submit(&mut self, request: Request) -> Result<(), SubmitError> {
        self.check(&request)?;
        if self.num_waiting_requests >= self.config.max_queue_len {
            self.counters.num_refused_requests += 1;
            return Err(SubmitError::QueueFull { max_queue_len: self.config.max_queue_len });
        }
        let first_rank = self.next_rank(request.priority);
        let num_seqs = request.sampling.n;
        let source = SequenceSource {
            request: request.id,
            prompt: request.prompt,
            sampling: Arc::new(request.sampling),
            first_rank,
        };
        for index in 0..num_seqs {
            self.scheduler.enqueue(Sequence::new(&source, index));
        }
        let live =
            LiveRequest { first_rank, num_seqs, num_live_seqs: num_seqs, is_admitted: false };
        self.requests.insert(request.id, live);
        self.num_waiting_requests += 1;
        Ok(())
    }

    /// Ends all sequences of a request whose client is gone; their blocks are released at once.
    /// Does nothing when the request has ended already.
    pub fn abort(&mut self, request: RequestId) {
        let Some(live) = self.requests.get(&request) else { return };
        for index in 0..live.num_seqs {
            let sequence = SequenceId { request, index };
            self.end(sequence, FinishReason::Abort, u32::MAX);
        }
    }

    /// Ends a sequence with `Stop` because its text, after `num_output_tokens` tokens, holds a stop
    /// string; tokens generated since then do not count. Does nothing when it has ended already.
    pub fn finish_sequence(&mut self, sequence: SequenceId, num_output_tokens: u32) {
        self.end(sequence, FinishReason::Stop, num_output_tokens);
    }

    /// Runs one step and appends what happened to `events`, commands since the last step included.
    pub fn step(&mut self, events: &mut Vec<EngineEvent>) -> StepReport {
        events.append(&mut self.pending_events);
        self.scheduler.schedule(&mut self.plan);
        self.count_admissions();
        if self.plan.scheduled.is_empty() {
            return self.report(0);
        }
        self.executor.transfer(self.scheduler.transfers());
        self.scheduler.build_batch(&self.plan, &mut self.batch);
        let num_output_tokens = match self.executor.forward(&self.batch, &mut self.logits) {
            Ok(()) => {
                self.sample();
                self.apply(events)
            }
            Err(error) => self.fail_batch(&error),
        };
        self.remove_finished(events);
        self.report(num_output_tokens)
    }

    /// Tells whether a step would do anything.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.requests.is_empty() || !self.pending_events.is_empty()
    }

    /// Returns the state of the engine in numbers.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            num_running_seqs: narrow(self.scheduler.running().len()),
            num_waiting_seqs: narrow(self.scheduler.num_waiting()),
            num_waiting_requests: self.num_waiting_requests,
            kv: self.scheduler.kv_stats(),
            counters: self.counters,
        }
    }

    /// Checks the invariants of the engine and its KV memory; costs the size of the pool. A debug
    /// build does so whenever the engine becomes idle.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate.
    pub fn check_invariants(&self) {
        self.scheduler.check_invariants();
        let stats = self.stats();
        let num_live: u32 = self.requests.values().map(|live| live.num_live_seqs).sum();
        assert_eq!(num_live, stats.num_running_seqs + stats.num_waiting_seqs);
        let waiting = self.requests.values().filter(|live| !live.is_admitted).count();
        assert_eq!(waiting, self.num_waiting_requests as usize);
        assert!(self.num_waiting_requests <= self.config.max_queue_len);
        assert!(num_live > 0 || stats.kv.num_active_blocks == 0, "an idle engine holds blocks");
    }

    /// Checks everything about a request but the room in the queue.
    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        request.sampling.validate().map_err(SubmitError::Params)?;
        let num_prompt_tokens = request.prompt.len();
        let max_model_len = self.config.max_model_len;
        if num_prompt_tokens == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if num_prompt_tokens >= max_model_len as usize {
            return Err(SubmitError::PromptTooLong { num_prompt_tokens, max_model_len });
        }
        let vocab_size = self.executor.vocab_size();
        let unknown = request.prompt.iter().find(|&&token| token as usize >= vocab_size);
        if let Some(&token) = unknown {
            return Err(SubmitError::TokenOutOfVocab { token, vocab_size });
        }
        if self.requests.contains_key(&request.id) {
            return Err(SubmitError::DuplicateId { id: request.id });
        }
        Ok(())
    }

    /// Returns the rank of the first sequence of a request that arrives now.
    fn next_rank(&mut self, priority: i32) -> Rank {
        let ageing_ns = i128::try_from(AGEING_INTERVAL.as_nanos()).unwrap_or(i128::MAX);
        let arrived_ns = i128::try_from(self.clock.now().as_nanos()).unwrap_or(i128::MAX);
        let due_ns = arrived_ns.saturating_add(ageing_ns * i128::from(priority));
        let arrival = self.num_submitted;
        self.num_submitted += 1;
        Rank { due_ns, arrival, index: 0 }
    }

    /// Ends a live sequence between steps.
    fn end(&mut self, id: SequenceId, reason: FinishReason, num_output_tokens: u32) {
        let Some(live) = self.requests.get(&id.request) else { return };
        let rank = Rank { index: id.index, ..live.first_rank };
        let Some(sequence) = self.scheduler.remove(rank) else { return };
        let event = finished(&sequence, reason, num_output_tokens);
        self.count_finish(&event);
        self.pending_events.push(event);
    }

    fn count_admissions(&mut self) {
        for admission in self.plan.admissions.iter().filter(|admission| admission.is_first) {
            let request = admission.sequence.request;
            let live = self.requests.get_mut(&request).expect("its sequence is alive");
            let num_prompt_tokens = u64::from(admission.num_prompt_tokens);
            if !live.is_admitted {
                live.is_admitted = true;
                self.num_waiting_requests -= 1;
                self.counters.num_prompt_tokens += num_prompt_tokens;
            }
            self.counters.num_queried_tokens += num_prompt_tokens;
            self.counters.num_hit_tokens += u64::from(admission.num_hit_tokens);
        }
        self.counters.num_preemptions += u64::from(self.plan.num_preempted);
    }

    /// Chooses a token from each row of logits, in the order of the plan.
    fn sample(&mut self) {
        let vocab_size = self.executor.vocab_size();
        let num_rows = self.batch.logits_rows.len();
        assert_eq!(self.logits.len(), num_rows * vocab_size, "the executor gave a wrong shape");
        self.samples.clear();
        let sampled = self.plan.scheduled.iter().filter(|entry| entry.samples);
        for (entry, row) in sampled.zip(self.logits.chunks_exact(vocab_size)) {
            let sequence = &self.scheduler.running()[entry.running_index];
            let uniform = sequence.random.uniform_at(sequence.num_known_tokens());
            self.samples.push(self.sampler.sample(row, &sequence.sampling, uniform));
        }
    }

    /// Makes the step's tokens part of their sequences and returns how many were generated.
    fn apply(&mut self, events: &mut Vec<EngineEvent>) -> u32 {
        let mut num_output_tokens = 0;
        let mut samples = self.samples.drain(..);
        for &entry in &self.plan.scheduled {
            self.scheduler.mark_computed(entry);
            if !entry.samples {
                continue;
            }
            let sequence = self.scheduler.running_mut(entry.running_index);
            match samples.next().expect("one sample for each entry that samples") {
                Ok(SampledToken { token, logprobs }) => {
                    sequence.extend(token, self.config.max_model_len);
                    events.push(EngineEvent::Token { sequence: sequence.id, token, logprobs });
                    num_output_tokens += 1;
                }
                Err(error) => sequence.finish = Some(FinishReason::Error(error.to_string())),
            }
        }
        self.counters.num_output_tokens += u64::from(num_output_tokens);
        num_output_tokens
    }

    /// Ends all sequences of a step that the device could not run; their new KV is undefined.
    fn fail_batch(&mut self, error: &ExecutorError) -> u32 {
        for entry in &self.plan.scheduled {
            let sequence = self.scheduler.running_mut(entry.running_index);
            sequence.finish = Some(FinishReason::Error(error.to_string()));
        }
        0
    }

    fn remove_finished(&mut self, events: &mut Vec<EngineEvent>) {
        let first = events.len();
        self.scheduler.remove_finished(|mut sequence| {
            let reason = sequence.finish.take().expect("only finished sequences are removed");
            events.push(finished(&sequence, reason, u32::MAX));
        });
        for event in &events[first..] {
            self.count_finish(event);
        }
    }

    /// Accounts for a `Finished` event.
    fn count_finish(&mut self, event: &EngineEvent) {
        let EngineEvent::Finished { sequence, reason, .. } = event else { return };
        self.counters.finished.add(reason);
        let request = sequence.request;
        let live = self.requests.get_mut(&request).expect("its sequence was alive");
        live.num_live_seqs -= 1;
        if live.num_live_seqs == 0 {
            if !live.is_admitted {
                self.num_waiting_requests -= 1;
            }
            self.requests.remove(&request);
        }
    }

    fn report(&mut self, num_output_tokens: u32) -> StepReport {
        if cfg!(debug_assertions) && self.requests.is_empty() {
            self.check_invariants();
        }
        let scheduled = &self.plan.scheduled;
        self.counters.num_steps += u64::from(!scheduled.is_empty());
        StepReport {
            num_scheduled_seqs: narrow(scheduled.len()),
            num_scheduled_tokens: scheduled.iter().map(|entry| entry.num_tokens).sum(),
            num_output_tokens,
            num_admitted: narrow(self.plan.admissions.len()),
            num_preempted: self.plan.num_preempted,
        }
    }
}

/// Returns the last event of a sequence; at most `num_output_tokens` of its tokens count.
fn finished(sequence: &Sequence, reason: FinishReason, num_output_tokens: u32) -> EngineEvent {
    let mut usage = sequence.usage();
    usage.num_output_tokens = usage.num_output_tokens.min(num_output_tokens);
    EngineEvent::Finished { sequence: sequence.id, reason, usage }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("sequences are counted with 32 bits")
}
