//! Measures what a step costs besides the model: schedule, batch, sample, apply.
//!
//! The executor does next to nothing, the requests have the lengths of chats (161 prompt and 338
//! output tokens on average), and waiting ones never run out. Prints nanoseconds for each output
//! token, all else included.
//!
//! `cargo run --release -p mini-infer-engine --example step_cost -- [REQUESTS]`

#![expect(clippy::print_stdout, reason = "the result of a measurement")]
#![expect(clippy::disallowed_methods, reason = "real time is what is measured")]

use mini_infer_core::{
    Batch, BlockSize, Executor, ExecutorError, KvTransfer, ManualClock, PrefixCaching, Request,
    RequestId, SamplingParams, TokenId, mix64,
};
use mini_infer_engine::{BlockHashing, Engine, EngineConfig, KvAllocator, TargetItl};
use std::time::Instant;

const VOCAB_SIZE: usize = 16;
const MEAN_PROMPT_TOKENS: f64 = 161.0;
const MEAN_OUTPUT_TOKENS: f64 = 338.0;
const MAX_MODEL_LEN: u32 = 2048;

/// Gives every row its own favourite token.
struct NoModel;

impl Executor for NoModel {
    fn vocab_size(&self) -> usize {
        VOCAB_SIZE
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        logits.clear();
        logits.resize(batch.logits_rows.len() * VOCAB_SIZE, 0.0);
        for (row, logits) in batch.logits_rows.iter().zip(logits.as_chunks_mut::<VOCAB_SIZE>().0) {
            let token = batch.tokens[*row as usize] + batch.positions[*row as usize];
            logits[token as usize % VOCAB_SIZE] = 1.0;
        }
        Ok(())
    }

    fn transfer(&mut self, _: &[KvTransfer]) {}
}

/// An exponentially distributed length.
fn length(mean: f64, number: u64) -> u32 {
    let uniform = (mix64(number) >> 11) as f64 / (1_u64 << 53) as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    let length = (-mean * (1.0 - uniform).ln()) as u32;
    length.clamp(1, MAX_MODEL_LEN / 2)
}

fn request(id: u64) -> Request {
    let num_prompt_tokens = length(MEAN_PROMPT_TOKENS, 2 * id);
    let token = |i: u32| TokenId::try_from(mix64(id ^ u64::from(i) << 32) % 16).unwrap_or(0);
    let prompt = (0..num_prompt_tokens).map(token).collect();
    let sampling = SamplingParams::greedy(length(MEAN_OUTPUT_TOKENS, 2 * id + 1));
    Request::new(RequestId(id), prompt, sampling)
}

fn measure(name: &str, num_requests: u64, max_num_seqs: u32, prefix_caching: PrefixCaching) {
    let config = EngineConfig {
        block_size: BlockSize::DEFAULT,
        num_blocks: max_num_seqs * 30,
        max_model_len: MAX_MODEL_LEN,
        max_num_seqs,
        max_batched_tokens: 2048,
        target_itl: TargetItl::Off,
        max_queue_len: 64,
        prefix_caching,
        block_hashing: BlockHashing::Chained,
        allocator: KvAllocator::Paged,
        window: None,
        content_hash: None,
    };
    let mut engine = Engine::new(config, NoModel, ManualClock::default()).expect("it is valid");
    let mut requests = (0..num_requests).map(request);
    let mut events = Vec::new();
    let start = Instant::now();
    loop {
        while engine.stats().num_waiting_requests < config.max_queue_len {
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
        "{name}: {:.1} ns per output token, {} preemptions, {} steps, {:.1} s",
        elapsed.as_nanos() as f64 / counters.num_output_tokens as f64,
        counters.num_preemptions,
        counters.num_steps,
        elapsed.as_secs_f64(),
    );
}

fn main() {
    let num_requests = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(30_000);
    for max_num_seqs in [16, 256] {
        for prefix_caching in [PrefixCaching::On, PrefixCaching::Off] {
            let name = format!("{max_num_seqs} sequences, prefix caching {prefix_caching:?}");
            measure(&name, num_requests, max_num_seqs, prefix_caching);
        }
    }
}
