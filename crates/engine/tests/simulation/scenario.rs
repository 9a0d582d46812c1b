//! What one seed stands for: an engine, and what it is asked to do and when.

use crate::fake_constraint::FakeConstraint;
use crate::paced_executor::{Pace, PacedExecutor};
use crate::random::Random;
use mini_infer_core::{
    Adapter, BeamParams, BlockKey, BlockSize, ClientId, DryBreakers, DryParams, ManualClock,
    Namespace, OutputConstraint, Penalties, Pooling, PrefixCaching, PromptReport, Request,
    RequestId, SamplingParams, SequenceId, TokenId, XtcParams, mix64,
};
use mini_infer_engine::{
    BlockHashing, Engine, EngineConfig, FakeExecutor, FakeTier, Fault, KvAllocator, Reservation,
    TargetItl, WindowConfig,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) type SimEngine = Engine<PacedExecutor, ManualClock>;

/// Something that happens between two steps.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Submit(Box<Request>),
    Abort(RequestId),
    /// A stop string was found after this many output tokens.
    FinishSequence(SequenceId, u32),
    /// The memory of all but so many cached blocks is given back.
    Trim(u32),
}

/// Where evicted blocks go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tier {
    restore_time: Duration,
    /// Of so many blocks one is declined and one damaged; 0 for none.
    losses_one_in: u32,
}

/// An engine and its commands.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) config: EngineConfig,
    pub(crate) vocab_size: u32,
    pub(crate) fault: Option<Fault>,
    pub(crate) tier: Option<Tier>,
    /// Milliseconds that the clock moves with every step.
    pub(crate) step_ms: u64,
    /// How long a step takes besides.
    pub(crate) pace: Pace,
    /// Parts in which a chunk can be computed.
    pub(crate) num_layers: usize,
    /// Commands by the step before which they are given.
    pub(crate) commands: BTreeMap<u64, Vec<Command>>,
    /// What the outputs of some requests must be.
    pub(crate) constraints: BTreeMap<RequestId, FakeConstraint>,
}

impl Scenario {
    /// Makes the scenario of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut config = config(&mut random);
        let tier = tier(&mut random);
        config.content_hash = tier.map(|_| content_key as _);
        let vocab_size = random.within(2..=6);
        let mut commands: BTreeMap<u64, Vec<Command>> = BTreeMap::new();
        let mut give = |step: u32, command| {
            commands.entry(u64::from(step)).or_default().push(command);
        };
        let base: Vec<TokenId> =
            (0..config.max_model_len).map(|_| random.within(0..=vocab_size - 1)).collect();
        let last_arrival = random.pick(&[0, 5, 40]);
        let mut constraints = BTreeMap::new();
        for id in 0..random.within(1..=9) {
            let id = RequestId(u64::from(id));
            let mut request = request(&mut random, id, &base, vocab_size, config.max_num_seqs);
            if request.sampling.beam.is_none() && random.one_in(4) {
                let constraint = FakeConstraint { vocab_size, seed: random.next() };
                request.constraint = Some(OutputConstraint::new(constraint));
                constraints.insert(id, constraint);
            }
            let arrival = random.within(0..=last_arrival);
            let later = arrival + random.within(0..=40);
            let index = random.within(0..=request.sampling.n - 1);
            give(arrival, Command::Submit(Box::new(request)));
            if random.one_in(6) {
                give(later, Command::Abort(id));
            } else if random.one_in(3) {
                let sequence = SequenceId { request: id, index };
                give(later, Command::FinishSequence(sequence, random.within(1..=6)));
            }
            if random.one_in(8) {
                give(random.within(0..=60), Command::Trim(random.within(0..=4)));
            }
        }
        let step = u64::from(random.within(0..=60));
        let fault = match random.within(1..=9) {
            1 => Some(Fault::StepFails { step }),
            2 => Some(Fault::RowIsNotFinite { step }),
            3 => Some(Fault::KeptRowIsNotFinite { step }),
            _ => None,
        };
        let step_ms = random.pick(&[0, 1, 700, 15_000]);
        let mut pace = pace(&mut random);
        config.target_itl = target_itl(&mut random);
        let num_layers = random.pick(&[1, 20, 40, 60]);
        if num_layers > 1 {
            // So little time for prompts that they pass one layer a step.
            config.target_itl = TargetItl::Within(Duration::from_millis(1));
            pace.token = Duration::from_millis(3);
        }
        Self { config, vocab_size, fault, tier, step_ms, pace, num_layers, commands, constraints }
    }

    /// Creates the engine, whose executor has the scenario's fault and tier.
    pub(crate) fn engine(&self) -> (SimEngine, ManualClock) {
        let clock = ManualClock::default();
        let mut executor = self.executor(&self.config);
        if let Some(fault) = self.fault {
            executor = executor.with_fault(fault);
        }
        if let Some(Tier { restore_time, losses_one_in }) = self.tier {
            let tier = FakeTier::new(restore_time);
            executor = executor.with_tier(tier.with_losses(losses_one_in, self.step_ms));
        }
        let executor = PacedExecutor { inner: executor, clock: clock.clone(), pace: self.pace };
        (Engine::new(self.config, executor, clock.clone()).unwrap(), clock)
    }

    /// Creates an engine that runs one sequence at a time, without prefix cache and with memory to
    /// spare.
    pub(crate) fn solo_engine(&self) -> SimEngine {
        let config = EngineConfig {
            block_size: BlockSize::DEFAULT,
            num_blocks: self.config.max_model_len,
            max_num_seqs: 1,
            max_batched_tokens: 64,
            target_itl: TargetItl::Off,
            prefix_caching: PrefixCaching::Off,
            block_hashing: BlockHashing::Chained,
            allocator: KvAllocator::Paged,
            window: None,
            content_hash: None,
            ..self.config
        };
        let clock = ManualClock::default();
        let inner = self.executor(&config);
        let executor = PacedExecutor { inner, clock: clock.clone(), pace: Pace::default() };
        Engine::new(config, executor, clock).unwrap()
    }

    fn executor(&self, config: &EngineConfig) -> FakeExecutor {
        let EngineConfig { block_size, num_blocks, window, .. } = *config;
        let executor = |num_ids| {
            FakeExecutor::new(self.vocab_size as usize, block_size, num_ids)
                .with_layers(self.num_layers)
        };
        let Some(window) = window else { return executor(num_blocks) };
        let weight = window.full_weight + window.window_weight;
        executor(num_blocks * weight / window.full_weight).with_window(window.num_tokens)
    }
}

fn config(random: &mut Random) -> EngineConfig {
    let block_size = BlockSize::new(random.pick(&[8, 8, 8, 16, 32])).unwrap();
    let max_model_len = random.within(2..=80);
    let max_num_seqs = random.within(1..=6);
    let allocator = match random.within(1..=24) {
        1 => KvAllocator::Contiguous(Reservation::MaxLength { max_model_len }),
        2 => KvAllocator::Contiguous(Reservation::NextPowerOfTwo { max_model_len }),
        3 => KvAllocator::Contiguous(Reservation::ExactLength),
        _ => KvAllocator::Paged,
    };
    let window = window(random).filter(|_| allocator == KvAllocator::Paged);
    let needed_blocks = match allocator {
        KvAllocator::Paged => {
            let longest = block_size.blocks_for(max_model_len);
            window.map_or(longest, |it| it.fewest_blocks_for_one(longest, block_size))
        }
        KvAllocator::Contiguous(_) => block_size.blocks_for(max_model_len).next_power_of_two(),
    };
    EngineConfig {
        block_size,
        num_blocks: needed_blocks + random.pick(&[0, 0, 1, 2, 4, 40]),
        max_model_len,
        max_num_seqs,
        max_batched_tokens: max_num_seqs + random.pick(&[0, 1, 7, 30, 200]),
        target_itl: TargetItl::Off,
        max_queue_len: random.within(1..=8),
        prefix_caching: if random.one_in(4) { PrefixCaching::Off } else { PrefixCaching::On },
        block_hashing: match random.one_in(5) {
            true => BlockHashing::AllEqual,
            false => BlockHashing::Chained,
        },
        allocator,
        window,
        content_hash: None,
    }
}

fn target_itl(random: &mut Random) -> TargetItl {
    let within = Duration::from_millis(random.pick(&[1, 20, 200]));
    random.pick(&[TargetItl::Off, TargetItl::Derived, TargetItl::Within(within)])
}

fn pace(random: &mut Random) -> Pace {
    let step = Duration::from_millis(random.pick(&[0, 5, 60]));
    let token = Duration::from_micros(random.pick(&[0, 100, 3_000]));
    Pace { step, token }
}

fn window(random: &mut Random) -> Option<WindowConfig> {
    let num_tokens = random.pick(&[1, 3, 8, 9, 20, 70]);
    let (full_weight, window_weight) = random.pick(&[(1, 1), (1, 5), (4, 1), (6, 20), (1, 16)]);
    let window = WindowConfig { num_tokens, full_weight, window_weight };
    random.one_in(4).then_some(window)
}

fn tier(random: &mut Random) -> Option<Tier> {
    let restore_time = random.pick(&[Duration::ZERO, Duration::ZERO, Duration::from_millis(1)]);
    let losses_one_in = random.pick(&[0, 2, 3, 10]);
    random.one_in(2).then_some(Tier { restore_time, losses_one_in })
}

/// A request whose prompt starts like `base` and goes on by itself.
fn request(
    random: &mut Random,
    id: RequestId,
    base: &[TokenId],
    vocab_size: u32,
    max_num_seqs: u32,
) -> Request {
    let longest = u32::try_from(base.len()).unwrap() - 1;
    let length = random.within(1..=longest) as usize;
    let num_shared = random.within(0..=longest) as usize;
    let mut prompt = base[..length].to_vec();
    for token in prompt.iter_mut().skip(num_shared) {
        *token = random.within(0..=vocab_size - 1);
    }
    let mut sampling = SamplingParams {
        n: random.pick(&[1, 1, 1, 2, 3, 7]),
        temperature: random.pick(&[0.0, 0.0, 0.5, 1.0, 2.0]),
        top_p: random.pick(&[1.0, 1.0, 0.9, 0.5]),
        top_k: random.pick(&[None, None, Some(1), Some(2), Some(50)]),
        min_p: random.pick(&[0.0, 0.0, 0.2]),
        seed: random.next(),
        max_tokens: random.within(1..=60),
        stop_token_ids: random.pick(&[vec![], vec![], vec![], vec![0], vec![1, 0]]),
        logprobs: random.pick(&[None, Some(0), Some(2), Some(20)]),
        typical_p: random.pick(&[1.0, 1.0, 1.0, 0.5]),
        xtc: random.pick(&[XtcParams::OFF, XtcParams::OFF, XTC]),
        ..SamplingParams::greedy(1)
    };
    let num_stops = u32::try_from(sampling.stop_token_ids.len()).unwrap();
    let max_width = vocab_size.saturating_sub(num_stops).min(max_num_seqs);
    if random.one_in(3) {
        change_logits(random, vocab_size, &mut sampling);
    } else if random.one_in(4) && max_width > 0 {
        let width = random.within(1..=max_width);
        let length_penalty = random.pick(&[1.0, 1.0, 0.0, -1.0, 2.5]);
        sampling.beam = Some(BeamParams { width, length_penalty });
        sampling.n = random.within(1..=width);
        sampling.max_tokens = random.pick(&[1, 2, 5, 20]);
    }
    let report = report(random, &mut sampling);
    if sampling.max_tokens == 0 {
        // Without output there is room for one token more.
        prompt.extend((prompt.len()..base.len()).map(|_| random.within(0..=vocab_size - 1)));
    }
    let adapter = random.pick(&[0, 0, 0, 1, 2]);
    let tenant = random.pick(&[0, 0, 0, 1]);
    Request {
        report,
        priority: random.pick(&[0, 0, 0, -1, 1]),
        namespace: Namespace([2 * adapter + tenant; 32]),
        adapter: (adapter > 0).then(|| Adapter::new(u64::from(adapter))),
        prefix_caching: random.pick(&[
            PrefixCaching::On,
            PrefixCaching::On,
            PrefixCaching::On,
            PrefixCaching::On,
            PrefixCaching::Off,
        ]),
        client: ClientId(random.pick(&[0, 0, 1, 2])),
        ..Request::new(id, prompt, sampling)
    }
}

/// What a request asks about its prompt, perhaps nothing else.
fn report(random: &mut Random, sampling: &mut SamplingParams) -> PromptReport {
    if sampling.beam.is_some() || !random.one_in(3) {
        return PromptReport::Nothing;
    }
    if sampling.n == 1 && sampling.min_tokens == 0 && random.one_in(2) {
        sampling.max_tokens = 0;
    }
    random.pick(&[
        PromptReport::Logprobs { num_top: 0 },
        PromptReport::Logprobs { num_top: 3 },
        PromptReport::Embedding(Pooling::Mean),
        PromptReport::Embedding(Pooling::Last),
    ])
}

/// Excludes top choices half the time.
const XTC: XtcParams = XtcParams { probability: 0.5, threshold: 0.1 };

/// Adds what changes logits.
fn change_logits(random: &mut Random, vocab_size: u32, sampling: &mut SamplingParams) {
    sampling.penalties = Penalties {
        repetition: random.pick(&[1.0, 1.0, 1.5, 0.5]),
        presence: random.pick(&[0.0, 0.0, 1.0, -0.5]),
        frequency: random.pick(&[0.0, 0.0, 0.5, 2.0]),
    };
    if random.one_in(3) {
        let bias = random.pick(&[-100.0, -1.0, 2.0]);
        sampling.logit_bias.push((random.within(0..=vocab_size - 1), bias));
    }
    if random.one_in(3) {
        sampling.dry = Some(DryParams {
            multiplier: 0.8,
            base: random.pick(&[1.0, 1.75]),
            allowed_length: random.within(1..=3),
            num_last_tokens: random.pick(&[u32::MAX, 10]),
            breakers: Arc::new(DryBreakers {
                tokens: random.pick(&[vec![], vec![0]]),
                phrases: random.pick(&[vec![], vec![vec![1, 1]]]),
            }),
        });
    }
    if random.one_in(3) && vocab_size > 2 {
        sampling.min_tokens = random.within(1..=sampling.max_tokens);
    }
}

/// Names blocks as a cryptographic hash would, but for forgers.
fn content_key(parent: &BlockKey, tokens: &[TokenId]) -> BlockKey {
    let mut key = [0; 32];
    for (lane, bytes) in (0..).zip(key.chunks_exact_mut(8)) {
        let of_parent = parent.0.chunks_exact(8).map(|bytes| {
            u64::from_le_bytes(bytes.try_into().expect("a chunk has the size asked for"))
        });
        let words = of_parent.chain(tokens.iter().map(|&token| u64::from(token)));
        let hash = words.fold(lane, |hash, word| mix64(hash ^ mix64(word)));
        bytes.copy_from_slice(&hash.to_le_bytes());
    }
    BlockKey(key)
}
