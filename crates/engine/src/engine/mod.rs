//! The step loop and its public face.
//!
//! Owns all state of serving: sequences, their KV bookkeeping, the executor and the sampler. One
//! owner, synchronous: commands (`submit`, `abort`, `finish_sequence`, `trim_kv`) happen between
//! steps, and a step runs schedule, transfer, forward, sample, apply; then it takes prompts that are
//! suspended through some layers. What a request gets never depends on the others: its logits are a function of its own tokens, and its random numbers of its
//! own positions.
//!
//! Invariants: every accepted sequence ends with exactly one `Finished` event, after all its tokens,
//! and holds no blocks from then on; each token is told once. A step without the executor costs
//! O(running sequences + tokens), and allocates only where events and outputs grow.

mod apply;
mod beams;
mod chunks;
mod constraints;
mod prompts;

use crate::beam_search::BeamSearch;
use crate::chunk_limit::{ChunkLimit, ChunkPass};
use crate::logits_processor::PromptTokens;
use crate::prefill_pace::PrefillPace;
use crate::prompt_scorer::PromptScorer;
use crate::sampler::Sampler;
use crate::scheduler::Scheduler;
use crate::sequence::{Rank, Sequence, SequenceSource};
use crate::snapshot::KvSnapshot;
use crate::stats::{EngineCounters, EngineStats, StepReport};
use crate::step_plan::StepPlan;
use crate::step_sampler::StepSampler;
use crate::suspended_chunk::SuspendedChunk;
use crate::{ConfigError, EngineConfig, StepTimes, SubmitError};
use mini_infer_core::{
    Batch, ClientId, Clock, EngineEvent, Executor, ExecutorError, FinishReason, FixedHashMap,
    PromptReport, Request, RequestId, SamplingParams, SequenceId,
};
use mini_infer_kv::{KvStats, SequenceShape, SequenceStart};
use std::sync::Arc;
use std::time::Duration;

/// Waiting time that outweighs one step of priority: long against the time of an answer, short
/// against a client's patience.
const AGEING_INTERVAL: Duration = Duration::from_secs(10);

/// Part of the queue's length that is added for clients of which nothing waits: 1 / 8.
const NEWCOMERS_DIVISOR: u32 = 8;

/// A request with choices that have not ended.
#[derive(Debug)]
struct LiveRequest {
    first_rank: Rank,
    num_choices: u32,
    num_live_choices: u32,
    /// Whether one of its sequences has run.
    is_admitted: bool,
    /// What finds the choices of a request that does not sample them.
    search: Option<BeamSearch>,
}

/// Serves requests with an executor.
#[derive(Debug)]
pub struct Engine<E, C> {
    config: EngineConfig,
    executor: E,
    clock: C,
    scheduler: Scheduler,
    sampler: Sampler,
    step_sampler: StepSampler,
    prompt_scorer: PromptScorer,
    pace: PrefillPace,
    chunk_limit: ChunkLimit,
    requests: FixedHashMap<RequestId, LiveRequest>,
    num_submitted: u64,
    num_waiting_requests: u32,
    num_steps_without_progress: u32,
    counters: EngineCounters,
    times: StepTimes,
    /// When the part of the step began that is under way.
    lap_began: Duration,
    /// Events of commands, told with the next step.
    pending_events: Vec<EngineEvent>,
    /// Buffers of one step, kept for the next.
    plan: StepPlan,
    batch: Batch,
    logits: Vec<f32>,
    /// Prompts between two steps, in the middle of the layers.
    chunk: SuspendedChunk,
    /// Index of each row's sequence among the running ones.
    row_owners: Vec<usize>,
    /// Rows that reports on prompts want of the step, and the values of some of them.
    kept_rows: Vec<prompts::KeptRow>,
    kept_values: Vec<f32>,
    /// Sequences that go on from the prompt that the step computed.
    forked: Vec<Sequence>,
    /// Requests all of whose beams have their candidates.
    ready_searches: Vec<RequestId>,
    /// Requests whose search cannot go on, and why.
    failed_searches: Vec<(RequestId, FinishReason)>,
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
        let chunk_limit = ChunkLimit::new(config.target_itl, executor.num_layers());
        Ok(Self {
            config,
            executor,
            clock,
            scheduler: Scheduler::new(config),
            sampler: Sampler::default(),
            step_sampler: StepSampler::default(),
            prompt_scorer: PromptScorer::default(),
            pace: PrefillPace::default(),
            chunk_limit,
            requests: FixedHashMap::default(),
            num_submitted: 0,
            num_waiting_requests: 0,
            num_steps_without_progress: 0,
            counters: EngineCounters::default(),
            times: StepTimes::default(),
            lap_began: Duration::ZERO,
            pending_events: Vec::new(),
            plan: StepPlan::default(),
            batch: Batch::default(),
            logits: Vec::new(),
            chunk: SuspendedChunk::default(),
            row_owners: Vec::new(),
            kept_rows: Vec::new(),
            kept_values: Vec::new(),
            forked: Vec::new(),
            ready_searches: Vec::new(),
            failed_searches: Vec::new(),
        })
    }

    /// Accepts a request: its sequences wait to be admitted.
    ///
    /// # Errors
    /// Returns [`SubmitError`] when the request can never be served, or too many wait.
    pub fn submit(&mut self, request: Request) -> Result<(), SubmitError> {
        self.check(&request)?;
        if self.num_waiting_requests >= self.queue_len_for(request.client) {
            self.counters.num_refused_requests += 1;
            return Err(SubmitError::QueueFull { max_queue_len: self.config.max_queue_len });
        }
        let first_rank = self.next_rank(&request);
        self.scheduler.enter(request.client);
        let num_choices = request.sampling.n;
        let start = self.sequence_start(&request);
        let SequenceShape { num_prompt_tokens, max_num_tokens } = start.shape;
        let sampling = Arc::new(request.sampling);
        let search = BeamSearch::new(&sampling, max_num_tokens - num_prompt_tokens);
        let id = request.id;
        let num_seqs = if search.is_some() { 1 } else { num_choices };
        let source = SequenceSource {
            request: id,
            prompt_tokens: PromptTokens::of(&request.prompt, &sampling),
            prompt: request.prompt,
            sampling,
            report: request.report,
            first_rank,
            start,
            adapter: request.adapter,
            constraint: request.constraint,
        };
        for index in 0..num_seqs {
            self.scheduler.enqueue(Sequence::new(&source, index));
        }
        let num_live_choices = num_choices;
        let live =
            LiveRequest { first_rank, num_choices, num_live_choices, is_admitted: false, search };
        self.requests.insert(id, live);
        self.num_waiting_requests += 1;
        Ok(())
    }

    /// Ends all sequences of a request whose client is gone; their blocks are released at once.
    /// Does nothing when the request has ended already.
    pub fn abort(&mut self, request: RequestId) {
        let Some(live) = self.requests.get(&request) else {
            return;
        };
        if live.search.is_some() {
            let mut events = std::mem::take(&mut self.pending_events);
            self.end_search(request, &FinishReason::Abort, &mut events);
            self.pending_events = events;
            return;
        }
        for index in 0..live.num_choices {
            self.end(SequenceId { request, index }, FinishReason::Abort, u32::MAX);
        }
    }

    /// Ends a sequence with `Stop` because its text, after `num_output_tokens` tokens, holds a stop
    /// string; tokens generated since then do not count. Does nothing when it has ended already, as
    /// every choice of a beam search has when its tokens are told.
    pub fn finish_sequence(&mut self, sequence: SequenceId, num_output_tokens: u32) {
        let live = self.requests.get(&sequence.request);
        if live.is_some_and(|live| live.search.is_none()) {
            self.end(sequence, FinishReason::Stop, num_output_tokens);
        }
    }

    /// Evicts cached blocks but the `keep_blocks` released last, and gives back the memory of all
    /// free blocks. Costs the size of the pool: for idle times.
    pub fn trim_kv(&mut self, keep_blocks: u32) {
        self.scheduler.trim(keep_blocks, &mut self.plan.transfers);
        self.transfer();
    }

    /// Returns the requests of which a sequence ran for the first time in the last step, once for
    /// each such sequence.
    pub fn first_admissions(&self) -> impl Iterator<Item = RequestId> {
        let first = self.plan.admissions.iter().filter(|admission| admission.is_first);
        first.map(|admission| admission.sequence.request)
    }

    /// Runs one step and appends what happened to `events`, commands since the last step included.
    pub fn step(&mut self, events: &mut Vec<EngineEvent>) -> StepReport {
        self.times = StepTimes::default();
        self.lap();
        events.append(&mut self.pending_events);
        self.schedule();
        if self.plan.scheduled.is_empty() && self.chunk.is_empty() {
            self.end_part(|times| &mut times.schedule);
            return self.report(0, self.scheduler.kv().stats());
        }
        let mut num_told = 0;
        if !self.plan.scheduled.is_empty() {
            self.prepare_constraints(0);
            self.scheduler.build_batch(&self.plan.scheduled, &mut self.batch);
            self.end_part(|times| &mut times.schedule);
            num_told += match self.forward() {
                Ok(()) => self.apply(0, events),
                Err(error) => self.fail_batch(0, &error),
            };
        }
        if !self.chunk.is_empty() {
            num_told += self.advance_chunk(events);
        }
        let kv = self.scheduler.kv().stats();
        let num_found = self.settle_searches(events);
        self.remove_finished(events);
        self.end_part(|times| &mut times.output);
        self.report(num_told + num_found, kv)
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
            num_suspended_tokens: self.chunk.num_tokens(),
            num_steps_without_progress: self.num_steps_without_progress,
            kv: self.scheduler.kv().stats(),
            counters: self.counters,
        }
    }

    /// Returns the map of the KV memory; costs the blocks of the running sequences.
    #[must_use]
    pub fn kv_snapshot(&self) -> KvSnapshot {
        KvSnapshot {
            stats: self.stats(),
            block_size: self.config.block_size.tokens(),
            shared_blocks: self.scheduler.shared_blocks(),
            sequences: self.scheduler.snapshot(),
        }
    }

    /// Returns the most sequences that run side by side, and so the most beams of a search.
    #[must_use]
    pub fn max_num_seqs(&self) -> u32 {
        self.config.max_num_seqs
    }

    /// Returns how many block ids there are: every block of a batch or transfer is below.
    #[must_use]
    pub fn num_block_ids(&self) -> u32 {
        self.scheduler.kv().num_block_ids()
    }

    /// Returns the executor.
    #[must_use]
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// Checks the invariants of the engine and its KV memory; costs the size of the pool. A debug
    /// build does so whenever the engine becomes idle.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate.
    pub fn check_invariants(&self) {
        self.scheduler.check_invariants();
        let stats = self.stats();
        let num_seqs: u32 = self.requests.values().map(LiveRequest::num_seqs).sum();
        assert_eq!(num_seqs, stats.num_running_seqs + stats.num_waiting_seqs);
        let waiting = self.requests.values().filter(|live| !live.is_admitted).count();
        assert_eq!(waiting, self.num_waiting_requests as usize);
        let max_queue_len = self.config.max_queue_len;
        let longest = max_queue_len.saturating_add(max_queue_len / NEWCOMERS_DIVISOR);
        assert!(self.num_waiting_requests <= longest);
        assert!(num_seqs > 0 || stats.kv.num_active_blocks == 0, "an idle engine holds blocks");
        assert_eq!(self.num_steps_without_progress, 0, "nothing can be scheduled");
        assert!(self.plan.transfers.is_empty(), "transfers wait for a step");
    }

    /// Checks everything about a request but the room in the queue.
    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        request.sampling.validate().map_err(SubmitError::Params)?;
        let num_prompt_tokens = request.prompt.len();
        let max_model_len = self.config.max_model_len;
        if num_prompt_tokens == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        check_report(request)?;
        let num_least_tokens = num_prompt_tokens + usize::from(request.sampling.max_tokens > 0);
        if num_least_tokens > max_model_len as usize {
            return Err(SubmitError::PromptTooLong { num_prompt_tokens, max_model_len });
        }
        let vocab_size = self.executor.vocab_size();
        let unknown = request.prompt.iter().find(|&&token| token as usize >= vocab_size);
        if let Some(&token) = unknown {
            return Err(SubmitError::TokenOutOfVocab { token, vocab_size });
        }
        let mut biased = request.sampling.logit_bias.iter().map(|&(token, _)| token);
        if let Some(token) = biased.find(|&token| token as usize >= vocab_size) {
            return Err(SubmitError::BiasOutOfVocab { token, vocab_size });
        }
        if self.requests.contains_key(&request.id) {
            return Err(SubmitError::DuplicateId { id: request.id });
        }
        self.check_beams(request)
    }

    /// Returns how many requests may wait when a client submits one: a few more where it has none
    /// that waits, so that no client can fill the queue for the others.
    fn queue_len_for(&self, client: ClientId) -> u32 {
        let max_queue_len = self.config.max_queue_len;
        if self.scheduler.has_waiting(client) {
            return max_queue_len;
        }
        max_queue_len.saturating_add(max_queue_len / NEWCOMERS_DIVISOR)
    }

    /// Returns what the KV memory wants to know about the sequences of a request.
    fn sequence_start(&self, request: &Request) -> SequenceStart {
        let num_prompt_tokens = narrow(request.prompt.len());
        let wanted = num_prompt_tokens.saturating_add(request.sampling.max_tokens);
        let max_num_tokens = wanted.min(self.config.max_model_len);
        SequenceStart {
            namespace: request.namespace,
            shape: SequenceShape { num_prompt_tokens, max_num_tokens },
            prefix_caching: request.prefix_caching,
        }
    }

    /// Returns the rank of the first sequence of `request`, which arrives now.
    fn next_rank(&mut self, request: &Request) -> Rank {
        let ageing_ns = i128::try_from(AGEING_INTERVAL.as_nanos()).unwrap_or(i128::MAX);
        let arrived_ns = i128::try_from(self.clock.now().as_nanos()).unwrap_or(i128::MAX);
        let due_ns = arrived_ns.saturating_add(ageing_ns * i128::from(request.priority));
        let arrival = self.num_submitted;
        self.num_submitted += 1;
        Rank { due_ns, arrival, index: 0, client: request.client }
    }

    /// Ends a live sequence between steps.
    fn end(&mut self, id: SequenceId, reason: FinishReason, num_output_tokens: u32) {
        let Some(live) = self.requests.get(&id.request) else {
            return;
        };
        let rank = Rank { index: id.index, ..live.first_rank };
        let Some(sequence) = self.scheduler.remove(rank) else {
            return;
        };
        let event = finished(&sequence, reason, num_output_tokens);
        self.count_finish(&event);
        self.pending_events.push(event);
    }

    /// Plans the step and has its transfers carried out.
    fn schedule(&mut self) {
        self.drop_stale_sequences();
        let size = self.config.block_size.tokens();
        let restores = self.config.content_hash.is_some()
            && self.pace.takes_longer_than(self.executor.restore_time(), size);
        let tier = restores.then_some(&mut self.executor);
        self.scheduler.schedule(&mut self.plan, &self.chunk_limit, tier);
        self.transfer();
        // Of those that decode, one may have needed the blocks.
        self.drop_stale_sequences();
        if self.plan.pass == ChunkPass::LayerByLayer && self.plan.prompts().next().is_some() {
            self.suspend_prompts();
        }
        self.count_admissions();
    }

    /// Carries out what the plan wants moved.
    fn transfer(&mut self) {
        if !self.plan.transfers.is_empty() {
            self.executor.transfer(&self.plan.transfers);
            self.plan.transfers.clear();
        }
    }

    fn count_admissions(&mut self) {
        for admission in &self.plan.admissions {
            self.counters.num_restored_tokens += u64::from(admission.num_restored_tokens);
            if !admission.is_first {
                continue;
            }
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

    /// Runs the batch and learns how long prompts take.
    fn forward(&mut self) -> Result<(), ExecutorError> {
        let result = self.executor.forward(&self.batch, &mut self.logits);
        let elapsed = self.lap();
        let shape = self.plan.shape();
        match shape.num_prompt_tokens {
            0 => self.times.decode += elapsed,
            _ => self.times.prefill += elapsed,
        }
        result?;
        self.pace.observe(self.batch.num_tokens(), self.batch.num_seqs(), elapsed);
        let mut whole = elapsed;
        if !self.batch.kept_rows.is_empty() {
            self.read_prompts(0, self.batch.kept_rows.len());
            // The gaps of streams hold what is read of prompts, too.
            whole += self.end_part(|times| &mut times.prefill);
        }
        self.chunk_limit.observe(shape, whole);
        Ok(())
    }

    /// Ends a part of the step, adds its time to one of the sums and returns it.
    fn end_part(&mut self, sum: fn(&mut StepTimes) -> &mut Duration) -> Duration {
        let elapsed = self.lap();
        *sum(&mut self.times) += elapsed;
        elapsed
    }

    /// Ends a part of the step and returns how long it took; the next one begins.
    fn lap(&mut self) -> Duration {
        let now = self.clock.now();
        now.saturating_sub(std::mem::replace(&mut self.lap_began, now))
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
        let EngineEvent::Finished { sequence, reason, .. } = event else {
            return;
        };
        self.counters.finished.add(reason);
        let request = sequence.request;
        let live = self.requests.get_mut(&request).expect("its sequence was alive");
        live.num_live_choices -= 1;
        if live.num_live_choices == 0 {
            if !live.is_admitted {
                self.num_waiting_requests -= 1;
            }
            self.scheduler.leave(live.first_rank.client);
            self.requests.remove(&request);
        }
    }

    fn report(&mut self, num_output_tokens: u32, kv: KvStats) -> StepReport {
        let scheduled = &self.plan.scheduled;
        let is_stuck = scheduled.is_empty() && !self.requests.is_empty();
        self.num_steps_without_progress =
            if is_stuck { self.num_steps_without_progress + 1 } else { 0 };
        self.counters.num_steps += u64::from(!scheduled.is_empty());
        self.counters.num_output_tokens += u64::from(num_output_tokens);
        if cfg!(debug_assertions) && self.requests.is_empty() {
            self.check_invariants();
        }
        StepReport {
            num_scheduled_seqs: narrow(scheduled.len()),
            num_scheduled_tokens: scheduled.iter().map(|entry| entry.num_tokens).sum(),
            num_output_tokens,
            num_admitted: narrow(self.plan.admissions.len()),
            num_preempted: self.plan.num_preempted,
            admission: self.plan.admission,
            kv,
            times: self.times,
        }
    }
}

impl LiveRequest {
    /// Returns how many sequences of the request exist.
    fn num_seqs(&self) -> u32 {
        let search = self.search.as_ref();
        search.map_or(self.num_live_choices, |search| narrow(search.num_beams()))
    }
}

/// Checks that what is wanted of a prompt goes with what is wanted after it.
fn check_report(request: &Request) -> Result<(), SubmitError> {
    let sampling = &request.sampling;
    let num_top = match request.report {
        PromptReport::Logprobs { num_top } => num_top,
        PromptReport::Nothing | PromptReport::Embedding(_) => 0,
    };
    if num_top > SamplingParams::MAX_LOGPROBS {
        return Err(SubmitError::TooManyPromptLogprobs { num_top });
    }
    if request.report != PromptReport::Nothing && sampling.beam.is_some() {
        return Err(SubmitError::ReportWithBeams);
    }
    let is_bare = request.report == PromptReport::Nothing || sampling.n > 1;
    if sampling.max_tokens == 0 && is_bare { Err(SubmitError::NoOutput) } else { Ok(()) }
}

/// Returns the last event of a sequence; at most `num_output_tokens` of its tokens count.
fn finished(sequence: &Sequence, reason: FinishReason, num_output_tokens: u32) -> EngineEvent {
    let mut usage = sequence.usage();
    usage.num_output_tokens = usage.num_output_tokens.min(num_output_tokens);
    EngineEvent::Finished { sequence: sequence.id, reason, usage }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("sequences and tokens are counted with 32 bits")
}
