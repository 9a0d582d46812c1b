//! Scheduling never changes output: with the real model, a request's tokens and log probabilities
//! are the same bits alone and in every kind of company.

use crate::model::{all_cores, fast_executor, fixed_tokens};
use mini_infer_core::{
    BlockSize, EngineEvent, Executor, FinishReason, ManualClock, PrefixCaching, Request, RequestId,
    SamplingParams, TokenLogprobs,
};
use mini_infer_engine::{Engine, EngineConfig, KvAllocator, TargetItl};
use mini_infer_kernels::{Isa, KvDtype};
use mini_infer_kv::BlockHashing;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Prompt lengths around every border: blocks of 16, attention partitions of 256, chunks.
const PROMPT_LENS: [usize; 24] = [
    1, 2, 15, 16, 17, 31, 33, 48, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300, 400, 512,
    513, 700, 900,
];
const MAX_TOKENS: u32 = 10;
const MAX_MODEL_LEN: u32 = 1000;
/// Room for all requests at once.
const NUM_BLOCKS: u32 = 600;

/// What a request produced: each token with its log probabilities, as bits.
type Output = Vec<(u32, Vec<u32>)>;

/// Returns what each request gives alone, without a cache, a prompt in one step.
fn alone(dtype: KvDtype) -> &'static BTreeMap<RequestId, Output> {
    static F16: OnceLock<BTreeMap<RequestId, Output>> = OnceLock::new();
    static INT8: OnceLock<BTreeMap<RequestId, Output>> = OnceLock::new();
    let alone = if dtype == KvDtype::Int8 { &INT8 } else { &F16 };
    alone.get_or_init(|| {
        let isa = Isa::from_env().unwrap();
        let mut model = fast_executor(isa, 2, dtype, BlockSize::DEFAULT, NUM_BLOCKS);
        let mut alone = BTreeMap::new();
        for request in requests(dtype) {
            let mut engine = engine(&mut model, &config(1000, PrefixCaching::Off, 1));
            alone.extend(run(&mut engine, &[request]));
        }
        assert!(alone.values().all(|output| output.len() == MAX_TOKENS as usize));
        alone
    })
}

fn check(dtype: KvDtype, outputs: &BTreeMap<RequestId, Output>, context: &str) {
    let alone = alone(dtype);
    assert!(outputs.keys().eq(alone.keys()));
    for (id, output) in outputs {
        assert!(*output == alone[id], "{} KV, {context}: {id} differs", dtype.name());
    }
}

#[test]
fn output_is_bit_equal_alone_and_in_any_batch_chunk_cache_and_thread_count() {
    let _cores = all_cores();
    check_company(KvDtype::F16, &[16, 64, 512]);
}

#[test]
fn output_with_int8_kv_is_bit_equal_in_any_company_too() {
    let _cores = all_cores();
    check_company(KvDtype::Int8, &[37]);
}

fn check_company(dtype: KvDtype, chunks: &[u32]) {
    let requests = requests(dtype);
    let num_tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
    let isa = Isa::from_env().unwrap();
    let mut model = fast_executor(isa, 2, dtype, BlockSize::DEFAULT, NUM_BLOCKS);
    for &chunk in chunks {
        let mut engine = engine(&mut model, &config(chunk, PrefixCaching::On, 16));
        check(dtype, &run(&mut engine, &requests), &format!("cold cache, chunks of {chunk}"));
        check(dtype, &run(&mut engine, &requests), &format!("warm cache, chunks of {chunk}"));
        let num_hits = engine.stats().counters.num_hit_tokens;
        assert!(num_hits > num_tokens as u64 * 4 / 5, "{num_hits} hits: the cache was used");
    }
    {
        let mut engine = engine(&mut model, &config(200, PrefixCaching::Off, 5));
        check(dtype, &run(&mut engine, &requests), "no cache, at most five at once");
    }
    let mut model = fast_executor(isa, 1, dtype, BlockSize::DEFAULT, NUM_BLOCKS);
    let mut engine_on_one = engine(&mut model, &config(256, PrefixCaching::On, 24));
    check(dtype, &run(&mut engine_on_one, &requests), "one thread");
}

#[test]
fn output_is_bit_equal_after_a_preemption_and_in_blocks_of_another_size() {
    let _cores = all_cores();
    for dtype in [KvDtype::F16, KvDtype::Int8] {
        check_preempted(dtype);
    }
}

/// Each request runs beside a more urgent one of three sequences, which share their prompt's block
/// and have a tail each. Admission leaves those a block each to grow; the pool has none left for
/// the request's own growth, so that it is preempted.
fn check_preempted(dtype: KvDtype) {
    let block_size = BlockSize::new(8).unwrap();
    let isa = Isa::from_env().unwrap();
    let mut model = fast_executor(isa, 2, dtype, block_size, 2 * NUM_BLOCKS);
    for request in &requests(dtype) {
        let expected = &alone(dtype)[&request.id];
        let len = u32::try_from(request.prompt.len()).unwrap();
        let num_blocks = 1 + 3 + 3 + block_size.blocks_for(len);
        let max_model_len = num_blocks * block_size.tokens();
        let config = EngineConfig {
            block_size,
            num_blocks,
            max_model_len,
            ..config(512, PrefixCaching::On, 16)
        };
        let mut engine = engine(&mut model, &config);
        let mut outputs = BTreeMap::new();
        let urgent = urgent();
        engine.submit(urgent.clone()).unwrap();
        while outputs.get(&urgent.id).is_none_or(|output: &Output| output.len() < 3 * 2) {
            step(&mut engine, &mut outputs);
        }
        engine.submit(request.clone()).unwrap();
        // The least urgent running sequence is the one that is preempted. So while the request has
        // begun to answer and has not ended, the first preemption is its own.
        let mut was_preempted = false;
        while engine.has_work() {
            let had = outputs.get(&request.id).map_or(0, Vec::len);
            let preemptions = engine.stats().counters.num_preemptions;
            step(&mut engine, &mut outputs);
            let rose = engine.stats().counters.num_preemptions > preemptions;
            was_preempted |= rose && (1..MAX_TOKENS as usize).contains(&had);
        }
        assert!(was_preempted, "the request of {len} tokens was not preempted in its answer");
        assert!(outputs[&request.id] == *expected, "the preempted request of {len} tokens differs");
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let _cores = all_cores();
    let requests: Vec<_> = requests(KvDtype::F16).into_iter().step_by(5).take(4).collect();
    for dtype in [KvDtype::F16, KvDtype::Int8] {
        let mut first = None;
        for isa in Isa::all_present().into_iter().filter(|isa| *isa != Isa::Scalar) {
            let mut model = fast_executor(isa, 2, dtype, BlockSize::DEFAULT, NUM_BLOCKS);
            let mut engine = engine(&mut model, &config(512, PrefixCaching::On, 16));
            let outputs = run(&mut engine, &requests);
            let expected = first.get_or_insert_with(|| outputs.clone());
            assert!(outputs == *expected, "{} differs with {} KV", isa.name(), dtype.name());
        }
    }
}

/// A request that goes before all others, of three sequences that grow from one block to five and
/// differ, so that they share the first one only.
fn urgent() -> Request {
    let sampling = SamplingParams { n: 3, temperature: 1.0, ..SamplingParams::greedy(30) };
    let request = Request::new(RequestId(1_000_000), vec![500; 8], sampling);
    Request { priority: -1000, ..request }
}

/// Prompts from the fixed text; every third shares its beginning with the others. Greedy and
/// seeded sampling take turns. For int8 KV fewer, as it differs in the kernels only.
fn requests(dtype: KvDtype) -> Vec<Request> {
    let text = fixed_tokens();
    PROMPT_LENS
        .iter()
        .zip(0_u32..)
        .filter(|(_, i)| dtype != KvDtype::Int8 || [0, 5, 6, 9, 12, 17, 18, 22].contains(i))
        .map(|(&len, i)| {
            let start = if i % 3 == 0 { 0 } else { (i as usize * 61) % 1500 };
            let sampling =
                SamplingParams { logprobs: Some(3), ..SamplingParams::greedy(MAX_TOKENS) };
            let sampled = SamplingParams {
                temperature: 0.9,
                top_p: if i % 4 == 1 { 0.9 } else { 1.0 },
                top_k: (i % 8 == 3).then_some(40),
                min_p: if i % 8 == 7 { 0.05 } else { 0.0 },
                seed: u64::from(i) + 77,
                ..sampling.clone()
            };
            let prompt = text[start..start + len].to_vec();
            let sampling = if i % 2 == 0 { sampling } else { sampled };
            Request::new(RequestId(u64::from(i)), prompt, sampling)
        })
        .collect()
}

fn config(
    max_batched_tokens: u32,
    prefix_caching: PrefixCaching,
    max_num_seqs: u32,
) -> EngineConfig {
    EngineConfig {
        block_size: BlockSize::DEFAULT,
        num_blocks: NUM_BLOCKS,
        max_model_len: MAX_MODEL_LEN,
        max_num_seqs: max_num_seqs.min(max_batched_tokens),
        max_batched_tokens,
        max_queue_len: 100,
        prefix_caching,
        block_hashing: BlockHashing::Chained,
        allocator: KvAllocator::Paged,
        window: None,
        target_itl: TargetItl::Off,
        content_hash: None,
    }
}

fn engine<E: Executor>(executor: E, config: &EngineConfig) -> Engine<E, ManualClock> {
    Engine::new(*config, executor, ManualClock::default()).unwrap()
}

/// Submits all requests at once and runs until they end.
fn run<E: Executor>(
    engine: &mut Engine<E, ManualClock>,
    requests: &[Request],
) -> BTreeMap<RequestId, Output> {
    let mut outputs = BTreeMap::new();
    for request in requests {
        engine.submit(request.clone()).unwrap();
    }
    while engine.has_work() {
        step(engine, &mut outputs);
    }
    outputs
}

fn step<E: Executor>(
    engine: &mut Engine<E, ManualClock>,
    outputs: &mut BTreeMap<RequestId, Output>,
) {
    let mut events = Vec::new();
    engine.step(&mut events);
    for event in events {
        match event {
            EngineEvent::Token { sequence, token, logprobs } => {
                let output = outputs.entry(sequence.request).or_default();
                output.push((token, logprobs.map(bits).unwrap_or_default()));
            }
            EngineEvent::PromptLogprobs { .. } | EngineEvent::Embedding { .. } => {
                panic!("nobody asked about the prompt")
            }
            EngineEvent::Finished { reason, .. } => assert_eq!(reason, FinishReason::Length),
        }
    }
}

fn bits(logprobs: TokenLogprobs) -> Vec<u32> {
    let top = logprobs.top.iter().flat_map(|(token, value)| [*token, value.to_bits()]);
    std::iter::once(logprobs.chosen.to_bits()).chain(top).collect()
}
