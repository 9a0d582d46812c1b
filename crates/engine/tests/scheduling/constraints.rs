//! Constraints on the output: when they are asked, and that they concern their own sequence only.

use crate::fixture::{Fixture, VOCAB_SIZE, config, prompt, request};
use mini_infer_core::{
    Batch, BeamParams, BlockSize, ConstraintError, EngineEvent, Executor, ExecutorError,
    FinishReason, KvTransfer, ManualClock, OutputConstraint, OutputMatcher, OutputStatus, Request,
    SamplingParams, TokenConstraint, TokenId, TokenMask,
};
use mini_infer_engine::{EngineConfig, FakeExecutor, SubmitError};
use std::sync::{Arc, Mutex};

/// Allows multiples of a number, for as long as it may; tells what it is asked.
#[derive(Clone, Debug)]
struct Multiples {
    of: u32,
    /// Tokens after which the output is complete.
    length: u32,
    /// Tokens after which the matcher gives up.
    patience: u32,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Multiples {
    fn of(of: u32) -> Self {
        Self { of, length: u32::MAX, patience: u32::MAX, calls: Arc::default() }
    }

    fn on(&self, request: Request) -> Request {
        Request { constraint: Some(OutputConstraint::new(self.clone())), ..request }
    }

    fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().unwrap().clone()
    }
}

impl TokenConstraint for Multiples {
    fn start(&self) -> Box<dyn OutputMatcher> {
        Box::new(Matcher { rule: self.clone(), num_tokens: 0 })
    }
}

#[derive(Debug)]
struct Matcher {
    rule: Multiples,
    num_tokens: u32,
}

impl OutputMatcher for Matcher {
    fn prepare(&mut self) {
        self.rule.calls.lock().unwrap().push("prepare");
    }

    fn allowed(&mut self) -> Result<Arc<TokenMask>, ConstraintError> {
        self.rule.calls.lock().unwrap().push("allowed");
        if self.num_tokens >= self.rule.patience {
            return Err(ConstraintError { message: "no more patience".to_owned() });
        }
        // A multiple of 0 does not exist here.
        let is_multiple = |token: &u32| *token > 0 && token.is_multiple_of(self.rule.of);
        Ok(Arc::new((0..TokenId::try_from(VOCAB_SIZE).unwrap()).filter(is_multiple).collect()))
    }

    fn accept(&mut self, token: TokenId) -> Result<OutputStatus, ConstraintError> {
        self.rule.calls.lock().unwrap().push("accept");
        assert!(token.is_multiple_of(self.rule.of));
        self.num_tokens += 1;
        let is_complete = self.num_tokens == self.rule.length;
        Ok(if is_complete { OutputStatus::Complete } else { OutputStatus::Open })
    }
}

/// A config in which prompts come in chunks and memory runs out.
fn tight() -> EngineConfig {
    EngineConfig { num_blocks: 12, max_model_len: 128, max_batched_tokens: 16, ..config() }
}

fn sampled(id: u64, max_tokens: u32) -> Request {
    let mut request = request(id, prompt(id, 40), max_tokens);
    request.sampling.temperature = 1.0;
    request.sampling.top_k = Some(20);
    request.sampling.seed = id;
    request
}

#[test]
fn only_the_constrained_sequences_are_constrained_under_preemption_and_chunks() {
    let rule = Multiples::of(3);
    let requests = |of_even: &dyn Fn(Request) -> Request| -> Vec<Request> {
        (0..6)
            .map(|id| if id % 2 == 0 { of_even(sampled(id, 40)) } else { sampled(id, 40) })
            .collect()
    };
    let run = |config: EngineConfig, requests: Vec<Request>| {
        let mut fixture = Fixture::new(config);
        for request in requests {
            fixture.submit(request);
        }
        fixture.run();
        fixture
    };
    let constrained = run(tight(), requests(&|request| rule.on(request)));
    let free = run(tight(), requests(&|request| request));
    assert!(constrained.engine.stats().counters.num_preemptions > 0);
    for id in 0..6 {
        let output = constrained.output(id, 0);
        assert_eq!(output.len(), 40);
        if id % 2 == 1 {
            assert_eq!(output, free.output(id, 0), "a neighbour is not concerned");
            continue;
        }
        assert!(output.iter().all(|token| token.is_multiple_of(3)), "{output:?}");
        let alone = run(config(), vec![rule.on(sampled(id, 40))]);
        assert_eq!(output, alone.output(id, 0));
    }
}

#[test]
fn choices_of_one_request_have_matchers_of_their_own() {
    let rule = Multiples { length: 5, ..Multiples::of(7) };
    let mut request = rule.on(sampled(1, 40));
    request.sampling.n = 5;
    let mut fixture = Fixture::new(config());
    fixture.submit(request);
    fixture.run();
    assert!(fixture.engine.stats().counters.num_forks > 0);
    let mut outputs: Vec<_> = fixture.outputs().into_values().collect();
    for output in &outputs {
        assert_eq!(output.len(), 5);
        assert!(output.iter().all(|token| token.is_multiple_of(7)), "{output:?}");
    }
    outputs.dedup();
    assert_eq!(outputs.len(), 5, "each has its own random numbers");
}

#[test]
fn a_complete_output_stops_at_once_also_exactly_at_the_cap() {
    for max_tokens in [4, 5, 9] {
        let rule = Multiples { length: 4, ..Multiples::of(3) };
        let mut fixture = Fixture::new(config());
        fixture.submit(rule.on(sampled(1, max_tokens)));
        fixture.run();
        let (_, reason, usage) = fixture.ends().remove(0);
        assert_eq!((reason, usage.num_output_tokens), (FinishReason::Stop, 4));
    }
    let rule = Multiples { length: 4, ..Multiples::of(3) };
    let mut fixture = Fixture::new(config());
    fixture.submit(rule.on(sampled(1, 3)));
    fixture.run();
    assert_eq!(fixture.ends()[0].1, FinishReason::Length);
}

#[test]
fn a_matcher_that_gives_up_ends_its_own_sequence_only() {
    let impatient = Multiples { patience: 2, ..Multiples::of(3) };
    let impossible = Multiples::of(4_000);
    let mut fixture = Fixture::new(config());
    fixture.submit(impatient.on(sampled(1, 9)));
    fixture.submit(impossible.on(sampled(2, 9)));
    fixture.submit(sampled(3, 9));
    fixture.run();
    let ends = fixture.ends();
    let end = |id: u64| {
        let (_, reason, usage) = ends.iter().find(|(request, ..)| *request == id).unwrap();
        (reason.clone(), usage.num_output_tokens)
    };
    let message = |reason| {
        let FinishReason::Error(message) = reason else { panic!("{reason:?}") };
        message
    };
    let (reason, num_tokens) = end(1);
    assert!(message(reason).contains("no more patience") && num_tokens == 2);
    let (reason, num_tokens) = end(2);
    assert!(message(reason).contains("allows no token") && num_tokens == 0);
    assert_eq!(end(3), (FinishReason::Length, 9));
}

#[test]
fn a_beam_search_cannot_be_constrained() {
    let sampling = SamplingParams {
        beam: Some(BeamParams { width: 2, length_penalty: 1.0 }),
        ..SamplingParams::greedy(4)
    };
    let request = Multiples::of(3).on(Request { sampling, ..sampled(1, 4) });
    let error = Fixture::new(config()).engine.submit(request).unwrap_err();
    assert_eq!(error, SubmitError::ConstrainedBeams);
}

/// Notes when the forward pass runs.
struct Witness {
    inner: FakeExecutor,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Executor for Witness {
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        self.calls.lock().unwrap().push("forward");
        self.inner.forward(batch, logits)
    }

    fn transfer(&mut self, transfers: &[KvTransfer]) {
        self.inner.transfer(transfers);
    }
}

#[test]
fn masks_are_looked_for_while_the_executor_runs_and_only_when_needed() {
    let rule = Multiples { length: 2, ..Multiples::of(3) };
    let calls = Arc::clone(&rule.calls);
    let inner = FakeExecutor::new(VOCAB_SIZE, BlockSize::DEFAULT, 64);
    let chunks = EngineConfig { max_batched_tokens: 32, ..config() };
    let mut fixture = Fixture::on(chunks, Witness { inner, calls }, ManualClock::default());
    fixture.submit(rule.on(sampled(1, 9)));
    fixture.run();
    let step = ["prepare", "forward", "allowed", "accept"];
    let expected = [&["forward"][..], &step, &step].concat();
    assert_eq!(rule.calls(), expected, "the first chunk of the prompt samples nothing");
    let tokens = fixture.events.iter().filter(|e| matches!(e, EngineEvent::Token { .. })).count();
    assert_eq!(tokens, 2);
}
