//! Clients whose requests queue get equal shares, and the engine never idles for it.
//!
//! Each seed makes a few clients with many requests of their own lengths and priorities, some of
//! which come later, and memory that is tight or not. What a client is served is counted from
//! outside, as the tokens that its sequences have computed for the first time.

use crate::random::Random;
use mini_infer_core::{
    BlockSize, ClientId, EngineEvent, ManualClock, PrefixCaching, Request, RequestId,
    SamplingParams, SequenceUsage,
};
use mini_infer_engine::{
    AdmissionStatus, BlockHashing, Engine, EngineConfig, FakeExecutor, KvAllocator, StepReport,
    TargetItl,
};
use std::collections::{BTreeMap, BTreeSet};

const NUM_RUNS: u64 = if cfg!(debug_assertions) { 40 } else { 1_000 };
const VOCAB_SIZE: usize = 5;

/// What one client sends.
struct Habit {
    prompt_tokens: u32,
    output_tokens: u32,
    /// Step in which it begins.
    first_step: u64,
    num_requests: u32,
}

/// Requests of one client that never ran: priority and number.
type Queue = BTreeSet<(i32, u64)>;

struct Run {
    engine: Engine<FakeExecutor, ManualClock>,
    config: EngineConfig,
    requests: Vec<Request>,
    waiting: BTreeMap<ClientId, Queue>,
    /// Tokens that each request has computed at most.
    computed: BTreeMap<RequestId, u32>,
    /// The sum of these over a client's requests.
    served: BTreeMap<ClientId, i64>,
    num_ended: usize,
    /// Least and greatest lead of one client over another since both wait.
    leads: BTreeMap<(ClientId, ClientId), (i64, i64)>,
    greatest_lead: i64,
    num_preemptions: u64,
}

impl Run {
    fn new(random: &mut Random, num_habits: usize) -> Self {
        let max_num_seqs = random.within(1..=4);
        let config = EngineConfig {
            block_size: BlockSize::new(8).unwrap(),
            num_blocks: 10 + random.pick(&[0, 3, 100]),
            max_model_len: 80,
            max_num_seqs,
            max_batched_tokens: max_num_seqs + random.pick(&[0, 7, 30]),
            target_itl: TargetItl::Off,
            max_queue_len: 10_000,
            prefix_caching: PrefixCaching::Off,
            block_hashing: BlockHashing::Chained,
            allocator: KvAllocator::Paged,
            window: None,
            content_hash: None,
        };
        let executor = FakeExecutor::new(VOCAB_SIZE, config.block_size, config.num_blocks);
        let engine = Engine::new(config, executor, ManualClock::default()).unwrap();
        let waiting = (0..num_habits as u64).map(|id| (ClientId(id), Queue::new())).collect();
        Self {
            engine,
            config,
            requests: Vec::new(),
            waiting,
            computed: BTreeMap::new(),
            served: BTreeMap::new(),
            num_ended: 0,
            leads: BTreeMap::new(),
            greatest_lead: 0,
            num_preemptions: 0,
        }
    }

    fn submit(&mut self, random: &mut Random, client: ClientId, habit: &Habit) {
        let id = RequestId(self.requests.len() as u64);
        let num_prompt_tokens = random.within(1..=habit.prompt_tokens);
        let prompt = (0..num_prompt_tokens).map(|_| random.within(0..=4)).collect();
        let sampling = SamplingParams::greedy(random.within(1..=habit.output_tokens));
        let priority = random.pick(&[0, 0, 0, -1, 1]);
        let request = Request { client, priority, ..Request::new(id, prompt, sampling) };
        self.engine.submit(request.clone()).unwrap();
        self.waiting.get_mut(&client).unwrap().insert((priority, id.0));
        self.requests.push(request);
    }

    fn step(&mut self) {
        let mut events = Vec::new();
        let report = self.engine.step(&mut events);
        self.engine.check_invariants();
        self.check_admissions();
        let num_ended = self.num_ended;
        for event in events {
            if let EngineEvent::Finished { sequence, usage, .. } = event {
                let SequenceUsage { num_prompt_tokens, num_output_tokens, .. } = usage;
                // The last token is not computed.
                self.note_computed(sequence.request, num_prompt_tokens + num_output_tokens - 1);
                self.num_ended += 1;
            }
        }
        self.check_work(&report, self.num_ended - num_ended);
        for sequence in self.engine.kv_snapshot().sequences {
            self.note_computed(sequence.id.request, sequence.num_computed_tokens);
        }
        self.check_leads();
        self.num_preemptions += u64::from(report.num_preempted);
    }

    fn request(&self, id: RequestId) -> &Request {
        &self.requests[usize::try_from(id.0).unwrap()]
    }

    fn note_computed(&mut self, id: RequestId, num_tokens: u32) {
        let computed = self.computed.entry(id).or_default();
        let num_before = std::mem::replace(computed, num_tokens.max(*computed));
        let client = self.request(id).client;
        let more = num_tokens.saturating_sub(num_before);
        *self.served.entry(client).or_default() += i64::from(more);
    }

    /// Checks that each client's requests are admitted in its own order.
    fn check_admissions(&mut self) {
        for id in self.engine.first_admissions().collect::<Vec<_>>() {
            let &Request { client, priority, .. } = self.request(id);
            let queue = self.waiting.get_mut(&client).unwrap();
            assert_eq!(queue.pop_first(), Some((priority, id.0)), "order of {client:?}");
        }
    }

    /// Checks that nobody waits whom budget, places and memory would let run.
    fn check_work(&self, report: &StepReport, num_ended: usize) {
        let stats = self.engine.stats();
        let is_one_waiting = stats.num_waiting_seqs > 0;
        // A sequence that ended with the step had a place in it.
        let num_running = stats.num_running_seqs as usize + num_ended;
        let has_place = num_running < self.config.max_num_seqs as usize;
        let has_budget = report.num_scheduled_tokens < self.config.max_batched_tokens;
        let has_memory = report.admission == AdmissionStatus::NotRefused;
        let may_admit = report.num_preempted == 0;
        assert!(!(is_one_waiting && has_place && has_budget && has_memory && may_admit));
    }

    fn check_leads(&mut self) {
        let served = |client| self.served.get(client).copied().unwrap_or(0);
        for (a, queue_a) in &self.waiting {
            for (b, queue_b) in self.waiting.range(..a) {
                if queue_a.is_empty() || queue_b.is_empty() {
                    self.leads.remove(&(*a, *b));
                    continue;
                }
                let lead = served(a) - served(b);
                let (least, greatest) = self.leads.entry((*a, *b)).or_insert((lead, lead));
                *least = lead.min(*least);
                *greatest = lead.max(*greatest);
                self.greatest_lead = self.greatest_lead.max(*greatest - *least);
            }
        }
    }
}

/// Runs one seed and returns the run.
fn run(seed: u64) -> Run {
    let mut random = Random::new(seed);
    let habits: Vec<Habit> = (0..random.within(2..=4))
        .map(|i| Habit {
            prompt_tokens: random.pick(&[2, 10, 40]),
            output_tokens: random.pick(&[2, 10, 40]),
            first_step: if i == 0 { 0 } else { random.pick(&[0, 10, 100]) },
            num_requests: random.pick(&[20, 60]),
        })
        .collect();
    let mut run = Run::new(&mut random, habits.len());
    let num_tokens: u64 = habits.iter().map(|habit| u64::from(habit.num_requests * 2 * 80)).sum();
    let mut step = 0;
    while step <= 100 || run.engine.has_work() {
        for (client, habit) in (0..).map(ClientId).zip(&habits) {
            for _ in 0..if step == habit.first_step { habit.num_requests } else { 0 } {
                run.submit(&mut random, client, habit);
            }
        }
        run.step();
        step += 1;
        assert!(step < 100 + num_tokens, "a request starves");
    }
    assert_eq!(run.num_ended, run.requests.len());
    run
}

#[test]
fn clients_that_wait_are_served_alike_and_no_place_stays_empty_for_it() {
    let (mut greatest, mut num_preemptions) = (0, 0);
    for seed in 0..NUM_RUNS {
        let run = run(seed);
        // Whoever is ahead is given no place, so only what runs can widen the lead: of either one.
        let bound = 2 * i64::from(run.config.max_num_seqs * run.config.max_model_len);
        assert!(run.greatest_lead <= bound, "seed {seed}: {} of {bound}", run.greatest_lead);
        greatest = greatest.max(run.greatest_lead);
        num_preemptions += run.num_preemptions;
    }
    println!("greatest lead {greatest}, {num_preemptions} preemptions");
    assert!(greatest > 0 && num_preemptions > 20, "the runs are worth it");
}
