//! One run: the engine over a trace with one allocator, and what came of it.
//!
//! The driver plays the clients. It keeps back what has arrived until the engine's queue has room
//! for it, so that memory stays small however long the queue is; since the engine admits in order
//! of arrival, nothing changes by that. Shares of memory and running requests are weighted by time
//! from the first step until the queue drains: until all requests have arrived and none waits any
//! longer. Afterwards requests only end, which says nothing about an allocator. (A run whose queue
//! never holds a request after a step is measured to its end.)
//!
//! The state of the memory is that during a step: after what the step needs was allocated and
//! before those that end with it give back theirs, for what comes after that lasts no time.

use crate::SimulateError;
use crate::allocator::Allocator;
use crate::executor::SimulatedExecutor;
use crate::latency::LatencySummary;
use crate::memory_use::{Demand, MemoryShares, MemoryUse};
use crate::settings::{Load, Settings};
use crate::simulated_prompt::{self, OUTPUT_TOKEN};
use mini_infer_core::{Clock, EngineEvent, ManualClock, Request, RequestId, SamplingParams};
use mini_infer_engine::{AdmissionStatus, Engine, StepReport};
use mini_infer_trace::TraceRequest;
use serde::Serialize;
use std::time::Duration;

/// What came of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AllocatorReport {
    /// The allocator.
    pub name: String,
    /// What the memory was used for.
    #[serde(flatten)]
    pub memory: MemoryShares,
    /// Running requests in the mean over time.
    pub mean_running: f64,
    /// Most requests that ran at once.
    pub peak_running: u32,
    /// Times that a running request lost its memory to another.
    pub preemptions: u64,
    /// Share of the prompt tokens that came from the prefix cache.
    pub hit_rate: f64,
    /// The same share for a cache without end.
    pub hit_rate_bound: f64,
    /// Requests per second that met all limits.
    pub goodput: f64,
    /// Requests per second.
    pub requests_per_s: f64,
    /// Output tokens per second.
    pub output_tokens_per_s: f64,
    /// Seconds from arrival to admission; none where the queue is as long as one likes.
    pub queueing_delay_s: Option<LatencySummary>,
    /// Seconds from arrival to the first token, or from admission where the queue is as long as
    /// one likes.
    pub ttft_s: Option<LatencySummary>,
    /// Seconds for each later token; none where outputs have one token.
    pub tpot_s: Option<LatencySummary>,
    /// Blocks of the KV memory.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Steps of the engine.
    pub num_steps: u64,
    /// Simulated seconds that the shares are from.
    pub measured_s: f64,
    /// Simulated seconds from the first arrival to the last token.
    pub simulated_s: f64,
}

/// Runs the engine over `requests`, which are sorted by arrival and no longer than the settings
/// allow; `hit_rate_bound` is theirs.
///
/// # Errors
/// When the memory cannot hold the longest sequence, or the engine refuses the settings.
///
/// # Panics
/// When a request is longer than the settings allow.
pub fn simulate(
    requests: &[TraceRequest],
    hit_rate_bound: f64,
    settings: &Settings,
    allocator: Allocator,
) -> Result<AllocatorReport, SimulateError> {
    let config = settings.engine_config(allocator)?;
    let clock = ManualClock::default();
    let executor = SimulatedExecutor::new(settings.speed, clock.clone());
    let engine = Engine::new(config, executor, clock.clone()).map_err(SimulateError::Engine)?;
    let mut driver = Driver {
        requests,
        settings,
        allocator,
        engine,
        clock,
        num_submitted: 0,
        num_finished: 0,
        times: vec![RequestTimes::default(); requests.len()],
        num_admitted: 0,
        peak_running: 0,
        until_drained: MemoryUse::default(),
        whole_run: MemoryUse::default(),
        is_drained: false,
    };
    driver.run();
    Ok(driver.report(hit_rate_bound))
}

/// When what happened to a request, in seconds since the start.
#[derive(Clone, Copy, Debug, Default)]
struct RequestTimes {
    arrived: f64,
    admitted: f64,
    first_token: f64,
    last_token: f64,
}

/// The clients of one run.
struct Driver<'a> {
    requests: &'a [TraceRequest],
    settings: &'a Settings,
    allocator: Allocator,
    engine: Engine<SimulatedExecutor, ManualClock>,
    clock: ManualClock,
    num_submitted: usize,
    num_finished: usize,
    /// By number of the request.
    times: Vec<RequestTimes>,
    num_admitted: usize,
    peak_running: u32,
    until_drained: MemoryUse,
    whole_run: MemoryUse,
    is_drained: bool,
}

impl Driver<'_> {
    fn run(&mut self) {
        let mut events = Vec::new();
        while self.num_finished < self.requests.len() {
            self.submit_arrived();
            if !self.engine.has_work() {
                self.wait_for_arrival();
                continue;
            }
            let started_at = self.clock.now();
            events.clear();
            let report = self.engine.step(&mut events);
            assert!(report.num_scheduled_seqs > 0, "the engine has work and does nothing");
            self.note_admissions(started_at);
            let num_running = self.apply(&events);
            self.account(&report, self.clock.now() - started_at, num_running);
        }
    }

    /// Gives the engine what has arrived, as far as its queue is long.
    fn submit_arrived(&mut self) {
        let mut num_waiting = self.engine.stats().num_waiting_requests;
        while num_waiting < self.settings.max_num_seqs
            && let Some(arrival) = self.next_arrival()
            && arrival <= self.clock.now()
        {
            let number = self.num_submitted;
            self.times[number].arrived = arrival.as_secs_f64();
            let request = &self.requests[number];
            let sampling = SamplingParams::greedy(request.num_output_tokens);
            let (namespace, prompt) = simulated_prompt::prompt(request, number as u64);
            let request = Request::new(RequestId(number as u64), prompt, sampling);
            let accepted = self.engine.submit(Request { namespace, ..request });
            accepted.expect("requests are no longer than max_model_len, and the queue has room");
            self.num_submitted += 1;
            num_waiting += 1;
        }
    }

    /// Returns when the next request arrives; `None` when there is none, or when it does not come
    /// before another one has finished.
    fn next_arrival(&self) -> Option<Duration> {
        let request = self.requests.get(self.num_submitted)?;
        match self.settings.load {
            Load::Backlog => Some(Duration::ZERO),
            Load::Arrivals { rate_scale } => Some(request.arrival.div_f64(rate_scale)),
            Load::Concurrent { num_requests } => {
                let num_in_system = self.num_submitted - self.num_finished;
                (num_in_system < num_requests as usize).then(|| self.clock.now())
            }
        }
    }

    /// Lets the time pass in which there is nothing to do.
    fn wait_for_arrival(&mut self) {
        let arrival =
            self.next_arrival().expect("an idle engine has finished all but those to come");
        let time = arrival - self.clock.now();
        let kv = self.engine.stats().kv;
        let block_size = self.allocator.block_size();
        for memory in [&mut self.until_drained, &mut self.whole_run] {
            memory.add(time, &kv, block_size, 0, Demand::Met);
        }
        self.clock.advance(time);
    }

    /// Notes when requests were admitted. The engine tells how many; it admits in the order of
    /// arrival, but for those that stand back a few steps for another to compute their prefix.
    fn note_admissions(&mut self, started_at: Duration) {
        let num_waiting = self.engine.stats().num_waiting_requests as usize;
        let num_admitted = self.num_submitted - num_waiting;
        for times in &mut self.times[self.num_admitted..num_admitted] {
            times.admitted = started_at.as_secs_f64();
        }
        self.num_admitted = num_admitted;
    }

    /// Notes when tokens came, and returns how many requests took part in the step or could have.
    fn apply(&mut self, events: &[EngineEvent]) -> u32 {
        let now = self.clock.now().as_secs_f64();
        let mut num_running = self.engine.stats().num_running_seqs;
        for event in events {
            match event {
                EngineEvent::Token { sequence, token, .. } => {
                    debug_assert_eq!(*token, OUTPUT_TOKEN);
                    let times = &mut self.times[number_of(sequence.request)];
                    if times.first_token == 0.0 {
                        times.first_token = now;
                    }
                }
                EngineEvent::PromptLogprobs { .. } | EngineEvent::Embedding { .. } => {
                    unreachable!("no request of a trace asks about its prompt")
                }
                EngineEvent::Finished { sequence, .. } => {
                    self.times[number_of(sequence.request)].last_token = now;
                    self.num_finished += 1;
                    num_running += 1;
                }
            }
        }
        num_running
    }

    /// Adds a step to the use of the memory.
    fn account(&mut self, report: &StepReport, time: Duration, num_running: u32) {
        self.peak_running = self.peak_running.max(num_running);
        let is_one_waiting = self.engine.stats().num_waiting_seqs > 0;
        let all_arrived = self.num_submitted == self.requests.len();
        self.is_drained |= all_arrived && !is_one_waiting;
        let is_budget_spent = report.num_scheduled_tokens == self.settings.max_batched_tokens;
        let is_place_left = num_running < self.settings.max_num_seqs;
        let demand = match report.admission {
            AdmissionStatus::OutOfMemory => Demand::Unmet,
            AdmissionStatus::NotRefused if is_one_waiting && is_budget_spent && is_place_left => {
                Demand::Unknown
            }
            AdmissionStatus::NotRefused => Demand::Met,
        };
        let block_size = self.allocator.block_size();
        self.whole_run.add(time, &report.kv, block_size, num_running, demand);
        if !self.is_drained {
            self.until_drained.add(time, &report.kv, block_size, num_running, demand);
        }
    }

    fn report(mut self, hit_rate_bound: f64) -> AllocatorReport {
        let stats = self.engine.stats();
        let counters = stats.counters;
        let simulated_s = self.clock.now().as_secs_f64();
        let num_good = self.num_good_requests();
        let measured =
            if self.until_drained.is_empty() { self.whole_run } else { self.until_drained };
        let is_backlog = self.settings.load == Load::Backlog;
        let num_queried_tokens = counters.num_queried_tokens.max(1);
        AllocatorReport {
            name: self.allocator.to_string(),
            memory: measured.shares(),
            mean_running: measured.mean_running(),
            peak_running: self.peak_running,
            preemptions: counters.num_preemptions,
            hit_rate: counters.num_hit_tokens as f64 / num_queried_tokens as f64,
            hit_rate_bound,
            goodput: num_good as f64 / simulated_s,
            requests_per_s: self.requests.len() as f64 / simulated_s,
            output_tokens_per_s: counters.num_output_tokens as f64 / simulated_s,
            queueing_delay_s: (!is_backlog)
                .then(|| self.summary(|times, _| Some(times.admitted - times.arrived)))
                .flatten(),
            ttft_s: self.summary(|times, _| Some(times.ttft(is_backlog))),
            tpot_s: self.summary(RequestTimes::tpot),
            num_blocks: stats.kv.num_blocks,
            block_size: self.allocator.block_size().tokens(),
            num_steps: counters.num_steps,
            measured_s: measured.seconds(),
            simulated_s,
        }
    }

    /// Returns how many requests met the limits.
    fn num_good_requests(&self) -> usize {
        let limits = self.settings.limits;
        let is_backlog = self.settings.load == Load::Backlog;
        let is_good = |(times, request): &(&RequestTimes, &TraceRequest)| {
            times.ttft(is_backlog) <= limits.ttft.as_secs_f64()
                && times.tpot(request).is_none_or(|tpot| tpot <= limits.tpot.as_secs_f64())
        };
        self.times.iter().zip(self.requests).filter(is_good).count()
    }

    /// Sums up one time of all requests that have it.
    fn summary(
        &mut self,
        time: impl Fn(&RequestTimes, &TraceRequest) -> Option<f64>,
    ) -> Option<LatencySummary> {
        let all = self.times.iter().zip(self.requests);
        let mut seconds: Vec<f64> =
            all.filter_map(|(times, request)| time(times, request)).collect();
        LatencySummary::of(&mut seconds)
    }
}

impl RequestTimes {
    /// Returns the time to the first token, from admission where the time in the queue only says
    /// how long the backlog was made.
    fn ttft(&self, is_backlog: bool) -> f64 {
        self.first_token - if is_backlog { self.admitted } else { self.arrived }
    }

    /// Returns the mean time of the tokens after the first.
    fn tpot(&self, request: &TraceRequest) -> Option<f64> {
        let num_later_tokens = request.num_output_tokens - 1;
        let time = self.last_token - self.first_token;
        (num_later_tokens > 0).then(|| time / f64::from(num_later_tokens))
    }
}

/// Returns the number of a request in the trace.
fn number_of(request: RequestId) -> usize {
    usize::try_from(request.0).expect("it was an index when the request was submitted")
}
