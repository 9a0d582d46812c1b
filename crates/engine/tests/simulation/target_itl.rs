//! A long prompt arrives while others stream: no gap is far beyond the target, and the prompt is
//! computed as fast as that allows.

use crate::paced_executor::{Pace, PacedExecutor};
use mini_infer_core::{
    BlockSize, Clock, EngineEvent, ManualClock, PrefixCaching, Request, RequestId, SamplingParams,
};
use mini_infer_engine::{BlockHashing, Engine, EngineConfig, FakeExecutor, KvAllocator, TargetItl};
use std::time::Duration;

const VOCAB_SIZE: usize = 50;
const NUM_BLOCKS: u32 = 600;
const PROMPT_TOKENS: u32 = 6_000;
const NUM_STREAMS: u64 = 4;
/// 6 ms to read the weights, and 0.8 ms for each token.
const PACE: Pace = Pace { step: Duration::from_millis(6), token: Duration::from_micros(800) };

/// What the streams and the prompt saw.
#[derive(Clone, Copy, Debug)]
struct Seen {
    median_gap: Duration,
    worst_gap: Duration,
    prompt_time: Duration,
    largest_step: u32,
}

fn request(id: u64, num_prompt_tokens: u32, max_tokens: u32) -> Request {
    let token = |i: u32| (i * 7 + u32::try_from(id).unwrap()) % 50;
    let sampling = SamplingParams::greedy(max_tokens);
    Request::new(RequestId(id), (0..num_prompt_tokens).map(token).collect(), sampling)
}

/// Makes an engine on a device with so many layers.
fn engine(
    target_itl: TargetItl,
    num_layers: usize,
    clock: &ManualClock,
) -> Engine<PacedExecutor, ManualClock> {
    let config = EngineConfig {
        block_size: BlockSize::DEFAULT,
        num_blocks: NUM_BLOCKS,
        max_model_len: 8_000,
        max_num_seqs: 8,
        max_batched_tokens: 512,
        target_itl,
        max_queue_len: 8,
        prefix_caching: PrefixCaching::Off,
        block_hashing: BlockHashing::Chained,
        allocator: KvAllocator::Paged,
        window: None,
        content_hash: None,
    };
    let inner = FakeExecutor::new(VOCAB_SIZE, config.block_size, NUM_BLOCKS);
    let inner = inner.with_layers(num_layers);
    let executor = PacedExecutor { inner, clock: clock.clone(), pace: PACE };
    Engine::new(config, executor, clock.clone()).unwrap()
}

/// Runs four streams, to which a long prompt comes when all have streamed for a while, on a device
/// with so many layers.
fn run(target_itl: TargetItl, num_layers: usize) -> Seen {
    let clock = ManualClock::default();
    let mut engine = engine(target_itl, num_layers, &clock);
    for id in 1..=NUM_STREAMS {
        engine.submit(request(id, 200, 600)).unwrap();
    }
    let long = RequestId(0);
    let (mut events, mut gaps) = (Vec::new(), Vec::new());
    let (mut last_token, mut submitted, mut largest_step) = (None, None, 0);
    let mut num_streamed_steps = 0;
    loop {
        if num_streamed_steps == 20 {
            engine.submit(request(0, PROMPT_TOKENS, 1)).unwrap();
            submitted = Some(clock.now());
        }
        let report = engine.step(&mut events);
        let ended = events.drain(..).any(|event| {
            matches!(event, EngineEvent::Finished { sequence, .. } if sequence.request == long)
        });
        let now = clock.now();
        let all_stream = report.num_output_tokens >= u32::try_from(NUM_STREAMS).unwrap();
        num_streamed_steps += u32::from(all_stream);
        if submitted.is_some() && all_stream {
            gaps.extend(last_token.map(|last| now - last));
            last_token = Some(now);
            largest_step = largest_step.max(report.num_scheduled_tokens);
        }
        if ended {
            break;
        }
    }
    gaps.sort();
    Seen {
        median_gap: gaps[gaps.len() / 2],
        worst_gap: *gaps.last().unwrap(),
        prompt_time: clock.now() - submitted.unwrap(),
        largest_step,
    }
}

#[test]
fn a_long_prompt_leaves_streams_their_pace() {
    let alone = PACE.step + PACE.token * u32::try_from(NUM_STREAMS).unwrap();
    let derived = run(TargetItl::Derived, 1);
    assert!(derived.worst_gap < alone * 3, "{derived:?}");
    let within = run(TargetItl::Within(Duration::from_millis(60)), 1);
    assert!(within.worst_gap < Duration::from_millis(66), "{within:?}");
    assert!(within.median_gap > Duration::from_millis(54), "it uses what it may: {within:?}");
    assert!(within.prompt_time < derived.prompt_time, "{within:?} {derived:?}");
    let off = run(TargetItl::Off, 1);
    assert_eq!(off.largest_step, 512);
    assert!(off.worst_gap > alone * 30 && off.prompt_time < within.prompt_time, "{off:?}");
}

#[test]
fn a_long_prompt_that_passes_layer_by_layer_leaves_streams_their_pace() {
    let alone = PACE.step + PACE.token * u32::try_from(NUM_STREAMS).unwrap();
    for num_layers in [12, 24, 80] {
        let derived = run(TargetItl::Derived, num_layers);
        assert!(derived.worst_gap < alone * 3, "{derived:?}");
        // 14 tokens would fit at once, and 5 in a tight target.
        assert!(derived.largest_step > 100, "chunks are large: {derived:?}");
        let tight = run(TargetItl::Within(alone + alone / 2), num_layers);
        assert!(tight.worst_gap < alone * 7 / 4 && tight.largest_step > 30, "{tight:?}");
    }
}

#[test]
fn a_burst_on_a_fresh_server_is_computed_as_fast_as_the_target_allows() {
    let clock = ManualClock::default();
    let mut engine = engine(TargetItl::Within(Duration::from_secs(10)), 24, &clock);
    let num_prompts = 8;
    for id in 1..=num_prompts {
        engine.submit(request(id, 200, 600)).unwrap();
    }
    let (mut events, mut num_steps, mut num_outputs) = (Vec::new(), 0, 0);
    while num_outputs < num_prompts {
        num_outputs = u64::from(engine.step(&mut events).num_output_tokens);
        num_steps += 1;
    }
    // 1,600 tokens in steps of 512, and one step in which decodes show their time.
    assert!(num_steps <= 6, "{num_steps} steps");
}
