//! Deterministic simulation of the engine.
//!
//! Each seed makes one scenario: a tiny pool, requests whose prompts share prefixes over an alphabet
//! of a few tokens, arrivals, aborts, stop strings, priorities and injected device failures, on a
//! manual clock and the fake executor, whose logits are a function of the whole prefix and which
//! checks every slot it reads. After every step all invariants are checked; at the end every
//! request must have got exactly the tokens and log probabilities of its solo run without cache.
//!
//! `MINI_INFER_SIM_SEED=7 cargo test -p mini-infer-engine --test simulation` replays one seed;
//! `MINI_INFER_SIM_RUNS=100000` sets the number of seeds.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use mini_infer_core::{
    BlockSize, EngineEvent, FinishReason, ManualClock, PrefixCaching, Request, RequestId,
    SamplingParams, SequenceId, SequenceUsage, TokenId, TokenLogprobs,
};
use mini_infer_engine::{
    BlockHashing, Engine, EngineConfig, FakeExecutor, Fault, KvAllocator, SubmitError,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Seeds in a release build, enough to meet rare coincidences; a debug build is slower.
const NUM_RUNS: u64 = if cfg!(debug_assertions) { 400 } else { 10_000 };

type SimEngine = Engine<FakeExecutor, ManualClock>;

#[test]
fn every_request_gets_its_solo_run_whatever_else_is_served() {
    let from_env = |name: &str| std::env::var(name).ok().map(|value| value.parse().unwrap());
    if let Some(seed) = from_env("MINI_INFER_SIM_SEED") {
        println!("{:#?}", Scenario::new(seed));
        println!("{:#?}", run(seed));
        return;
    }
    let num_runs = from_env("MINI_INFER_SIM_RUNS").unwrap_or(NUM_RUNS);
    let mut seen = Coverage::default();
    for seed in 0..num_runs {
        seen.add(run(seed));
    }
    println!("{num_runs} runs: {seen:?}");
    if num_runs >= 400 {
        seen.assert_everything_happened();
    }
}

/// Runs one seed, naming it when something fails.
fn run(seed: u64) -> Coverage {
    struct NameSeedOnPanic(u64);
    impl Drop for NameSeedOnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with MINI_INFER_SIM_SEED={}", self.0);
            }
        }
    }
    let _guard = NameSeedOnPanic(seed);
    let scenario = Scenario::new(seed);
    let mut simulation = Simulation::new(&scenario);
    simulation.run();
    simulation.compare_with_solo_runs();
    simulation.coverage()
}

/// A small random number generator (xorshift64*), so that scenarios never change with a library.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32
    }

    /// A number in `range`, the end included.
    fn within(&mut self, range: std::ops::RangeInclusive<u32>) -> u32 {
        let size = u64::from(range.end() - range.start()) + 1;
        range.start() + u32::try_from(self.next() % size).unwrap()
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.within(1..=n) == 1
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        let last = u32::try_from(items.len() - 1).unwrap();
        items[self.within(0..=last) as usize].clone()
    }
}

#[derive(Clone, Debug)]
enum Command {
    Submit(Request),
    Abort(RequestId),
    /// A stop string was found after this many output tokens.
    FinishSequence(SequenceId, u32),
}

#[derive(Clone, Debug)]
struct Scenario {
    config: EngineConfig,
    vocab_size: u32,
    fault: Option<Fault>,
    /// Milliseconds that the clock moves with every step.
    step_ms: u64,
    /// Commands by the step before which they are given.
    commands: BTreeMap<u64, Vec<Command>>,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        // Odd multiples keep neighbouring seeds apart, and xorshift away from 0.
        let mut random = Random((2 * seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for _ in 0..8 {
            random.next();
        }
        let config = Self::config(&mut random);
        let vocab_size = random.within(2..=5);
        let mut commands: BTreeMap<u64, Vec<Command>> = BTreeMap::new();
        let base: Vec<TokenId> =
            (0..config.max_model_len).map(|_| random.within(0..=vocab_size - 1)).collect();
        let num_requests = random.within(1..=9);
        let last_arrival = random.pick(&[0, 5, 40]);
        for id in 0..num_requests {
            let id = RequestId(u64::from(id));
            let request = Self::request(&mut random, id, &base, vocab_size);
            let arrival = u64::from(random.within(0..=last_arrival));
            let later = arrival + u64::from(random.within(0..=40));
            let index = random.within(0..=request.sampling.n - 1);
            commands.entry(arrival).or_default().push(Command::Submit(request));
            if random.one_in(6) {
                commands.entry(later).or_default().push(Command::Abort(id));
            } else if random.one_in(6) {
                let sequence = SequenceId { request: id, index };
                let length = random.within(1..=6);
                commands.entry(later).or_default().push(Command::FinishSequence(sequence, length));
            }
        }
        let step = u64::from(random.within(0..=60));
        let fault = match random.within(1..=8) {
            1 => Some(Fault::StepFails { step }),
            2 => Some(Fault::RowIsNotFinite { step }),
            _ => None,
        };
        let step_ms = random.pick(&[0, 1, 700, 15_000]);
        Self { config, vocab_size, fault, step_ms, commands }
    }

    fn config(random: &mut Random) -> EngineConfig {
        let block_size = BlockSize::new(random.pick(&[8, 8, 8, 16, 32])).unwrap();
        let max_model_len = random.within(2..=80);
        let max_num_seqs = random.within(1..=6);
        let spare_blocks = random.pick(&[0, 0, 1, 2, 4, 40]);
        EngineConfig {
            block_size,
            num_blocks: block_size.blocks_for(max_model_len) + spare_blocks,
            max_model_len,
            max_num_seqs,
            max_batched_tokens: max_num_seqs + random.pick(&[0, 1, 7, 30, 200]),
            max_queue_len: random.within(1..=8),
            prefix_caching: if random.one_in(4) { PrefixCaching::Off } else { PrefixCaching::On },
            block_hashing: match random.one_in(5) {
                true => BlockHashing::AllEqual,
                false => BlockHashing::Chained,
            },
            allocator: KvAllocator::Paged,
            window: None,
            content_hash: None,
        }
    }

    /// A request whose prompt starts like `base` and goes on by itself.
    fn request(random: &mut Random, id: RequestId, base: &[TokenId], vocab_size: u32) -> Request {
        let longest = u32::try_from(base.len()).unwrap() - 1;
        let length = random.within(1..=longest) as usize;
        let num_shared = random.within(0..=longest) as usize;
        let mut prompt = base[..length].to_vec();
        for token in prompt.iter_mut().skip(num_shared) {
            *token = random.within(0..=vocab_size - 1);
        }
        let sampling = SamplingParams {
            n: random.pick(&[1, 1, 1, 2, 3]),
            temperature: random.pick(&[0.0, 0.0, 0.5, 1.0, 2.0]),
            top_p: random.pick(&[1.0, 1.0, 0.9, 0.5]),
            top_k: random.pick(&[None, None, Some(1), Some(2), Some(50)]),
            min_p: random.pick(&[0.0, 0.0, 0.2]),
            seed: random.next(),
            max_tokens: random.within(1..=60),
            stop_token_ids: random.pick(&[vec![], vec![], vec![], vec![0]]),
            logprobs: random.pick(&[None, Some(0), Some(2), Some(20)]),
            beam: None,
        };
        let priority = random.pick(&[0, 0, 0, -1, 1]);
        Request { priority, ..Request::new(id, prompt, sampling) }
    }

    /// The request alone, one sequence at a time, without prefix cache and with memory to spare.
    fn solo_config(&self) -> EngineConfig {
        EngineConfig {
            block_size: BlockSize::DEFAULT,
            num_blocks: self.config.max_model_len,
            max_num_seqs: 1,
            max_batched_tokens: 64,
            prefix_caching: PrefixCaching::Off,
            block_hashing: BlockHashing::Chained,
            allocator: KvAllocator::Paged,
            window: None,
            content_hash: None,
            ..self.config
        }
    }
}

fn engine(config: EngineConfig, vocab_size: u32, fault: Option<Fault>) -> (SimEngine, ManualClock) {
    let executor = FakeExecutor::new(vocab_size as usize, config.block_size, config.num_blocks);
    let executor = match fault {
        Some(fault) => executor.with_fault(fault),
        None => executor,
    };
    let clock = ManualClock::default();
    (Engine::new(config, executor, clock.clone()).unwrap(), clock)
}

/// What one sequence was told.
#[derive(Debug, Default, PartialEq)]
struct Transcript {
    tokens: Vec<TokenId>,
    logprobs: Vec<Option<TokenLogprobs>>,
    end: Option<(FinishReason, SequenceUsage)>,
}

type Transcripts = BTreeMap<SequenceId, Transcript>;

fn record(transcripts: &mut Transcripts, events: &mut Vec<EngineEvent>) {
    for event in events.drain(..) {
        match event {
            EngineEvent::Token { sequence, token, logprobs } => {
                let transcript = transcripts.get_mut(&sequence).expect("a submitted sequence");
                assert_eq!(transcript.end, None, "{sequence} grows after its end");
                transcript.tokens.push(token);
                transcript.logprobs.push(logprobs);
            }
            EngineEvent::Finished { sequence, reason, usage } => {
                let transcript = transcripts.get_mut(&sequence).expect("a submitted sequence");
                assert_eq!(transcript.end, None, "{sequence} ends twice");
                transcript.end = Some((reason, usage));
            }
        }
    }
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    engine: SimEngine,
    clock: ManualClock,
    accepted: Vec<Request>,
    transcripts: Transcripts,
    /// Sequences ended by a stop string while alive, and after how many output tokens.
    stopped: BTreeMap<SequenceId, u32>,
    num_errors: usize,
    num_refused: usize,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let (engine, clock) = engine(scenario.config, scenario.vocab_size, scenario.fault);
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
    fn run(&mut self) {
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
            self.clock.advance(Duration::from_millis(self.scenario.step_ms));
            step += 1;
            assert!(step <= last_command + 1 + num_owed_steps, "a request starves");
        }
        assert!(events.is_empty() && !self.engine.has_work());
        let kv = self.engine.stats().kv;
        assert_eq!((kv.num_active_blocks, kv.num_live_tokens), (0, 0), "blocks leak at idle");
    }

    /// Gives one command and returns how many steps it may cost at most.
    fn give(&mut self, command: &Command) -> u64 {
        match command {
            Command::Submit(request) => {
                let stats = self.engine.stats();
                let is_full = stats.num_waiting_requests >= self.scenario.config.max_queue_len;
                match self.engine.submit(request.clone()) {
                    Ok(()) => assert!(!is_full, "the queue is not bounded"),
                    Err(error) => {
                        assert!(is_full && matches!(error, SubmitError::QueueFull { .. }));
                        self.num_refused += 1;
                        return 0;
                    }
                }
                for index in 0..request.sampling.n {
                    let sequence = SequenceId { request: request.id, index };
                    self.transcripts.insert(sequence, Transcript::default());
                }
                self.accepted.push(request.clone());
                // Alone, with a budget of one token, each token costs a step; twice that leaves
                // room for what preemptions compute again.
                2 * u64::from(request.sampling.n * self.scenario.config.max_model_len)
            }
            Command::Abort(request) => {
                self.engine.abort(*request);
                0
            }
            Command::FinishSequence(sequence, length) => {
                let transcript = self.transcripts.get(sequence);
                let num_tokens = transcript.map_or(0, |transcript| transcript.tokens.len());
                let is_alive = transcript.is_some_and(|transcript| transcript.end.is_none());
                if is_alive && num_tokens >= *length as usize {
                    self.stopped.entry(*sequence).or_insert(*length);
                    self.engine.finish_sequence(*sequence, *length);
                }
                0
            }
        }
    }

    fn step(&mut self, step: u64, events: &mut Vec<EngineEvent>) {
        let before = self.engine.stats();
        let report = self.engine.step(events);
        let stats = self.engine.stats();
        let config = self.scenario.config;
        self.engine.check_invariants();
        assert!(report.num_scheduled_tokens <= config.max_batched_tokens, "budget of step {step}");
        assert!(report.num_scheduled_seqs <= config.max_num_seqs);
        assert!(stats.num_running_seqs <= config.max_num_seqs);
        let has_sequences = before.num_running_seqs + before.num_waiting_seqs > 0;
        assert_eq!(has_sequences, report.num_scheduled_tokens > 0, "progress of step {step}");
        let waste = stats.kv.waste;
        assert!(
            waste.internal_slots
                <= u64::from(stats.num_running_seqs * (config.block_size.tokens() - 1)),
            "only the last block of a sequence has open slots"
        );
        let is_error = |event: &&EngineEvent| {
            matches!(event, EngineEvent::Finished { reason: FinishReason::Error(_), .. })
        };
        let num_errors = events.iter().filter(is_error).count();
        let num_allowed = match self.scenario.fault {
            Some(Fault::StepFails { .. }) => report.num_scheduled_seqs as usize,
            Some(Fault::RowIsNotFinite { .. }) => 1,
            None => 0,
        };
        assert!(num_errors == 0 || (num_errors == num_allowed && self.num_errors == 0));
        self.num_errors += num_errors;
        record(&mut self.transcripts, events);
    }

    fn compare_with_solo_runs(&self) {
        for request in &self.accepted {
            let solo = self.solo_run(request);
            for (sequence, expected) in &solo {
                self.compare(request, *sequence, expected);
            }
        }
    }

    fn solo_run(&self, request: &Request) -> Transcripts {
        let (mut engine, _) = engine(self.scenario.solo_config(), self.scenario.vocab_size, None);
        engine.submit(request.clone()).unwrap();
        let index = 0..request.sampling.n;
        let mut transcripts: Transcripts = index
            .map(|index| (SequenceId { request: request.id, index }, Transcript::default()))
            .collect();
        let mut events = Vec::new();
        while engine.has_work() {
            engine.step(&mut events);
        }
        record(&mut transcripts, &mut events);
        transcripts
    }

    fn compare(&self, request: &Request, sequence: SequenceId, solo: &Transcript) {
        let got = &self.transcripts[&sequence];
        let (reason, usage) = got.end.as_ref().expect("every sequence ends");
        let num_tokens = got.tokens.len();
        let expected_tokens = solo.tokens.get(..num_tokens);
        assert_eq!(Some(&got.tokens[..]), expected_tokens, "tokens of {sequence}");
        let expected_logprobs = solo.logprobs.get(..num_tokens);
        assert_eq!(Some(&got.logprobs[..]), expected_logprobs, "logprobs of {sequence}");
        assert!(usage.num_hit_tokens < usage.num_prompt_tokens, "the last token is computed");
        if let Some(&length) = self.stopped.get(&sequence) {
            assert_eq!((reason, usage.num_output_tokens), (&FinishReason::Stop, length));
            return;
        }
        assert_eq!(usage.num_output_tokens as usize, num_tokens);
        assert_eq!(usage.num_prompt_tokens as usize, request.prompt.len());
        let stop_tokens = &request.sampling.stop_token_ids;
        let stop = got.tokens.iter().position(|token| stop_tokens.contains(token));
        match reason {
            FinishReason::Stop => assert_eq!(stop.map(|index| index + 1), Some(num_tokens)),
            FinishReason::Length => {
                let num_free = self.scenario.config.max_model_len - usage.num_prompt_tokens;
                let limit = request.sampling.max_tokens.min(num_free);
                assert_eq!((stop, usage.num_output_tokens), (None, limit));
            }
            FinishReason::Abort => assert!(self.aborts(request.id)),
            FinishReason::Error(_) => assert!(self.scenario.fault.is_some()),
        }
    }

    fn aborts(&self, id: RequestId) -> bool {
        let mut commands = self.scenario.commands.values().flatten();
        commands.any(|command| matches!(command, Command::Abort(request) if *request == id))
    }

    fn coverage(&self) -> Coverage {
        let counters = self.engine.stats().counters;
        Coverage {
            num_steps: counters.num_steps,
            num_preemptions: counters.num_preemptions,
            num_hit_tokens: counters.num_hit_tokens,
            num_refused: self.num_refused as u64,
            num_aborts: counters.finished.num_abort,
            num_stops: counters.finished.num_stop,
            num_stop_strings: self.stopped.len() as u64,
            num_lengths: counters.finished.num_length,
            num_errors: self.num_errors as u64,
        }
    }
}

/// What happened, to be sure that the scenarios are worth running.
#[derive(Clone, Copy, Debug, Default)]
struct Coverage {
    num_steps: u64,
    num_preemptions: u64,
    num_hit_tokens: u64,
    num_refused: u64,
    num_aborts: u64,
    num_stops: u64,
    num_stop_strings: u64,
    num_lengths: u64,
    num_errors: u64,
}

impl Coverage {
    fn fields(&mut self) -> [&mut u64; 9] {
        [
            &mut self.num_steps,
            &mut self.num_preemptions,
            &mut self.num_hit_tokens,
            &mut self.num_refused,
            &mut self.num_aborts,
            &mut self.num_stops,
            &mut self.num_stop_strings,
            &mut self.num_lengths,
            &mut self.num_errors,
        ]
    }

    fn add(&mut self, mut other: Self) {
        for (total, more) in self.fields().into_iter().zip(other.fields()) {
            *total += *more;
        }
    }

    fn assert_everything_happened(mut self) {
        let summary = format!("{self:?}");
        let all = self.fields().into_iter().all(|total| *total >= 20);
        assert!(all, "the scenarios miss something: {summary}");
    }
}
