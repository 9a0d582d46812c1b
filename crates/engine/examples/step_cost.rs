//! Measures what a step costs besides the model: schedule, batch, sample, apply.
//!
//! The executor does nothing and its time is not counted. Prints, in this order: nanoseconds of a
//! step in which 1 to 1,024 sequences decode, with next to no vocabulary (the bookkeeping alone) and
//! with one of 49,152 tokens (greedy sampling too); microseconds of a row of that vocabulary by
//! sampling parameters, for a model that is sure, one that is not, and one that knows nothing; the
//! step that admits 1,024 prompts at once; and the cost of an output token when requests with the
//! lengths of chats (161 prompt and 338 output tokens on average) come and go.
//!
//! `cargo run --release -p mini-infer-engine --example step_cost -- [REQUESTS]`

#![expect(clippy::print_stdout, reason = "the result of a measurement")]
#![expect(clippy::disallowed_methods, reason = "real time is what is measured")]

use mini_infer_core::{
    Batch, BlockSize, Executor, ExecutorError, KvTransfer, ManualClock, Penalties, PrefixCaching,
    Request, RequestId, SamplingParams, TokenId, mix64,
};
use mini_infer_engine::{BlockHashing, Engine, EngineConfig, KvAllocator, TargetItl};
use std::time::{Duration, Instant};

const SMALL_VOCAB: usize = 16;
const LARGE_VOCAB: usize = 49_152;
const MEAN_PROMPT_TOKENS: f64 = 161.0;
const MEAN_OUTPUT_TOKENS: f64 = 338.0;
const MAX_MODEL_LEN: u32 = 2048;
/// Prompt tokens of a sequence that only decodes.
const SHORT_PROMPT: u32 = 4;
/// Steps whose median is printed.
const NUM_STEPS: usize = 201;

/// Gives the same rows in every step.
struct NoModel {
    vocab_size: usize,
    rows: Rows,
    /// Time spent in here so far.
    elapsed: Duration,
}

/// What the logits look like.
#[derive(Clone, Copy)]
struct Rows {
    /// Their standard deviation.
    spread: f32,
    /// How far the likeliest of some two dozen candidates are above the rest.
    peak: f32,
}

const SURE: Rows = Rows { spread: 2.0, peak: 12.0 };
const UNSURE: Rows = Rows { spread: 2.0, peak: 4.0 };
const FLAT: Rows = Rows { spread: 1e-3, peak: 0.0 };
const EQUAL: Rows = Rows { spread: 0.0, peak: 0.0 };

impl Rows {
    fn logit(self, number: u64) -> f32 {
        let candidate = if mix64(number).is_multiple_of(2048) { self.peak } else { 0.0 };
        self.spread * normal(number) + candidate
    }
}

impl NoModel {
    fn new(vocab_size: usize, rows: Rows) -> Self {
        Self { vocab_size, rows, elapsed: Duration::ZERO }
    }
}

impl Executor for NoModel {
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        let started = Instant::now();
        let len = batch.logits_rows.len() * self.vocab_size;
        let known = logits.len();
        logits.truncate(len);
        logits.extend((known..len).map(|i| self.rows.logit(i as u64)));
        self.elapsed += started.elapsed();
        Ok(())
    }

    fn transfer(&mut self, _: &[KvTransfer]) {}
}

fn uniform(number: u64) -> f64 {
    (mix64(number) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number that is about normally distributed: the sum of four uniform ones.
fn normal(number: u64) -> f32 {
    let sum: f64 = (0..4).map(|i| uniform(4 * number + i)).sum();
    #[expect(clippy::cast_possible_truncation, reason = "between -4 and 4")]
    let normal = ((sum - 2.0) * 3.0_f64.sqrt()) as f32;
    normal
}

/// An exponentially distributed length.
fn length(mean: f64, number: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    let length = (-mean * (1.0 - uniform(number)).ln()) as u32;
    length.clamp(1, MAX_MODEL_LEN / 2)
}

fn request(id: u64, num_prompt_tokens: u32, sampling: SamplingParams) -> Request {
    let token = |i: u32| TokenId::try_from(mix64(id ^ u64::from(i) << 32) % 16).unwrap_or(0);
    Request::new(RequestId(id), (0..num_prompt_tokens).map(token).collect(), sampling)
}

fn engine(
    model: NoModel,
    max_num_seqs: u32,
    prefix_caching: PrefixCaching,
) -> Engine<NoModel, ManualClock> {
    let config = EngineConfig {
        block_size: BlockSize::DEFAULT,
        num_blocks: (max_num_seqs * 30).max(MAX_MODEL_LEN / BlockSize::DEFAULT.tokens()),
        max_model_len: MAX_MODEL_LEN,
        max_num_seqs,
        max_batched_tokens: 2048.max(max_num_seqs * SHORT_PROMPT),
        target_itl: TargetItl::Off,
        max_queue_len: max_num_seqs.max(64),
        prefix_caching,
        block_hashing: BlockHashing::Chained,
        allocator: KvAllocator::Paged,
        window: None,
        content_hash: None,
    };
    Engine::new(config, model, ManualClock::default()).expect("it is valid")
}

/// Times single steps without the executor's part.
fn step(engine: &mut Engine<NoModel, ManualClock>, num_events: usize) -> Duration {
    let mut events = Vec::with_capacity(num_events);
    let in_executor = engine.executor().elapsed;
    let started = Instant::now();
    engine.step(&mut events);
    started.elapsed().saturating_sub(engine.executor().elapsed - in_executor)
}

/// Returns the time of the first step, which admits all sequences, and the median of those in
/// which all decode.
fn steps(model: NoModel, num_seqs: u32, sampling: &SamplingParams) -> (Duration, Duration) {
    let mut engine = engine(model, num_seqs, PrefixCaching::On);
    for id in 0..u64::from(num_seqs) {
        engine.submit(request(id, SHORT_PROMPT, sampling.clone())).expect("the queue has room");
    }
    let num_events = num_seqs as usize;
    let first = step(&mut engine, num_events);
    let mut times: Vec<Duration> = (0..NUM_STEPS).map(|_| step(&mut engine, num_events)).collect();
    times.sort_unstable();
    (first, times[times.len() / 2])
}

/// Penalties of all kinds.
const PENALTIES: Penalties = Penalties { repetition: 1.1, presence: 0.5, frequency: 0.5 };

fn greedy() -> SamplingParams {
    SamplingParams::greedy(MAX_MODEL_LEN)
}

fn measure_decodes() {
    for num_seqs in [1, 16, 64, 1024] {
        let (first, small) = steps(NoModel::new(SMALL_VOCAB, SURE), num_seqs, &greedy());
        let (_, large) = steps(NoModel::new(LARGE_VOCAB, SURE), num_seqs, &greedy());
        println!(
            "{num_seqs} decodes: {} ns a step, {} with greedy rows of {LARGE_VOCAB}; {} to admit",
            small.as_nanos(),
            large.as_nanos(),
            first.as_nanos(),
        );
    }
}

fn measure_rows() {
    const NUM_SEQS: u32 = 16;
    let sampled = |temperature| SamplingParams { temperature, ..greedy() };
    let kinds = [
        ("greedy", greedy()),
        ("greedy, 5 logprobs", SamplingParams { logprobs: Some(5), ..greedy() }),
        ("temperature", sampled(0.8)),
        ("min_p 0.05", SamplingParams { min_p: 0.05, ..sampled(0.8) }),
        ("top_k 40", SamplingParams { top_k: Some(40), ..sampled(0.8) }),
        ("top_p 0.95", SamplingParams { top_p: 0.95, ..sampled(0.8) }),
        ("top_k 40, top_p 0.95", SamplingParams { top_k: Some(40), top_p: 0.95, ..sampled(0.8) }),
        ("penalties", SamplingParams { penalties: PENALTIES, ..sampled(0.8) }),
    ];
    for (name, sampling) in kinds {
        let mut line = format!("a row of {LARGE_VOCAB}, {name}:");
        for (kind, rows) in [("sure", SURE), ("unsure", UNSURE), ("flat", FLAT), ("equal", EQUAL)] {
            let (_, time) = steps(NoModel::new(LARGE_VOCAB, rows), NUM_SEQS, &sampling);
            let us = time.as_secs_f64() * 1e6 / f64::from(NUM_SEQS);
            line += &format!(" {us:.1} us {kind},");
        }
        println!("{}", line.trim_end_matches(','));
    }
}

fn measure_chats(num_requests: u64, max_num_seqs: u32, prefix_caching: PrefixCaching) {
    let mut engine = engine(NoModel::new(SMALL_VOCAB, SURE), max_num_seqs, prefix_caching);
    let mut requests = (0..num_requests).map(|id| {
        let sampling = SamplingParams::greedy(length(MEAN_OUTPUT_TOKENS, 2 * id + 1));
        request(id, length(MEAN_PROMPT_TOKENS, 2 * id), sampling)
    });
    let mut events = Vec::new();
    let start = Instant::now();
    loop {
        while engine.stats().num_waiting_requests < 64 {
            let Some(request) = requests.next() else { break };
            engine.submit(request).expect("the queue has room");
        }
        if !engine.has_work() {
            break;
        }
        engine.step(&mut events);
        events.clear();
    }
    let elapsed = start.elapsed();
    let counters = engine.stats().counters;
    println!(
        "chats, {max_num_seqs} sequences, prefix caching {prefix_caching:?}: \
         {:.1} ns per output token, {} preemptions, {} steps, {:.1} s",
        elapsed.as_nanos() as f64 / counters.num_output_tokens as f64,
        counters.num_preemptions,
        counters.num_steps,
        elapsed.as_secs_f64(),
    );
}

fn main() {
    let num_requests = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(10_000);
    measure_decodes();
    measure_rows();
    for max_num_seqs in [16, 256] {
        for prefix_caching in [PrefixCaching::On, PrefixCaching::Off] {
            measure_chats(num_requests, max_num_seqs, prefix_caching);
        }
    }
}
